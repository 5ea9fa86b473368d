"""NeuralSort (Grover et al. 2019), the relaxation of NeuralNDCG and PiRank.

The factor ``n + 1 - 2r`` of the scores in row r is called its rank offset. In code, rows are
numbered from 0, so the rank offset of row ``p = r - 1`` is ``n - 1 - 2p``.
"""

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

        Items of equal label share their ranks in ``P*`` equally. Only a few rows are in memory at a
        time. :class:`rankgrad.losses.NeuralSortCE` sums these terms.

        Args:
            scores: ``[b, n]``.
            labels: ``[b, n]``.
            mask: ``[b, n]``, True on real items.
            k: the number of ranks.

        Returns:
            ``[b, n]``, a term for each item.
        """
        by_label = descending(labels, mask)
        inside = mask.gather(-1, by_label)
        start, _ = tie_groups(labels.detach().gather(-1, by_label).masked_fill(~inside, -1.0))
        rank_groups = start.masked_fill(~inside, -1)
        item_groups = start.gather(-1, invert(by_label)).masked_fill(~mask, -2)
        order, temperature = descending(scores, mask), initial_value(self.temperature)
        terms: Tensor = _CrossEntropy.apply(
            scores, mask, order, rank_groups, item_groups, k, temperature
        )
        return terms


class _CrossEntropy(ListFunction):
    """See :meth:`NeuralSort.cross_entropy`; the arguments are those of :func:`_log_rows`.

    The caller sorts the lists by score (``order``), so that the backward pass need not sort again.
    A group of items with equal labels is numbered by its first rank in the order of labels.
    ``rank_groups`` ``[b, n]`` has the group of each rank (-1 past the end of the list),
    ``item_groups`` ``[b, n]`` that of each item (-2 for padding).
    """

    @staticmethod
    def forward(scores: Tensor, *arguments: Any) -> Tensor:
        terms = torch.zeros_like(scores, dtype=torch.float64)
        for log_rows, targets, _ in _log_rows(scores, *arguments):
            terms = terms - torch.where(targets > 0, targets * log_rows, 0.0).sum(1)
        # A copy: PyTorch 2.11 loses the gradient of a conversion that changes nothing.
        return terms.to(scores.dtype, copy=True)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, mask, order, _, _ = ctx.saved_tensors
        _, temperature = ctx.options
        row_tiles = _log_rows(*ctx.saved_tensors, *ctx.options)
        grad_direct = grad_distances = torch.zeros_like(scores, dtype=torch.float64)
        for log_rows, targets, rank_offsets in row_tiles:
            weighted = grad.double()[:, None, :] * targets
            grad_logits = log_rows.exp() * weighted.sum(-1, keepdim=True) - weighted
            grad_direct = grad_direct + (rank_offsets * grad_logits).sum(1)
            grad_distances = grad_distances - grad_logits.sum(1)
        through_distance = _absolute_differences_vjp(grad_distances, scores, mask, order)
        result = ((grad_direct + through_distance) / temperature).to(scores.dtype)
        return result, None, None, None, None, None, None


def _log_rows(
    scores: Tensor,
    mask: Tensor,
    order: Tensor,
    rank_groups: Tensor,
    item_groups: Tensor,
    k: int,
    temperature: float,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Tiles of a few rows, in float64.

    Yields:
        ``log P`` and ``P*``, ``[b, rows, n]``, and the rank offsets, ``[b, rows, 1]``.
    """
    scores64, (b, n) = scores.double(), scores.shape
    distances = _absolute_differences(scores64, mask, order)
    length = mask.sum(-1, keepdim=True)
    rank_offsets = (length - 1 - 2 * torch.arange(k, device=scores.device)).double()[:, :, None]
    padding = (~mask & (length > 0))[:, None, :]
    for rows in tiles(b * n // 2, k):
        logits = rank_offsets[:, rows] * scores64[:, None, :] - distances[:, None, :]
        logits = logits / temperature
        log_rows = logits.masked_fill(padding, float("-inf")).log_softmax(-1)
        same = rank_groups[:, rows, None] == item_groups[:, None, :]
        targets = same / same.sum(-1, keepdim=True).clamp(min=1).double()
        yield log_rows, targets, rank_offsets[:, rows]


def _absolute_differences(scores: Tensor, mask: Tensor, order: Tensor) -> Tensor:
    """``Σ_i |s_j - s_i| - |s_top - s_i|`` over the real items i, for each item j: ``[b, n]``.

    The softmax does not depend on the second term, with the highest score. From an item to the next
    one in the order of the scores, m items are above the gap between them and n - m below it, so
    the sum changes by ``2m - n`` times the gap. Tied items have exactly equal sums. On padding, it
    is 0.
    """
    inside = mask.gather(-1, order)
    ranked = scores.gather(-1, order)
    gaps = torch.where(inside[:, 1:], ranked[:, :-1] - ranked[:, 1:], 0.0)
    above = torch.arange(1, scores.shape[-1], device=scores.device)
    sums = ((2 * above - inside.sum(-1, keepdim=True)) * gaps).cumsum(-1)
    sums = torch.nn.functional.pad(sums, (1, 0))
    return (sums * inside).gather(-1, invert(order))


def _absolute_differences_vjp(grad: Tensor, scores: Tensor, mask: Tensor, order: Tensor) -> Tensor:
    """``Σ_i (g_j + g_i) sign(s_j - s_i)`` for each item j, ``[b, n]``; ties have the sign 0.

    The vector-Jacobian product of :func:`_absolute_differences` with the gradient g, which sums to
    0, as that of a softmax does: so the terms of the highest score cancel.
    """
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
    """The top k rows of P, ``[b, k, n]``. They are saved; the backward pass needs one more buffer.

    Logits are of the size n |s| and cancel near the maximum, so they are computed in float64 until
    the maximum is subtracted, a few rows at a time. Entries below 1e-30 (in float64, 1e-300) are
    set to zero: arithmetic with denormal numbers is slow.
    """

    @staticmethod
    def forward(scores: Tensor, mask: Tensor, k: int, temperature: float) -> Tensor:
        b, n = scores.shape
        scores64 = scores.double()
        order = descending(scores, mask)
        distances = _absolute_differences(scores64, mask, order)
        length = mask.sum(-1, keepdim=True)
        position = torch.arange(k, device=scores.device)
        rank_offsets = (length - 1.0 - 2.0 * position).double()
        # Rows past the list's end and columns of padding get logits of -infinity.
        past_end = (position >= length)[:, :, None]
        distances = torch.where(mask, distances, float("inf"))
        # About log(1e-30) and log(1e-300)
        floor = -69.0 if scores.dtype == torch.float32 else -690.0
        matrix = scores.new_empty(b, k, n)
        for rows in tiles(b * n, k):
            logits = torch.baddbmm(
                -distances[:, None, :], rank_offsets[:, rows, None], scores64[:, None, :]
            )
            shift = logits.amax(-1, keepdim=True).masked_fill_(past_end[:, rows], float("inf"))
            logits.sub_(shift).div_(temperature)
            tile = matrix[:, rows]
            tile.copy_(logits)
            tile.masked_fill_(tile < floor, float("-inf")).exp_()
            tile.div_(tile.sum(-1, keepdim=True).clamp(min=1e-30))
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
        rank_offsets = (mask.sum(-1, keepdim=True) - 1.0 - 2.0 * position).to(scores.dtype)
        product = grad * rows
        grad_logits = torch.addcmul(product, rows, product.sum(-1, keepdim=True), value=-1.0)
        # Two sums over rows in one product: weighted by the rank offsets, and by -1.
        by_item = torch.stack([rank_offsets, -torch.ones_like(rank_offsets)], 1) @ grad_logits
        grad_direct, grad_distances = by_item.double().unbind(1)
        through_distance = _absolute_differences_vjp(grad_distances, scores, mask, order)
        result = ((grad_direct + through_distance) / ctx.temperature).to(scores.dtype)
        return result, None, None, None
