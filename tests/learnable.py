"""Small lists to learn from."""

import numpy as np

from rankgrad.data import Dataset


def lists(count=24, seed=0, features=5, weights=False, max_length=12):
    """Lists whose labels follow from their features."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, max_length, count)
    n = int(lengths.sum())
    values = random.normal(size=(n, features)).astype(np.float32)
    utility = values[:, 0] + 0.5 * values[:, 1] * values[:, 2] + 0.3 * random.normal(size=n)
    return Dataset(
        values,
        np.digitize(utility, [0.3, 1.0, 1.8]),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.arange(count).astype(str),
        weights=random.uniform(0.5, 2, n) if weights else None,
    )
