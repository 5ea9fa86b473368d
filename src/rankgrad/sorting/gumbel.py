"""The stochastic form of any relaxation: Gumbel noise on the scores.

Losses whose names begin with ``gumbel_`` use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._padded import Randomness
from rankgrad._shapes import Channels, Float, ItemMask, ItemValues, Mask, RankValues, Scores
from rankgrad._validation import Schedule, check_flag, check_whole, initial_value, set_temperature
from rankgrad.kernels import KernelCall
from rankgrad.sorting._base import Form, Relaxation, as_base, check_scores, relaxations
from rankgrad.sorting.neuralsort import NeuralSort


@relaxations.register("gumbel")
@dataclass(frozen=True)
class Gumbel(Relaxation):
    """A relaxation of noisy scores ``s + g``, ``g ~ Gumbel(0, scale)`` (Jagerman et al. eqs. 9-10).

    A metric relaxed by it is the mean of the metric over the samples. A call gives the mean
    permutation or ranks. Noise is drawn for real items only, so padding does not change it.

    Args:
        base: the relaxation to make stochastic.
        scale: of the noise, > 0, or a schedule.
        samples: how many noisy copies of each list.
        log_scores: sort ``scale · log s + g`` instead (Pobrotyn and Białobrzeski §4.1), which gives
            exact samples of the Plackett-Luce model with weights s. If a list has a score of 0 or
            less, a constant is added first that makes its lowest score 1.
        seed: of the noise, a number or a ``torch.Generator``; None for PyTorch's own generator.

    >>> Gumbel(NeuralSort(0.1), samples=1000, seed=0)(torch.tensor([0.0, 1.0]), k=1)
    tensor([[0.2559, 0.7441]])
    """

    stochastic: ClassVar[bool] = True
    limit: ClassVar[dict[str, Any]] = {"base": NeuralSort(temperature=1e-5), "scale": 1e-9}

    base: Relaxation = NeuralSort()
    scale: float | Schedule = 1.0
    samples: int = 1
    log_scores: bool = False
    seed: int | torch.Generator | None = None
    #: The generator made from ``seed``. ``dataclasses.replace`` passes it on, so that :meth:`at`
    #: continues the same random numbers.
    _random: Randomness | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_base(self.base))
        set_temperature(self, "scale")
        object.__setattr__(self, "samples", check_whole("samples", self.samples))
        check_flag("log_scores", self.log_scores)
        random = self._random or Randomness(self.seed)
        object.__setattr__(self, "_random", random)
        object.__setattr__(self, "seed", random.seed)

    @property
    @override
    def forms(self) -> tuple[Form, ...]:
        return self.base.forms

    def kernel(self) -> KernelCall | None:
        """The kernel of the base, which is called on noisy scores."""
        return self.base.kernel() if self.base.kernel_applies else None

    @override
    def permutation(
        self, scores: Scores, mask: Mask | None = None, k: int | None = None
    ) -> Float[Tensor, "*b k n"]:
        flat_scores, flat_mask, batch = check_scores(scores, mask)
        noisy = self.sample_scores(flat_scores, flat_mask)
        mean = self.base.permutation(noisy, flat_mask.expand_as(noisy), k).mean(0)
        return mean.reshape(*batch, *mean.shape[1:])

    @override
    def ranks(self, scores: Scores, mask: Mask | None = None) -> Float[Tensor, "*b n"]:
        flat_scores, flat_mask, batch = check_scores(scores, mask)
        noisy = self.sample_scores(flat_scores, flat_mask)
        mean = self.base.ranks(noisy, flat_mask.expand_as(noisy)).mean(0)
        return mean.reshape(*batch, mean.shape[-1])

    @override
    def sample_scores(self, scores: ItemValues, mask: ItemMask) -> Float[Tensor, "samples b n"]:
        assert self._random is not None
        scale = initial_value(self.scale)
        # If e has the standard exponential distribution, -log e has the standard Gumbel one.
        standard_noise = -self._random.exponential(mask, self.samples).log()
        noise = (standard_noise * scale).to(scores.dtype)
        if self.log_scores:
            scores = scale * _positive(scores, mask).log()
        return torch.where(mask, scores + noise, 0.0)

    # The next three methods get scores from sample_scores, which have the noise already.

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        return self.base._permutation(scores, mask, k)

    def _ranks(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        return self.base.rank(scores, mask)

    def _sort(self, values: Channels, scores: ItemValues, mask: ItemMask, k: int) -> RankValues:
        return self.base.sort(values, scores, mask, k)


def _positive(scores: ItemValues, mask: ItemMask) -> ItemValues:
    """Scores ``[b, n]`` above 0; 1 on padding.

    A list with a score of 0 or less is shifted so that its lowest score is 1.
    """
    lowest = scores.masked_fill(~mask, float("inf")).amin(-1, keepdim=True)
    shifted = torch.where(lowest > 0, scores, scores - lowest + 1)
    return torch.where(mask, shifted, 1.0)
