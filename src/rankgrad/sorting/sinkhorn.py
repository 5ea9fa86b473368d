"""Sinkhorn scaling: any relaxed permutation made doubly stochastic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankgrad.lists import check_positive
from rankgrad.sorting.base import Relaxation, as_relaxation, relaxations
from rankgrad.sorting.neuralsort import NeuralSort


@relaxations.register("sinkhorn")
@dataclass(frozen=True)
class Sinkhorn(Relaxation):
    """Columns and rows of a relaxed permutation, normalised in turn until both sum to one.

    neuralndcg §4.2 and footnote 2. ``P`` is never rewritten: the result is ``diag(u) P diag(v)``,
    and the iteration, forward and backward, runs on the vectors. Each list stops by itself, so its
    result does not depend on the others in the batch.

    Args:
        base: the relaxation to scale.
        iterations: at most so many.
        tolerance: stop when every row and column sum of a list is this close to one.
        transposed: scale the transpose (neuralndcg §4.3), so that it is the columns, the weights of
            an item's ranks, that are normalised last.

    >>> P = Sinkhorn(NeuralSort(temperature=1.0))(torch.tensor([0.2, 0.9, 0.5]))
    >>> P.sum(0), P.sum(1)
    (tensor([1.0000, 1.0000, 1.0000]), tensor([1.0000, 1.0000, 1.0000]))
    """

    name: ClassVar[str] = "sinkhorn"
    limit: ClassVar[dict[str, Any]] = {"base": NeuralSort(temperature=1e-5)}

    base: Relaxation = NeuralSort()
    iterations: int = 30
    tolerance: float = 1e-6
    transposed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_relaxation(self.base))
        self.base._require("permutation")
        check_positive("iterations", self.iterations)
        check_positive("tolerance", self.tolerance)

    def _permutation(
        self, scores: Float[Tensor, "b n"], mask: Bool[Tensor, "b n"], k: int
    ) -> Float[Tensor, "b k n"]:
        matrix, rows, columns = self._scaled(scores, mask)
        return rows[:, :k, None] * matrix[:, :k] * columns[:, None, :]

    def _sort(
        self,
        values: Float[Tensor, "b c n"],
        scores: Float[Tensor, "b n"],
        mask: Bool[Tensor, "b n"],
        k: int,
    ) -> Float[Tensor, "b c k"]:
        matrix, rows, columns = self._scaled(scores, mask)
        return (values * columns[:, None, :]) @ matrix[:, :k].mT * rows[:, None, :k]

    def _scaled(self, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        matrix = self.base._permutation(scores, mask, scores.shape[-1])
        return matrix, *scalings(matrix, self.iterations, self.tolerance, self.transposed)


def scalings(
    matrix: Float[Tensor, "b n n"], iterations: int, tolerance: float, transposed: bool = False
) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
    """The vectors u, v for which the rows and columns of ``diag(u) P diag(v)`` sum to one.

    Rows and columns that are zero throughout, those of padding, are left alone.
    """
    u: Tensor
    v: Tensor
    if transposed:
        v, u = _Scalings.apply(matrix.mT, iterations, tolerance)
    else:
        u, v = _Scalings.apply(matrix, iterations, tolerance)
    return u, v


class _Scalings(torch.autograd.Function):
    """``v = 1 / (Pᵀ u)``, ``u = 1 / (P v)``, repeated; columns first, since P's rows sum to one.

    Backward runs the same scalings in reverse; the gradient of P is a sum of outer products, two
    for each iteration, gathered as one matrix product.
    """

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, iterations: int, tolerance: float
    ) -> tuple[Tensor, Tensor]:
        occupied = matrix.sum(-1) > 0
        u, v = occupied.to(matrix.dtype), (matrix.sum(-2) > 0).to(matrix.dtype)
        active = torch.ones_like(u[:, :1], dtype=torch.bool)
        us, vs, actives = [u], [v], []
        for iteration in range(iterations):
            columns = _times(u, matrix)
            if iteration > 0:
                off = torch.where(columns > 0, columns * v - 1, 0.0).abs().amax(-1, keepdim=True)
                active = active & (off >= tolerance)
                if not active.any():
                    break
            v = torch.where(active, _reciprocal(columns), v)
            u = torch.where(active, _reciprocal(_times(v, matrix.mT)), u)
            us.append(u)
            vs.append(v)
            actives.append(active)
        ctx.steps = len(actives)
        ctx.save_for_backward(matrix, *us, *vs, *actives)
        return u, v

    @staticmethod
    def backward(ctx: Any, grad_u: Tensor, grad_v: Tensor) -> tuple[Tensor, None, None]:
        matrix, *saved = ctx.saved_tensors
        us, vs, actives = (
            saved[: ctx.steps + 1],
            saved[ctx.steps + 1 : -ctx.steps],
            saved[-ctx.steps :],
        )
        left, right = [], []
        for step in range(ctx.steps, 0, -1):
            active = actives[step - 1]
            rows = torch.where(active, -grad_u * us[step].square(), 0.0)
            grad_v = grad_v + _times(rows, matrix)
            columns = torch.where(active, -grad_v * vs[step].square(), 0.0)
            left += [rows, us[step - 1]]
            right += [vs[step], columns]
            grad_u = torch.where(active, _times(columns, matrix.mT), grad_u)
            grad_v = torch.where(active, 0.0, grad_v)
        return torch.stack(left, -1) @ torch.stack(right, -2), None, None


def _times(vector: Tensor, matrix: Tensor) -> Tensor:
    return (vector[:, None, :] @ matrix).squeeze(1)


def _reciprocal(sums: Tensor) -> Tensor:
    above = sums > 0
    return torch.where(above, 1.0 / torch.where(above, sums, 1.0), 0.0)
