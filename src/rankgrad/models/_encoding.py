"""Encodings of features: several functions of each, which a network takes in beside the features.

:class:`~rankgrad.models.tabm.TabM` has them as its options ``bins`` and ``periodic``. Both are of
Gorishniy et al. 2022, "On embeddings for numerical features in tabular deep learning".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from typing_extensions import override

from rankgrad._shapes import Float
from rankgrad.models._dropout import cpu_kernel_applies


class PiecewiseLinearEncoding(nn.Module):
    """Ramps of each feature: a linear layer over them is any piecewise linear function of it.

    With the edges ``e_0 < e_1 < ... < e_bins``, a value x becomes (Gorishniy et al. 2022, §3.2)::

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


_FREQUENCIES = 8  # of each feature
FREQUENCY_DEVIATION = 0.1  # of the initial frequencies, in periods per deviation of a feature


class PeriodicEncoding(nn.Module):
    """Learned functions of each feature over sines and cosines of it.

    Feature f has frequencies c_f, and a linear layer W_f, b_f of its own (Gorishniy et al. 2022,
    §3.3, there called PLR)::

        encoding_f(x) = relu(W_f [sin(2π c_f x), cos(2π c_f x)] + b_f)

    The frequencies are learned, too. They start small, so that the functions start smooth.

    Args:
        n_features: the number of features f.
        size: the number of functions of a feature.

    >>> PeriodicEncoding(n_features=3, size=4)(torch.zeros(2, 3)).shape
    torch.Size([2, 12])
    """

    def __init__(self, n_features: int, size: int) -> None:
        super().__init__()
        self.n_features, self.width = n_features, n_features * size
        inputs = 2 * _FREQUENCIES
        frequency = FREQUENCY_DEVIATION * torch.randn(n_features, 1, _FREQUENCIES)
        self.frequency = nn.Parameter(frequency)
        self.weight = nn.Parameter(torch.randn(n_features, inputs, size) / math.sqrt(inputs))
        self.bias = nn.Parameter(torch.zeros(n_features, 1, size))

    @override
    def forward(self, features: Float[Tensor, "*b f"]) -> Float[Tensor, "*b e"]:
        """The functions of all features, those of the first feature first."""
        parameters = (self.frequency, self.weight, self.bias)
        if all(map(cpu_kernel_applies, (features, *parameters))) and not features.requires_grad:
            from rankgrad.models._periodic_kernel import PeriodicFunctions

            functions: Tensor = PeriodicFunctions.apply(features.flatten(0, -2), *parameters)
            return functions.view(*features.shape[:-1], self.width)
        by_feature = features.flatten(0, -2).mT[..., None]
        angles = 2 * math.pi * self.frequency * by_feature
        waves = torch.cat([angles.sin(), angles.cos()], -1)
        functions = torch.baddbmm(self.bias, waves, self.weight).relu()
        return functions.transpose(0, 1).reshape(*features.shape[:-1], self.width)
