"""Fast soft sorting and ranking (Blondel et al. 2020): projection onto the permutahedron.

The permutahedron of w is the convex hull of all orders of w. A projection onto it takes one sort
and one isotonic regression, O(n log n); it is piecewise smooth and has exact gradients.
:mod:`rankgrad.kernels._isotonic` computes the regression.

Below, the *anchors* z are the vector that is projected, and the *weights* w span the permutahedron.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._padded import descending as descending_order
from rankgrad._padded import invert
from rankgrad._shapes import Bool, Float, Int, ItemMask, ItemValues
from rankgrad._validation import (
    Schedule,
    check_choice,
    check_temperature,
    check_whole,
    initial_value,
    set_temperature,
)
from rankgrad.kernels import KernelCall
from rankgrad.kernels._isotonic import block_sums, pool
from rankgrad.sorting._base import Form, Relaxation, check_scores, relaxations

__all__ = ["FastSort", "soft_rank", "soft_sort", "soft_topk_mask"]

_Regularization = Literal["l2", "entropic", "kl"]
_REGULARIZATIONS: tuple[_Regularization, ...] = get_args(_Regularization)


@relaxations.register("fastsort")
@dataclass(frozen=True)
class FastSort(Relaxation):
    """Soft ranks: the projection of ``-s / strength`` onto the permutahedron of 1..n.

    Blondel et al. 2020, eq. 6. ``"l2"`` is the Euclidean projection, ``"entropic"`` the projection
    of ``exp(-s / strength)`` in Kullback-Leibler divergence. At strength → 0 it is the exact rank.
    For l2, a strength above 0 exists below which it is exact.

    Args:
        strength: of the regularization, > 0, or a schedule.
        regularization: ``"l2"``, or ``"entropic"``, which torchsort calls ``"kl"``.

    >>> FastSort(strength=1.0)(torch.tensor([0.2, 0.9, 0.5]))
    tensor([2.3333, 1.6333, 2.0333])
    """

    limit: ClassVar[dict[str, Any]] = {"strength": 1e-5}
    forms: ClassVar[tuple[Form, ...]] = ("ranks",)

    strength: float | Schedule = 1.0
    regularization: _Regularization = "l2"

    def __post_init__(self) -> None:
        set_temperature(self, "strength")
        check_choice("regularization", self.regularization, _REGULARIZATIONS)

    @override
    def kernel(self) -> KernelCall | None:
        entropic = self.regularization != "l2"
        return KernelCall("fastsort", (initial_value(self.strength), entropic))

    def _ranks(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        ranks = _soft_ranks(
            -scores.double() / initial_value(self.strength), mask, self.regularization
        )
        return ranks.to(scores.dtype)


def soft_rank(
    values: Float[Tensor, "*b n"],
    regularization: _Regularization = "l2",
    regularization_strength: float = 1.0,
    *,
    descending: bool = False,
    mask: Bool[Tensor, "*b n"] | None = None,
) -> Float[Tensor, "*b n"]:
    """Soft ranks of the values; as in torchsort, rank 1 is the smallest unless ``descending``.

    Args:
        values: ``[..., n]``.
        regularization: ``"l2"``, or ``"entropic"``, which torchsort calls ``"kl"``.
        regularization_strength: above 0; the smaller, the closer to the exact ranks.
        descending: whether rank 1 is the largest value.
        mask: ``[..., n]``, True on real items.

    Returns:
        ``[..., n]``, 0 on padding.

    >>> soft_rank(torch.tensor([8.0, 0, 5, 3, 2, 1, 6, 7, 9]))
    tensor([8., 1., 5., 4., 3., 2., 6., 7., 9.])
    """
    values, mask, shape, dtype = _check(values, regularization, regularization_strength, mask)
    sign = -1.0 if descending else 1.0
    ranks = _soft_ranks(sign * values / regularization_strength, mask, regularization)
    return ranks.to(dtype).reshape(shape)


def soft_sort(
    values: Float[Tensor, "*b n"],
    regularization: _Regularization = "l2",
    regularization_strength: float = 1.0,
    *,
    descending: bool = False,
    mask: Bool[Tensor, "*b n"] | None = None,
) -> Float[Tensor, "*b n"]:
    """Softly sorted values; as in torchsort, ascending unless ``descending``. Padding goes last.

    The projection of ``(n, ..., 1) / strength`` onto the permutahedron of the values
    (Blondel et al. 2020, eq. 5). ``"entropic"`` is the logarithm of the projection of
    ``exp((n, ..., 1) / strength)`` onto the permutahedron of ``exp(values)``, in Kullback-Leibler
    divergence. For the ascending order, values are negated before and after the projection.

    Args:
        values: ``[..., n]``.
        regularization: ``"l2"``, or ``"entropic"``, which torchsort calls ``"kl"``.
        regularization_strength: above 0; the smaller, the closer to the exact sort.
        descending: whether the largest value comes first.
        mask: ``[..., n]``, True on real items.

    Returns:
        ``[..., n]``, padding last and 0.

    >>> soft_sort(torch.tensor([5.0, 1.0, 2.0]))
    tensor([1.6667, 2.6667, 3.6667])
    """
    values, mask, shape, dtype = _check(values, regularization, regularization_strength, mask)
    sign = 1.0 if descending else -1.0
    order = descending_order(sign * values, mask)
    sorted_mask = mask.gather(-1, order)
    weights = (sign * values).gather(-1, order)
    anchors = _descending_ranks(sorted_mask).to(values.dtype) / regularization_strength
    # Not _project, which takes the exponential of the entropic projection.
    project = _project_l2 if regularization == "l2" else _project_entropic
    result = sign * project(anchors, weights, sorted_mask)
    return torch.where(sorted_mask, result, 0.0).to(dtype).reshape(shape)


def soft_topk_mask(
    values: Float[Tensor, "*b n"],
    k: int,
    regularization: _Regularization = "l2",
    regularization_strength: float = 1.0,
    *,
    mask: Bool[Tensor, "*b n"] | None = None,
) -> Float[Tensor, "*b n"]:
    """A relaxed indicator of the k largest values: numbers in [0, 1] that sum to k, or n if less.

    The projection of ``values / strength`` onto the permutahedron of k ones and n - k zeros.

    Args:
        values: ``[..., n]``.
        k: how many values the indicator selects.
        regularization: ``"l2"``, or ``"entropic"``, which torchsort calls ``"kl"``.
        regularization_strength: above 0; the smaller, the closer to the exact indicator.
        mask: ``[..., n]``, True on real items.

    Returns:
        ``[..., n]``, 0 on padding.

    >>> soft_topk_mask(torch.tensor([3.0, 0.0, 1.5, 1.0]), k=2, regularization_strength=1.0)
    tensor([1.0000, 0.0000, 0.7500, 0.2500])
    """
    k = check_whole("k", k)
    values, mask, shape, dtype = _check(values, regularization, regularization_strength, mask)
    order = descending_order(values, mask)
    sorted_mask = mask.gather(-1, order)
    ones = (torch.arange(values.shape[-1], device=values.device) < k) & sorted_mask
    anchors = values.gather(-1, order) / regularization_strength
    result = _project(anchors, ones.to(values.dtype), sorted_mask, regularization)
    return result.gather(-1, invert(order)).to(dtype).reshape(shape)


def _check(
    values: Any, regularization: str, strength: float, mask: Tensor | None
) -> tuple[Tensor, Tensor, tuple[int, ...], torch.dtype]:
    """Check the arguments of a soft sort or ranking, and reshape values and mask to ``[b, n]``.

    Values become float64: projections subtract numbers of the size of ``values / strength``, in
    which float32 would lose digits.

    Returns:
        The values, the mask, and the shape and the dtype of the result.
    """
    check_choice("regularization", regularization, _REGULARIZATIONS)
    check_temperature("regularization_strength", strength)
    values, mask, batch = check_scores(values, mask)
    return values.double(), mask, (*batch, values.shape[-1]), values.dtype


def _soft_ranks(anchors: Tensor, mask: Tensor, regularization: _Regularization) -> Tensor:
    """Project the anchors ``[b, n]`` onto the permutahedron of 1..n of each list; 0 on padding."""
    order = descending_order(anchors, mask)
    sorted_mask = mask.gather(-1, order)
    weights = _descending_ranks(sorted_mask).to(anchors.dtype)
    projected = _project(anchors.gather(-1, order), weights, sorted_mask, regularization)
    return projected.gather(-1, invert(order))


def _descending_ranks(sorted_mask: ItemMask) -> Int[Tensor, "b n"]:
    """n, n - 1, ..., 1 for each list of n items, and 1, whose logarithm is finite, on padding.

    ``sorted_mask`` is True on the n real items, which come first.
    """
    position = torch.arange(sorted_mask.shape[-1], device=sorted_mask.device)
    return (sorted_mask.sum(-1, keepdim=True) - position).clamp(min=1)


def _project(
    anchors: Tensor, weights: Tensor, sorted_mask: Tensor, regularization: _Regularization
) -> Tensor:
    """The projection of the anchors onto the permutahedron of the weights; 0 on padding.

    All are ``[b, n]``. Anchors and weights are in descending order; ``sorted_mask`` is True on real
    items, which come first.
    """
    if regularization == "l2":
        projected = _project_l2(anchors, weights, sorted_mask)
    else:
        projected = _project_entropic(anchors, weights.log(), sorted_mask).exp()
    return torch.where(sorted_mask, projected, 0.0)


def _project_l2(anchors: Tensor, weights: Tensor, sorted_mask: Tensor) -> Tensor:
    """``z - v``, where v is the decreasing isotonic regression of ``z - w``.

    On each block of the regression, v is the mean of ``z - w``. The first z of each block is
    subtracted from the others. This does not change ``z - v``, and where z is large, ``z - w``
    keeps the digits of w.
    """
    block_starts = pool(anchors, weights, sorted_mask.sum(-1), entropic=False)
    sizes = block_sums(torch.ones_like(anchors), block_starts)
    distances = anchors - anchors.gather(-1, block_starts)
    return distances - block_sums(distances - weights, block_starts) / sizes


def _project_entropic(anchors: Tensor, weights: Tensor, sorted_mask: Tensor) -> Tensor:
    """``z - v``, where ``v = LSE(z) - LSE(w)`` (log-sum-exp) on each block.

    This is the logarithm of the projection of ``exp(z)`` onto the permutahedron of ``exp(w)``.
    """
    block_starts = pool(anchors, weights, sorted_mask.sum(-1), entropic=True)
    distances = anchors - anchors.gather(-1, block_starts)  # as in _project_l2
    largest = weights.detach().gather(-1, block_starts)
    shift = torch.where(largest.isfinite(), largest, 0.0)  # a weight may be log 0
    log_total = block_sums((weights - shift).exp(), block_starts).log() + shift
    return distances - block_sums(distances.exp(), block_starts).log() + log_total
