"""The one shape data has once it is read: a matrix of items, cut into lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Dataset:
    """Lists of items with features and graded labels."""

    features: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any]
    qids: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any] | None = None
    ids: np.ndarray[Any, Any] | None = None
    feature_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.offsets) - 1

    @property
    def n_features(self) -> int:
        """The number of features of each item."""
        return int(self.features.shape[1])
