"""NeuralSort (Grover et al. 2019), the relaxation under NeuralNDCG and PiRank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._autograd import ListFunction, differentiable_once
from rankgrad._padded import descending, invert, tie_groups, tiles
from rankgrad._shapes import Float, ItemMask, ItemValues
from rankgrad._validation import Schedule, initial_value, set_temperature
from rankgrad.kernels import KernelCall
from rankgrad.sorting._base import Relaxation, relaxations


@relaxations.register("neuralsort")
@dataclass(frozen=True)
class NeuralSort(Relaxation):
    """Unimodal row-stochastic relaxation of the permutation matrix.

    ``P[r] = softmax(((n + 1 - 2r) s - A 1) / τ)`` with ``A_ij = |s_i - s_j|``
    (Pobrotyn and Białobrzeski eq. 3, Swezey et al. eq. 12).

    The row sums ``A 1`` come from one sort and prefix sums, so the top k rows cost
    O(n log n + k n). At τ → 0 it is the exact sort.

    Args:
        temperature: τ > 0, or a schedule.

    >>> NeuralSort(temperature=1.0)(torch.tensor([0.2, 0.9, 0.5]), k=1)
    tensor([[0.1403, 0.5147, 0.3450]])
    """

    limit: ClassVar[dict[str, Any]] = {"temperature": 1e-5}

    temperature: float | Schedule = 1.0

    def __post_init__(self) -> None:
        set_temperature(self, "temperature")

    @override
    def kernel(self) -> KernelCall | None:
        return KernelCall("neuralsort", (initial_value(self.temperature),))

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        rows: Tensor = _PermutationRows.apply(scores, mask, k, initial_value(self.temperature))
        return rows

    def cross_entropy(
        self, scores: ItemValues, labels: ItemValues, mask: ItemMask, k: int
    ) -> ItemValues:
        """``-Σ_{r<=k} P*_rj log P_rj`` of each item j, ``P*`` the exact permutation by labels.

        Items of equal label share their ranks in ``P*`` equally. In memory for a few rows at a
        time.
        """
        order = descending(labels, mask)
        inside = mask.gather(-1, order)
        start, _ = tie_groups(labels.detach().gather(-1, order).masked_fill(~inside, -1.0))
        of_item = start.gather(-1, invert(order)).masked_fill(~mask, -2)
        groups = start.masked_fill(~inside, -1), of_item
        terms: Tensor = _CrossEntropy.apply(
            scores, mask, descending(scores, mask), *groups, k, initial_value(self.temperature)
        )
        return terms


class _CrossEntropy(ListFunction):
    """See :meth:`NeuralSort.cross_entropy`.

    Lists are sorted before, so that the backward pass need not. Groups of equal labels are numbers
    of each rank (-1 past the end) and of each item (-2 for padding).
    """

    @staticmethod
    def forward(
        scores: Tensor,
        mask: Tensor,
        order: Tensor,
        by_rank: Tensor,
        by_item: Tensor,
        k: int,
        temperature: float,
    ) -> Tensor:
        terms = torch.zeros_like(scores, dtype=torch.float64)
        for logs, target, _ in _log_rows(scores, mask, order, by_rank, by_item, k, temperature):
            terms = terms - torch.where(target > 0, target * logs, 0.0).sum(1)
        # A copy: PyTorch 2.11 loses the gradient of a conversion that changes nothing.
        return terms.to(scores.dtype, copy=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.k, ctx.temperature = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, mask, order, by_rank, by_item = ctx.saved_tensors
        rows = _log_rows(scores, mask, order, by_rank, by_item, ctx.k, ctx.temperature)
        by_score = by_distance = torch.zeros_like(scores, dtype=torch.float64)
        for logs, target, coefficients in rows:
            wanted = grad.double()[:, None, :] * target
            change = logs.exp() * wanted.sum(-1, keepdim=True) - wanted
            by_score = by_score + (coefficients * change).sum(1)
            by_distance = by_distance - change.sum(1)
        through = _absolute_differences_vjp(by_distance, scores, mask, order)
        result = ((by_score + through) / ctx.temperature).to(scores.dtype)
        return result, None, None, None, None, None, None


def _log_rows(
    scores: Tensor,
    mask: Tensor,
    order: Tensor,
    by_rank: Tensor,
    by_item: Tensor,
    k: int,
    temperature: float,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Some rows at a time: ``log P`` in float64, ``P*``, and the coefficients of the scores."""
    exact, (b, n) = scores.double(), scores.shape
    distances = _absolute_differences(exact, mask, order)
    length = mask.sum(-1, keepdim=True)
    coefficients = (length - 1 - 2 * torch.arange(k, device=scores.device)).double()[:, :, None]
    padding = (~mask & (length > 0))[:, None, :]
    for some in tiles(b * n // 2, k):
        logits = (coefficients[:, some] * exact[:, None, :] - distances[:, None, :]) / temperature
        same = by_rank[:, some, None] == by_item[:, None, :]
        target = same / same.sum(-1, keepdim=True).clamp(min=1).double()
        yield (
            logits.masked_fill(padding, float("-inf")).log_softmax(-1),
            target,
            coefficients[:, some],
        )


def _absolute_differences(scores: Tensor, mask: Tensor, order: Tensor) -> Tensor:
    """``b_j = Σ_k |s_j - s_k|`` over the real items, in O(n log n)."""
    inside = mask.gather(-1, order)
    ranked = scores.gather(-1, order) * inside
    above = torch.arange(scores.shape[-1], device=scores.device)
    below = inside.sum(-1, keepdim=True) - above - 1
    prefix = ranked.cumsum(-1)
    suffix = prefix[:, -1:] - prefix
    sums = (prefix - ranked - above * ranked) + (below * ranked - suffix)
    return (sums * inside).gather(-1, invert(order))


def _absolute_differences_vjp(grad: Tensor, scores: Tensor, mask: Tensor, order: Tensor) -> Tensor:
    """``Σ_j (g_k + g_j) sign(s_k - s_j)`` for each k; tied items do not act on each other."""
    inside = mask.gather(-1, order)
    ranked = scores.gather(-1, order).masked_fill(~inside, float("-inf"))
    start, end = tie_groups(ranked)
    grad = torch.where(mask, grad, 0.0).gather(-1, order)
    sums = torch.nn.functional.pad(grad.cumsum(-1), (1, 0))
    length = inside.sum(-1, keepdim=True)
    above, below = start, (length - end).clamp(min=0)
    sum_above, sum_below = sums.gather(-1, start), sums[:, -1:] - sums.gather(-1, end)
    result = (below - above) * grad + (sum_below - sum_above)
    return (result * inside).gather(-1, invert(order))


class _PermutationRows(ListFunction):
    """The top k rows. Saves one ``[b, k, n]`` buffer, P; the backward pass needs one more.

    In sorted order the maximum of row r stands at the r-th item, so the softmax's shift is known.
    Logits are of size n |s| and cancel near the maximum, hence float64 up to the shift, a few rows
    at a time. Entries below 1e-30 are set to zero: as denormal numbers they would slow everything
    that follows.
    """

    @staticmethod
    def forward(scores: Tensor, mask: Tensor, k: int, temperature: float) -> Tensor:
        b, n = scores.shape
        exact = scores.double()
        order = descending(scores, mask)
        distances = _absolute_differences(exact, mask, order)
        length = mask.sum(-1, keepdim=True)
        position = torch.arange(k, device=scores.device)
        slope = (length - 1.0 - 2.0 * position).double()
        top = order[:, :k]
        shift = slope * exact.gather(-1, top) - distances.gather(-1, top)
        # Rows past the list's end and columns of padding get logits of -infinity.
        shift = torch.where(position < length, shift, float("inf"))
        distances = torch.where(mask, distances, float("inf"))
        floor = -69.0 if scores.dtype == torch.float32 else -690.0
        matrix = scores.new_empty(b, k, n)
        for some in tiles(b * n, k):
            logits = torch.baddbmm(-distances[:, None, :], slope[:, some, None], exact[:, None, :])
            logits.sub_(shift[:, some, None]).div_(temperature)
            rows = matrix[:, some]
            rows.copy_(logits)
            rows.masked_fill_(rows < floor, float("-inf")).exp_()
            rows.div_(rows.sum(-1, keepdim=True).clamp(min=1e-30))
        return matrix

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, mask, _, ctx.temperature = inputs
        ctx.save_for_backward(output, scores, mask)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        rows, scores, mask = ctx.saved_tensors
        order = descending(scores, mask)
        position = torch.arange(rows.shape[1], device=scores.device)
        slope = (mask.sum(-1, keepdim=True) - 1.0 - 2.0 * position).to(scores.dtype)
        logits = grad * rows
        logits = torch.addcmul(logits, rows, logits.sum(-1, keepdim=True), value=-1.0)
        by_item = torch.stack([slope, -torch.ones_like(slope)], 1) @ logits
        by_score, by_distance = by_item.double().unbind(1)
        through = _absolute_differences_vjp(by_distance, scores, mask, order)
        return ((by_score + through) / ctx.temperature).to(scores.dtype), None, None, None
