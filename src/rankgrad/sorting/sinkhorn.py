"""Sinkhorn scaling: makes a relaxed permutation doubly stochastic, as in NeuralNDCG.

Its rows and columns are normalized in turn until both sum to one (Sinkhorn and Knopp 1967).
:mod:`rankgrad.sorting.optimal_transport` uses :func:`scale` and :func:`scale_and_sort`, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._autograd import ListFunction, differentiable_once
from rankgrad._shapes import Channels, Float, ItemMask, ItemValues, RankValues
from rankgrad._validation import check_flag, check_positive, check_whole
from rankgrad.kernels import KernelCall
from rankgrad.lists import is_unchecked
from rankgrad.sorting._base import Relaxation, as_base, relaxations
from rankgrad.sorting.neuralsort import NeuralSort

__all__ = ["Sinkhorn", "scale", "scale_and_sort"]


@relaxations.register("sinkhorn")
@dataclass(frozen=True)
class Sinkhorn(Relaxation):
    """A relaxed permutation P, its columns and rows normalized in turn until both sum to one.

    Pobrotyn and Białobrzeski §4.2 and footnote 2. The result is ``diag(u) P diag(v)``. P itself is
    never changed: iterations, forward and backward, compute the vectors u and v only. Each list
    stops when it has converged, so its result does not depend on the others in the batch.

    Args:
        base: the relaxation to scale.
        iterations: at most this many.
        tolerance: stop when every row and column sum of a list is this close to one.
        transposed: scale the transpose (Pobrotyn and Białobrzeski §4.3), so that the columns, an
            item's weights over the ranks, are normalized last.

    >>> P = Sinkhorn(NeuralSort(temperature=1.0))(torch.tensor([0.2, 0.9, 0.5]))
    >>> P.sum(0), P.sum(1)
    (tensor([1.0000, 1.0000, 1.0000]), tensor([1.0000, 1.0000, 1.0000]))
    """

    limit: ClassVar[dict[str, Any]] = {"base": NeuralSort(temperature=1e-5)}

    base: Relaxation = NeuralSort()
    iterations: int = 30
    tolerance: float = 1e-6
    transposed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_base(self.base))
        self.base._check_form("permutation")
        check_whole("iterations", self.iterations)
        check_positive("tolerance", self.tolerance)
        check_flag("transposed", self.transposed)

    @override
    def kernel(self) -> KernelCall | None:
        call = self.base.kernel() if self.base.kernel_applies else None
        if call is None or call.name != "neuralsort":
            return None
        scaling = (self.iterations, self.tolerance, self.transposed)
        return KernelCall("sinkhorn", (*call.options, *scaling))

    def _permutation(self, scores: ItemValues, mask: ItemMask, k: int) -> Float[Tensor, "b k n"]:
        matrix = self.base._permutation(scores, mask, scores.shape[-1])
        return scale(matrix, self.iterations, self.tolerance, self.transposed)[:, :k]

    def _sort(self, values: Channels, scores: ItemValues, mask: ItemMask, k: int) -> RankValues:
        matrix = self.base._permutation(scores, mask, scores.shape[-1])
        scaling = (self.iterations, self.tolerance, self.transposed)
        return scale_and_sort(matrix, values, *scaling)[:, :, :k]


def scale(
    matrix: Float[Tensor, "b n n"], iterations: int, tolerance: float, transposed: bool = False
) -> Float[Tensor, "b n n"]:
    """``diag(u) P diag(v)``, whose rows and columns sum to one.

    Rows and columns that are zero throughout, those of padding, are left alone.

    Args:
        matrix: the relaxed permutation P, ``[b, n, n]``.
        iterations: at most.
        tolerance: the largest deviation of a column sum from 1 at which scaling ends.
        transposed: whether the transpose is scaled.

    Returns:
        ``[b, n, n]``.
    """
    if transposed:
        v, u = _Scalings.apply(matrix.mT, iterations, tolerance)[:2]
    else:
        u, v = _Scalings.apply(matrix, iterations, tolerance)[:2]
    scaled: Tensor = u[:, :, None] * matrix * v[:, None, :]
    return scaled


def scale_and_sort(
    matrix: Float[Tensor, "b n n"],
    values: Float[Tensor, "b c n"],
    iterations: int,
    tolerance: float,
    transposed: bool = False,
) -> Float[Tensor, "b c n"]:
    """``diag(u) P diag(v)`` times the values, without making the scaled matrix or its gradient.

    Args:
        matrix: the relaxed permutation P, ``[b, n, n]``.
        values: ``[b, c, n]``, by item.
        iterations: at most.
        tolerance: the largest deviation of a column sum from 1 at which scaling ends.
        transposed: whether the transpose is scaled.

    Returns:
        ``[b, c, n]``, the values by rank.
    """
    result: Tensor = _ScaledProduct.apply(matrix, values, iterations, tolerance, transposed)[0]
    return result


class _Path(NamedTuple):
    """The vectors of every iteration: ``v = 1 / (Pᵀ u)``, then ``u = 1 / (P v)``.

    Columns come first, since P's rows sum to one already. Once a list has converged, its vectors
    no longer change.

    Attributes:
        us: ``[b, 1 + iterations, n]`` for the iterations that ran: u before the first
            iteration and after each.
        vs: ``[b, 1 + iterations, n]``, v likewise.
        active: ``[b, iterations]``, whether the iteration changed the list's vectors.
    """

    us: Tensor
    vs: Tensor
    active: Tensor

    @classmethod
    def of(cls, matrix: Tensor, iterations: int, tolerance: float) -> _Path:
        """Scale a matrix ``[b, n, n]``; ``iterations`` is the largest number of iterations."""
        u = (matrix.sum(-1) > 0).to(matrix.dtype)
        v = (matrix.sum(-2) > 0).to(matrix.dtype)
        active = torch.ones_like(u[:, :1], dtype=torch.bool)
        us, vs, actives = [u], [v], []
        for iteration in range(iterations):
            column_sums = _times(u, matrix)
            if iteration > 0:
                errors = torch.where(column_sums > 0, column_sums * v - 1, 0.0).abs()
                active = active & (errors.amax(-1, keepdim=True) >= tolerance)
                if not is_unchecked(matrix) and not active.any():
                    break
            v = torch.where(active, _reciprocal(column_sums), v)
            u = torch.where(active, _reciprocal(_times(v, matrix.mT)), u)
            us.append(u)
            vs.append(v)
            actives.append(active)
        return cls(torch.stack(us, 1), torch.stack(vs, 1), torch.cat(actives, 1))

    def last(self, transposed: bool = False) -> tuple[Tensor, Tensor]:
        """The last vectors, ``[b, n]``: that which scales P's rows, then that for its columns.

        With ``transposed``, the path is that of P's transpose.
        """
        u, v = self.us[:, -1], self.vs[:, -1]
        return (v, u) if transposed else (u, v)

    def adjoint(
        self, matrix: Tensor, grad_u: Tensor, grad_v: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The gradient with respect to P from those with respect to the last u and v, ``[b, n]``.

        It is a sum of two outer products for each iteration, from the last to the first. The left
        and the right factors of these products are returned, ``[b, n]`` each.
        """
        left, right = [], []
        for step in range(self.active.shape[1], 0, -1):
            active = self.active[:, step - 1, None]
            grad_row_sums = torch.where(active, -grad_u * self.us[:, step].square(), 0.0)
            grad_v = grad_v + _times(grad_row_sums, matrix)
            grad_column_sums = torch.where(active, -grad_v * self.vs[:, step].square(), 0.0)
            left += [grad_row_sums, self.us[:, step - 1]]
            right += [self.vs[:, step], grad_column_sums]
            grad_u = torch.where(active, _times(grad_column_sums, matrix.mT), grad_u)
            grad_v = torch.where(active, 0.0, grad_v)
        return left, right


class _Scalings(ListFunction):
    """The vectors u and v that scale a matrix P ``[b, n, n]``, differentiable with respect to P.

    The outputs are u and v, ``[b, n]``, and then the fields of :class:`_Path`.
    """

    @staticmethod
    def forward(matrix: Tensor, iterations: int, tolerance: float) -> tuple[Tensor, ...]:
        path = _Path.of(matrix, iterations, tolerance)
        return (*(vector.clone() for vector in path.last()), *path)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(inputs[0], *output[2:])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad_u: Tensor, grad_v: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        matrix, *path = ctx.saved_tensors
        left, right = _Path(*path).adjoint(matrix, grad_u, grad_v)
        return torch.stack(left, -1) @ torch.stack(right, -2), None, None


class _ScaledProduct(ListFunction):
    """``u ∘ (P (v ∘ values))``; the gradient with respect to P is one product of matrices.

    The outputs are this, ``[b, c, n]``, then ``P (v ∘ values)``, ``[b, c, n]``, and the fields of
    :class:`_Path`.
    """

    @staticmethod
    def forward(
        matrix: Tensor, values: Tensor, iterations: int, tolerance: float, transposed: bool
    ) -> tuple[Tensor, ...]:
        path = _Path.of(matrix.mT if transposed else matrix, iterations, tolerance)
        u, v = path.last(transposed)
        unscaled = (values * v[:, None, :]) @ matrix.mT
        return unscaled * u[:, None, :], unscaled, *path

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.transposed = inputs[-1]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[:2], *output[1:])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor, None, None, None]:
        matrix, values, unscaled, *vectors = ctx.saved_tensors
        path = _Path(*vectors)
        u, v = path.last(ctx.transposed)
        grad_unscaled = grad * u[:, None, :]
        grad_scaled_values = grad_unscaled @ matrix  # with respect to v ∘ values
        grad_u, grad_v = (grad * unscaled).sum(1), (grad_scaled_values * values).sum(1)
        if ctx.transposed:
            right, left = path.adjoint(matrix.mT, grad_v, grad_u)
        else:
            left, right = path.adjoint(matrix, grad_u, grad_v)
        left_factor = torch.cat([grad_unscaled.mT, torch.stack(left, -1)], -1)
        right_factor = torch.cat([values * v[:, None, :], torch.stack(right, -2)], -2)
        grad_values = grad_scaled_values * v[:, None, :]
        return left_factor @ right_factor, grad_values, None, None, None


def _times(vector: Tensor, matrix: Tensor) -> Tensor:
    """``vectorᵀ matrix`` for each list, ``[b, n]``."""
    return (vector[:, None, :] @ matrix).squeeze(1)


def _reciprocal(sums: Tensor) -> Tensor:
    """``1 / sums``, and 0 for sums of 0."""
    positive = sums > 0
    return torch.where(positive, 1.0 / torch.where(positive, sums, 1.0), 0.0)
