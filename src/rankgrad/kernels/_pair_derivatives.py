"""Gradient and Hessian diagonal of pairwise losses in one pass, by a backend kernel.

The eager form is :meth:`rankgrad.losses.pairwise.PairwiseLoss.derivatives`.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

#: The longest list that the GPU kernel sorts within one program.
MAX_LENGTH_ON_GPU = 2048


class PairConfig(NamedTuple):
    """Which pairs count, and their weights.

    Attributes:
        kind: ``ranknet``, ``hinge``, ``lambdarank``, ``ndcg_loss1``, ``ndcg_loss2`` or
            ``ndcg_loss2++``.
        k: the cutoff, 0 for none.
        sigma: the steepness of logistic pairs; the margin of hinge.
        linear: gains are labels, not ``2^y - 1``.
        heuristic: truncation as in LambdaLoss@K's eq. 15, not as in eqs. 16 and 17.
        mu: μ of ndcg_loss2++.
        half: ranknet also counts pairs of equal labels, with a target of one half.
        norm: lambdarank is normalized as in LightGBM.
    """

    kind: str
    k: int
    sigma: float
    linear: bool = False
    heuristic: bool = False
    mu: float = 0.0
    half: bool = False
    norm: bool = False


def declared_by(cls: type, method: str) -> bool:
    """Whether a class overrides nothing of the base that defines ``method``.

    If so, it computes what that base computes.

    >>> from rankgrad.kernels._pair_derivatives import declared_by
    >>> class Steeper(losses.RankNet):
    ...     def term(self, differences):
    ...         return super().term(3 * differences)
    >>> declared_by(losses.RankNet, "newton_kernel"), declared_by(Steeper, "newton_kernel")
    (True, False)
    """
    return _declared_by(cls, method)


@functools.cache
def _declared_by(cls: Hashable, method: str) -> bool:
    assert isinstance(cls, type)
    base = next(one for one in cls.__mro__ if method in vars(one))
    described = {"name", "spec", "kernel_applies"}
    return all(
        inspect.getattr_static(cls, name) is inspect.getattr_static(base, name)
        for name in dir(base)
        if not name.startswith("__") and name not in described
    )


def usable(scores: Tensor, config: PairConfig, max_length: int) -> bool:
    """Whether there is a kernel for these scores and :func:`kernels.use` allows it."""
    from rankgrad.kernels import mode

    if mode() == "eager" or scores.device.type not in ("cpu", "cuda"):
        return False
    if scores.device.type == "cpu":
        return importlib.util.find_spec("numba") is not None
    lambdas = config.kind in ("lambdarank", "ndcg_loss2", "ndcg_loss2++")
    fits = scores.dtype == torch.float32 and max_length <= MAX_LENGTH_ON_GPU
    return lambdas and fits and importlib.util.find_spec("triton") is not None


def compute(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    offsets: Tensor,
    max_length: int,
    config: PairConfig,
) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian diagonal of every list's value, ``[N]`` each.

    Args:
        scores: ``[N]``, finite.
        labels: ``[N]``.
        weights: ``[N]`` or None; a pair is multiplied by the weight of its preferred item.
        offsets: ``[B + 1]``.
        max_length: an upper bound of list lengths.
        config: which pairs count, and their weights.
    """
    if scores.is_cuda:
        from rankgrad.kernels.gpu._pair_derivatives import pair_derivatives as on_gpu

        return on_gpu(scores, labels, weights, offsets, max_length, config)
    from rankgrad.kernels.cpu._pair_derivatives import pair_derivatives as on_cpu

    return on_cpu(scores, labels, weights, offsets, max_length, config)
