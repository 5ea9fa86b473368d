"""The base class of relaxations: scores in, a relaxed permutation or relaxed ranks out.

The other modules of this package define the relaxations. The methods are in three layers:

- Users call the object itself, ``permutation`` or ``ranks``, on scores of any shape ``[..., n]``.
  They check the scores.
- Relaxed metrics (:meth:`rankgrad.metrics.Metric.relax`) call ``sort`` and ``rank`` on scores
  ``[b, n]`` that are checked already. They use a backend kernel where there is one.
- Subclasses implement the eager form, in ``_permutation``, ``_ranks`` and ``_sort``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from rankgrad._quoting import value_error
from rankgrad._shapes import Channels, Float, ItemMask, ItemValues, Mask, RankValues, Scores
from rankgrad._validation import Schedule, check_cutoff
from rankgrad.kernels import DeclaresKernel, KernelCall, _operators
from rankgrad.lists import as_scores, check_mask, is_unchecked
from rankgrad.specs import HasSpec, Registry

relaxations: Registry[Relaxation] = Registry("relaxation")

#: What a relaxation gives.
Form = Literal["permutation", "ranks"]


@dataclass(frozen=True)
class Relaxation(HasSpec, DeclaresKernel):
    """A relaxation of sorting in descending order.

    A call gives its native form, the first of ``forms``:

    - ``"permutation"``: ``P [..., k, n]``; row r is a distribution over the items for rank r. Rows
      past the end of a list and columns of padding are zero.
    - ``"ranks"``: ``[..., n]``, 1-based; 0 on padding.

    A subclass implements ``_permutation`` or ``_ranks`` on scores ``[b, n]``. If it can sort values
    without the whole permutation, it implements ``_sort``, too. It sets ``limit`` to options with
    which it is close to its zero-temperature limit, the exact sort.

    >>> softsort = relaxations.get("softsort(temperature=0.1)")
    >>> softsort.ranks(torch.tensor([0.2, 0.9, 0.5])).round().tolist()
    [3.0, 1.0, 2.0]
    """

    limit: ClassVar[dict[str, Any]]
    #: Whether it adds noise to the scores.
    stochastic: ClassVar[bool] = False

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms it comes in, the native one first."""
        return ("permutation", "ranks")

    def __call__(
        self, scores: Scores, mask: Mask | None = None, k: int | None = None
    ) -> Float[Tensor, "*out"]:
        """The native form of the relaxation on these scores.

        Args:
            scores: ``[..., n]``.
            mask: ``[..., n]``, True on real items.
            k: the number of rows of a permutation; all, if None.

        Returns:
            ``P [..., k, n]``, or ranks ``[..., n]``.

        Raises:
            ValueError: a score is not finite, or shapes do not agree.
        """
        check_cutoff(k)
        if self.forms[0] == "ranks":
            return self.ranks(scores, mask)
        return self.permutation(scores, mask, k)

    def permutation(
        self, scores: Scores, mask: Mask | None = None, k: int | None = None
    ) -> Float[Tensor, "*b k n"]:
        """The first ``k`` rows (all, if None) of the relaxed permutation, ``P [..., k, n]``.

        Args:
            scores: ``[..., n]``.
            mask: ``[..., n]``, True on real items; None if all are.
            k: the number of rows; all, if None. Rows past n are 0.

        Returns:
            ``P [..., k, n]``.

        Raises:
            ValueError: the relaxation gives no permutation, ``k`` is not valid, a score is not
                finite, or shapes do not agree.
        """
        self._check_form("permutation")
        scores, mask, batch = check_scores(scores, mask)
        n = scores.shape[-1]
        rows = check_cutoff(k) or n
        with torch.autocast(scores.device.type, enabled=False):
            if n:
                permutation = self._permutation(scores, mask, min(rows, n))
            else:  # an empty [b, 0, 0] that is attached to the graph of the scores
                permutation = scores[:, None] * scores[..., None]
        if rows > n:
            permutation = torch.nn.functional.pad(permutation, (0, 0, 0, rows - n))
        return permutation.reshape(*batch, rows, n)

    def ranks(self, scores: Scores, mask: Mask | None = None) -> Float[Tensor, "*b n"]:
        """The relaxed rank of every item, ``[..., n]``.

        Args:
            scores: ``[..., n]``.
            mask: ``[..., n]``, True on real items; None if all are.

        Returns:
            The ranks; they count from 1, at the highest score.

        Raises:
            ValueError: the relaxation gives no ranks, a score is not finite, or shapes do not
                agree.
        """
        self._check_form("ranks")
        scores, mask, batch = check_scores(scores, mask)
        with torch.autocast(scores.device.type, enabled=False):
            ranks = self._ranks(scores, mask) if scores.shape[-1] else scores
        return ranks.reshape(*batch, scores.shape[-1])

    def sort(self, values: Channels, scores: ItemValues, mask: ItemMask, k: int) -> RankValues:
        """Values of the items, such as gains or labels, sorted by the scores: ``values @ P[:k].T``.

        Args:
            values: ``[b, c, n]``, c values of each item.
            scores: ``[b, n]``.
            mask: ``[b, n]``, True on real items.
            k: the number of ranks.

        Returns:
            The values by rank, ``[b, c, k]``.
        """
        self._check_form("permutation")
        if not values.requires_grad:  # kernels do not differentiate values
            kernel = self.kernel() if self.kernel_applies else None
            if kernel is not None and _operators.sort_ready(kernel, scores):
                return _operators.sort(kernel, values, scores, mask, k)
        return self._sort(values, scores, mask, k)

    def rank(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        """The relaxed ranks ``[b, n]`` of scores ``[b, n]`` that are checked, for metrics.

        No noise is added: for a stochastic relaxation, the scores are from :meth:`sample_scores`.

        Args:
            scores: ``[b, n]``.
            mask: ``[b, n]``, True on real items.

        Returns:
            ``[b, n]``.
        """
        self._check_form("ranks")
        kernel = self.kernel() if self.kernel_applies else None
        if kernel is not None and _operators.ranks_ready(kernel, scores):
            return _operators.rank(kernel, scores, mask)
        return self._ranks(scores, mask)

    def sample_scores(self, scores: ItemValues, mask: ItemMask) -> Float[Tensor, "samples b n"]:
        """The scores to sort, ``[samples, b, n]``.

        A stochastic relaxation gives noisy samples of the scores, others the scores as one sample.

        Args:
            scores: ``[b, n]``.
            mask: ``[b, n]``, True on real items.

        Returns:
            ``[samples, b, n]``.
        """
        return scores[None]

    def kernel(self) -> KernelCall | None:
        """The kernel of this relaxation, by its name in :mod:`rankgrad.kernels._operators`.

        The kernel computes what the methods of this class do. So if a subclass overrides one of
        them without overriding ``kernel``, too, it gets the eager form (``kernel_applies``).

        Returns:
            The kernel with its options; None for the eager form.
        """
        return None

    def at(self, progress: float) -> Self:
        """The same relaxation with every schedule at its value for this training progress.

        Args:
            progress: of training, from 0 to 1.

        Returns:
            The relaxation; the same object if nothing in it follows a schedule.
        """
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Schedule | Relaxation):
                now = value.at(progress)
                if now is not value:
                    changes[field.name] = now
        return replace(self, **changes) if changes else self

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        raise TypeError(f"{type(self).__name__} gives {self.forms[0]}, not a permutation")

    def _ranks(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        return expected_ranks(self._permutation(scores, mask, scores.shape[-1]), mask)

    def _sort(self, values: Channels, scores: ItemValues, mask: ItemMask, k: int) -> RankValues:
        return values @ self._permutation(scores, mask, k).mT

    def _check_form(self, form: Form) -> None:
        if form not in self.forms:
            raise ValueError(f"{self} gives {' and '.join(self.forms)}, not {form}")


relaxations.base_class = Relaxation


def expected_ranks(permutation: Float[Tensor, "b n n"], mask: ItemMask) -> ItemValues:
    """The mean rank of each item j, ``Σ_r r P_rj / Σ_r P_rj``, ``[b, n]``; 0 on padding.

    Each mean includes the last rank with a tiny weight, so an item whose column underflows to 0
    gets the last rank.
    """
    ranks = torch.arange(1, permutation.shape[-1] + 1, device=permutation.device).to(permutation)
    last_rank, tiny = mask.sum(-1, keepdim=True), 1e-12
    means = (ranks @ permutation + tiny * last_rank) / (permutation.sum(-2) + tiny)
    return torch.where(mask, means, 0.0)


def as_base(value: Any) -> Relaxation:
    """The ``base`` of a relaxation that wraps another one, from its spec or as it is.

    A base must not be stochastic: only the outermost relaxation may add noise.
    """
    base = relaxations.get(value)
    if base.stochastic:
        raise ValueError(f"put gumbel outside: {base} cannot stand inside another relaxation")
    return base


def check_scores(scores: Any, mask: Any) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Scores and mask ``[..., n]`` as ``[b, n]``, with scores of 0 on padding, and the batch shape.

    Scores whose values cannot be read now, as in compiled code, pass unchecked.

    Raises:
        ValueError: a score of a real item is not finite, or shapes do not agree.
    """
    scores = as_scores(scores)
    mask = check_mask(mask, scores)
    bad = ~scores.isfinite() & mask
    if not is_unchecked(scores) and bool(bad.any()):
        raise value_error("scores", scores, bad, "scores must be finite")
    scores = torch.where(mask, scores, scores.new_zeros(()))
    n, batch = scores.shape[-1], tuple(scores.shape[:-1])
    b = math.prod(batch)
    return scores.reshape(b, n), mask.reshape(b, n), batch
