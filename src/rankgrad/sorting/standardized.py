"""A relaxation of scores that are standardized within each list, so that they cannot grow.

Under a relaxed metric nothing holds scores: larger ones make the relaxation sharper, until few
pairs have a gradient. ``docs/results/direct.md`` has what standardization changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

from rankgrad._padded import standardize
from rankgrad._shapes import Channels, Float, ItemMask, ItemValues, RankValues
from rankgrad._validation import Schedule, initial_value, set_temperature
from rankgrad.sorting._base import Form, Relaxation, as_base, relaxations
from rankgrad.sorting.neuralsort import NeuralSort


@relaxations.register("standardized")
@dataclass(frozen=True)
class Standardized(Relaxation):
    """Another relaxation of ``d (s - mean(s)) / std(s)``, the mean and deviation of each list.

    It does not depend on the location and scale of the scores. At d → ∞ it is the exact sort.

    Args:
        base: the relaxation.
        deviation: d > 0, the standard deviation of the scores that it gets, or a schedule.

    >>> scores = torch.tensor([0.2, 0.9, 0.5])
    >>> relaxation = Standardized(NeuralSort(), deviation=0.3)
    >>> torch.allclose(relaxation(scores), relaxation(10 * scores), atol=1e-4)
    True
    """

    limit: ClassVar[dict[str, Any]] = {"deviation": 1e5}

    base: Relaxation = NeuralSort()
    deviation: float | Schedule = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_base(self.base))
        set_temperature(self, "deviation")

    @property
    @override
    def forms(self) -> tuple[Form, ...]:
        return self.base.forms

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        return self.base._permutation(self._standardize(scores, mask), mask, k)

    def _ranks(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        return self.base.rank(self._standardize(scores, mask), mask)

    def _sort(self, values: Channels, scores: ItemValues, mask: ItemMask, k: int) -> RankValues:
        return self.base.sort(values, self._standardize(scores, mask), mask, k)

    def _standardize(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        """Scores of mean 0 and deviation d, 0 on padding."""
        return initial_value(self.deviation) * standardize(scores, mask)
