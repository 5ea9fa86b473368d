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
        rate: the factor of the learning rate of c, W and b. The parameters are these divided by it,
            as in :class:`~rankgrad.models._perceptrons.AdaptedLinear`.

    >>> PeriodicEncoding(n_features=3, size=4)(torch.zeros(2, 3)).shape
    torch.Size([2, 12])
    """

    undecayed = "frequency", "weight", "bias"  # no weight decay: at 0 functions are constant

    def __init__(self, n_features: int, size: int, rate: float = 1.0) -> None:
        super().__init__()
        self.n_features, self.width, self.rate = n_features, n_features * size, rate
        inputs = 2 * _FREQUENCIES
        frequency = FREQUENCY_DEVIATION * torch.randn(n_features, 1, _FREQUENCIES)
        weight = torch.randn(n_features, inputs, size) / math.sqrt(inputs)
        self.frequency = nn.Parameter(frequency / rate)
        self.weight = nn.Parameter(weight / rate)
        self.bias = nn.Parameter(torch.zeros(n_features, 1, size))

    @property
    def coefficients(
        self,
    ) -> tuple[Float[Tensor, "f 1 k"], Float[Tensor, "f 2*k s"], Float[Tensor, "f 1 s"]]:
        """The frequencies c, weights W and biases b of all features."""
        parameters = self.frequency, self.weight, self.bias
        if self.rate == 1:
            return parameters
        frequency, weight, bias = (self.rate * parameter for parameter in parameters)
        return frequency, weight, bias

    @override
    def forward(self, features: Float[Tensor, "*b f"]) -> Float[Tensor, "*b e"]:
        """The functions of all features, those of the first feature first."""
        frequency, weight, bias = coefficients = self.coefficients
        if all(map(cpu_kernel_applies, (features, *coefficients))) and not features.requires_grad:
            from rankgrad.models._periodic_kernel import PeriodicFunctions

            functions: Tensor = PeriodicFunctions.apply(features.flatten(0, -2), *coefficients)
            return functions.view(*features.shape[:-1], self.width)
        by_feature = features.flatten(0, -2).mT[..., None]
        angles = 2 * math.pi * frequency * by_feature
        waves = torch.cat([angles.sin(), angles.cos()], -1)
        functions = torch.baddbmm(bias, waves, weight).relu()
        return functions.transpose(0, 1).reshape(*features.shape[:-1], self.width)
