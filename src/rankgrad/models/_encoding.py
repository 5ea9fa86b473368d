"""PiecewiseLinearEncoding: the value of a feature as a row of ramps, one for each bin.

:class:`~rankgrad.models.tabm.TabM` takes it in beside the features (its option ``bins``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from typing_extensions import override

from rankgrad._shapes import Float


class PiecewiseLinearEncoding(nn.Module):
    """Ramps of each feature: a linear layer over them is any piecewise linear function of it.

    With the edges ``e_0 < e_1 < ... < e_bins``, a value x becomes (Gorishniy et al. 2022, "On
    embeddings for numerical features in tabular deep learning", §3.2)::

        ramp_t(x) = clip((x - e_{t-1}) / (e_t - e_{t-1}), 0, 1),   t = 1 .. bins

    The bins have equal width and cover ±√3, where uniform quantiles lie once they are standardized:
    after the default transforms they hold about equal numbers of items. Values outside are clipped.

    Args:
        n_features: the number of features f.
        bins: the number of ramps of a feature.

    >>> PiecewiseLinearEncoding(n_features=1, bins=2)(torch.tensor([[-3.0], [0.0], [3.0**0.5 / 2]]))
    tensor([[0.0000, 0.0000],
            [1.0000, 0.0000],
            [1.0000, 0.5000]])
    """

    starts: Tensor

    def __init__(self, n_features: int, bins: int) -> None:
        super().__init__()
        self.n_features, self.width = n_features, n_features * bins
        limit = math.sqrt(3)
        starts = torch.linspace(-limit, limit, bins + 1)[:-1].clone()  # of the bins
        self.register_buffer("starts", starts, persistent=False)
        self.bins_per_unit = bins / (2 * limit)

    @override
    def forward(self, features: Float[Tensor, "*b f"]) -> Float[Tensor, "*b e"]:
        """The ramps of all features, those of the first feature first."""
        ramps = (features[..., None] - self.starts) * self.bins_per_unit
        return ramps.clamp(0.0, 1.0).flatten(-2)
