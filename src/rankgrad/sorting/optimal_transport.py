"""Sorting as entropic optimal transport (Cuturi et al. 2019).

The scores are transported to evenly spaced targets, one per rank; the plan is a relaxed
permutation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._padded import descending, invert, standardize, tie_groups
from rankgrad._shapes import Channels, Float, ItemMask, ItemValues, RankValues
from rankgrad._validation import (
    Schedule,
    check_positive,
    check_whole,
    initial_value,
    set_temperature,
)
from rankgrad.kernels import KernelCall
from rankgrad.sorting._base import Relaxation, relaxations
from rankgrad.sorting.sinkhorn import scale, scale_and_sort


@relaxations.register("ot", "optimal_transport")
@dataclass(frozen=True)
class OptimalTransport(Relaxation):
    """n times the entropic transport plan from the n scores to n evenly spaced targets.

    ``P = n argmin_Π <Π, (x_i - t_r)²> - ε H(Π)`` between uniform measures, with
    ``x = sigmoid((s - mean) / std)`` and ``t_r = (n - r) / (n - 1)``; relaxed ranks are the mean
    target ranks of the items. At ε → 0 it is the exact sort.

    The plan is a Sinkhorn scaling of ``exp(-C / ε)``. The scaling starts from the dual potentials
    of the problem without entropy, which sorting gives in closed form. So every row and column has
    an entry of one, and none underflows as a whole, however small ε is.

    Args:
        epsilon: strength of the entropy, ε > 0, or a schedule.
        iterations: at most this many scalings.
        tolerance: stop when every row and column sum of a list is this close to one.

    >>> OptimalTransport(epsilon=0.1)(torch.tensor([0.2, 0.9, 0.5]), k=1)
    tensor([[0.0051, 0.8428, 0.1521]])
    """

    limit: ClassVar[dict[str, Any]] = {"epsilon": 1e-7}

    epsilon: float | Schedule = 0.01
    iterations: int = 100
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        set_temperature(self, "epsilon")
        check_whole("iterations", self.iterations)
        check_positive("tolerance", self.tolerance)

    @override
    def kernel(self) -> KernelCall | None:
        return KernelCall("ot", (initial_value(self.epsilon), self.iterations, self.tolerance))

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        gibbs_kernel = _gibbs_kernel(_squash(scores, mask), mask, initial_value(self.epsilon))
        return scale(gibbs_kernel, self.iterations, self.tolerance)[:, :k]

    def _sort(self, values: Channels, scores: ItemValues, mask: ItemMask, k: int) -> RankValues:
        gibbs_kernel = _gibbs_kernel(_squash(scores, mask), mask, initial_value(self.epsilon))
        return scale_and_sort(gibbs_kernel, values, self.iterations, self.tolerance)[:, :, :k]


def _squash(scores: Tensor, mask: Tensor) -> Tensor:
    """The points x, ``[b, n]``: the sigmoids of scores standardized within their list."""
    return standardize(scores, mask).sigmoid()


def _gibbs_kernel(points: Tensor, mask: Tensor, epsilon: float) -> Tensor:
    """The matrix to scale: ``exp(-(C - f - g) / ε)``, ``[b, n, n]``, rows = target ranks.

    It is 1 where the exact sort matches rank and item, and at most 1 elsewhere. The squares of x
    and t do not change the plan, so C is ``-2 x t``.
    """
    order, targets, g, f = _potentials(points, mask)
    negative_slack = 2 * targets[:, :, None] * points[:, None, :] + f[:, None, :] + g[:, :, None]
    # The slack is 0 or more, and 0 at matches. A small ε magnifies its rounding errors, so logits
    # are clamped to at most 1, and those of matches to at least -1.
    logits = (negative_slack / epsilon).clamp(max=1.0)
    positions = torch.arange(mask.shape[-1], device=mask.device)
    is_match = order[:, :, None] == positions
    logits = torch.where(is_match, logits.clamp(min=-1.0), logits)
    # Entries below about 1e-30 (in float64, 1e-300) become 0.
    floor = -69.0 if points.dtype == torch.float32 else -690.0
    real_ranks = positions < mask.sum(-1, keepdim=True)
    is_positive = real_ranks[:, :, None] & mask[:, None, :] & (logits > floor)
    return torch.where(is_positive, logits, float("-inf")).exp()


def _potentials(points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The item at each rank, the targets t, and the dual potentials g of ranks and f of items.

    The potentials are those of the problem without entropy, whose optimal plan matches ranks and
    items in sorted order. They are not unique: complementary slackness only says that
    ``f_(r) = -2 x_(r) t_r - g_r``, and that ``(g_{r+1} - g_r) (n - 1) / 2`` is between the
    neighbors ``x_(r+1)`` and ``x_(r)``. Here it is the middle of the two. Tied items take the mean
    of their potentials, so that their values and gradients are equal. All are ``[b, n]``.
    """
    length = mask.sum(-1, keepdim=True)
    order = descending(points, mask)
    inside = mask.gather(-1, order)
    ranked = torch.where(inside, points.gather(-1, order), 0.0)
    start, end = tie_groups(ranked.detach().masked_fill(~inside, float("-inf")))

    def tie_means(values: Tensor) -> Tensor:
        """At each rank, the mean of the values over its tie group."""
        sums = torch.zeros_like(values).scatter_add(-1, start, values)
        return sums.gather(-1, start) / (end - start)

    ranked = tie_means(ranked)
    spacing = 1.0 / (length - 1).clamp(min=1).to(points)
    targets = (length - 1 - torch.arange(mask.shape[-1], device=mask.device)) * spacing
    steps = (ranked[:, :-1] + ranked[:, 1:]) * spacing
    g = torch.nn.functional.pad(steps.cumsum(-1), (1, 0))
    f = tie_means(-2 * ranked * targets - g).gather(-1, invert(order))
    return order, targets, g, f
