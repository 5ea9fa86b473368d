"""The eager form of optimal transport."""

import torch

from rankgrad.sorting.optimal_transport import _gibbs_kernel, _squash


def test_matched_entries_are_one_in_float64():
    """Targets of a lower precision would be noticed: rounding is divided by ε."""
    scores = torch.tensor([[2.0, 1.0, 1.0, 0.5, 0.5, -1.0, -3.0]], dtype=torch.float64)
    mask = torch.ones_like(scores, dtype=torch.bool)
    matched = _gibbs_kernel(_squash(scores, mask), mask, 1e-7)[0].diagonal()
    torch.testing.assert_close(matched, torch.ones_like(matched), rtol=0, atol=1e-7)
