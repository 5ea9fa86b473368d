"""LapSum (Struski et al. 2025): soft ranks in one sort and two scans, for lists of any length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from rankgrad._autograd import ListFunction, differentiable_once
from rankgrad._padded import descending, invert
from rankgrad._shapes import Float, Int, ItemMask, ItemValues
from rankgrad._validation import Schedule, initial_value, set_temperature
from rankgrad.kernels import KernelCall
from rankgrad.sorting._base import Form, Relaxation, relaxations


@relaxations.register("lapsum")
@dataclass(frozen=True)
class LapSum(Relaxation):
    """``rank_i = 1/2 + Σ_j F((s_j - s_i) / τ)`` with F the Laplace distribution function.

    F is ``exp(x) / 2`` for x ≤ 0 and ``1 - exp(-x) / 2`` above. The sums of exponentials over the
    items above, and over those below, follow a linear recurrence in sorted order, so ranks and
    gradients cost O(n log n) time and O(n) memory. At τ → 0 it is the exact rank.

    Args:
        temperature: τ > 0, or a schedule.

    >>> LapSum(temperature=0.1)(torch.tensor([0.2, 0.9, 0.5]))
    tensor([2.9747, 1.0096, 2.0157])
    """

    limit: ClassVar[dict[str, Any]] = {"temperature": 1e-5}
    forms: ClassVar[tuple[Form, ...]] = ("ranks",)

    temperature: float | Schedule = 1.0

    def __post_init__(self) -> None:
        set_temperature(self, "temperature")

    @override
    def kernel(self) -> KernelCall | None:
        return KernelCall("lapsum", (initial_value(self.temperature),))

    def _ranks(self, scores: ItemValues, mask: ItemMask) -> ItemValues:
        ranks: Tensor = _Ranks.apply(scores / initial_value(self.temperature), mask)
        return ranks


class _Ranks(ListFunction):
    """Ranks ``[b, n]`` as sums of Laplace distribution functions, of scores divided by τ.

    With A_i and B_i the sums of ``exp(-|s_i - s_j|)`` over the items above and below, the i-th
    largest item has rank ``i - A_i / 2 + B_i / 2``. With g the gradient with respect to the ranks,
    the gradient with respect to s_i is ``Σ_{j≠i} (g_j - g_i) exp(-|s_i - s_j|) / 2``.
    """

    @staticmethod
    def forward(scores: Tensor, mask: Tensor) -> Tensor:
        order, inside, differences = _sorted(scores, mask)
        above, below = _one_sided(inside.to(scores.dtype), differences)
        positions = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        ranks = torch.where(inside, positions + (below - above) / 2, 0.0)
        return ranks.gather(-1, invert(order)).to(scores.dtype)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        order, inside, differences = _sorted(*ctx.saved_tensors)
        sorted_grad = torch.where(inside, grad.gather(-1, order), 0.0)
        above, below = _one_sided(sorted_grad, differences)
        kernel_sums = sum(_one_sided(inside.to(grad.dtype), differences))
        result = torch.where(inside, (above + below - sorted_grad * kernel_sums) / 2, 0.0)
        return result.gather(-1, invert(order)), None


def _sorted(
    scores: ItemValues, mask: ItemMask
) -> tuple[Int[Tensor, "b n"], ItemMask, Float[Tensor, "b m"]]:
    """The descending order, the mask in that order, and the differences of neighboring scores.

    There are m = n - 1 differences: each score minus the next lower one, 0 on padding.
    """
    order = descending(scores, mask)
    inside = mask.gather(-1, order)
    ranked = scores.gather(-1, order)
    return order, inside, torch.where(inside[:, 1:], ranked[:, :-1] - ranked[:, 1:], 0.0)


def _one_sided(
    weights: ItemValues, differences: Float[Tensor, "b m"]
) -> tuple[ItemValues, ItemValues]:
    """``Σ_{j<i}`` and ``Σ_{j>i}`` of ``w_j exp(-|s_i - s_j|)`` over sorted scores."""
    decay = torch.exp(-differences)
    above = _scan(decay, decay * weights[:, :-1])
    flipped = decay.flip(-1)
    below = _scan(flipped, flipped * weights.flip(-1)[:, :-1]).flip(-1)
    pad = torch.nn.functional.pad
    return pad(above, (1, 0)), pad(below, (0, 1))


def _scan(decay: Float[Tensor, "b m"], inflow: Float[Tensor, "b m"]) -> Float[Tensor, "b m"]:
    """Solve ``x_i = decay_i x_{i-1} + inflow_i`` by doubling: log2 m steps, each over all items."""
    step = 1
    while step < inflow.shape[-1]:
        carried = torch.zeros_like(inflow)
        carried[:, step:] = decay[:, step:] * inflow[:, :-step]
        product = torch.zeros_like(decay)
        product[:, step:] = decay[:, step:] * decay[:, :-step]
        inflow, decay = inflow + carried, product
        step *= 2
    return inflow
