"""Muon, an optimizer of the studies that is not in the library; specs name it once imported."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankgrad.training._optimizers import Optimizer, optimizers


@optimizers.register("muon")
@dataclass(frozen=True, kw_only=True)
class Muon(Optimizer):
    """Orthogonalized momentum for weight matrices (Muon, Jordan et al. 2024), AdamW for the rest.

    With the momentum M of a matrix W ``[a, b]``, whose singular value decomposition is U Σ Vᵀ::

        W ← W - 0.2 √max(a, b) · rate · U Vᵀ

    The factor gives the step the size of AdamW's (Liu et al. 2025), so both take the same learning
    rate. Several matrices in one tensor ``[m, a, b]`` are orthogonalized one by one.

    Args:
        momentum: the factor of the previous momentum in the next one, of Nesterov's kind.
    """

    momentum: float = 0.95

    def _make(self, groups: list[dict[str, object]], rate: float) -> torch.optim.Optimizer:
        return _MuonAdamW(groups, lr=rate, momentum=self.momentum)


class _MuonAdamW(torch.optim.AdamW):
    """:class:`Muon`'s steps for matrices and fused AdamW's for all other parameters."""

    def __init__(self, groups: list[dict[str, object]], lr: float, momentum: float) -> None:
        super().__init__(groups, lr=lr, fused=True)
        self.momentum = momentum

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update all parameters; the gradients of matrices are None then."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and min((1, 1, *parameter.shape)[-2:]) > 1:
                    self._update(parameter, group["lr"], group["weight_decay"])
                    parameter.grad = None
        super().step()

    def _update(self, matrix: Tensor, rate: float, decay: float) -> None:
        gradient, state = matrix.grad, self.state[matrix]
        assert gradient is not None
        buffer = state.setdefault("momentum_buffer", torch.zeros_like(matrix))
        buffer.lerp_(gradient, 1 - self.momentum)
        step = orthogonalized(gradient.lerp(buffer, self.momentum))
        size = 0.2 * math.sqrt(max(matrix.shape[-2:]))
        matrix.mul_(1 - rate * decay).sub_(step, alpha=size * rate)


def orthogonalized(matrix: Tensor) -> Tensor:
    """Nearly U Vᵀ for a matrix U Σ Vᵀ ``[..., a, b]``, by five Newton-Schulz iterations.

    The coefficients are those of Jordan et al. (2024): singular values end between 0.7 and 1.2.
    """
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if is_tall else matrix
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if is_tall else x
