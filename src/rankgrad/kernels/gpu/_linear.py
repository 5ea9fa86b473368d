"""Helpers of the kernels of linear metrics (see :mod:`rankgrad.metrics.linear`)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def discount(rank, METRIC: tl.constexpr, persistence):
    """The discount of a 1-based rank."""
    if METRIC == "ndcg" or METRIC == "dcg":
        return 1.0 / tl.log2(1.0 + rank)
    elif METRIC == "rbp":
        return (1.0 - persistence) * tl.exp2((rank - 1.0) * tl.log2(persistence))
    elif METRIC == "arp":
        return rank
    else:
        return rank * 0.0 + 1.0


@triton.jit
def beyond(length, k, METRIC: tl.constexpr):
    """The discount of ranks past the cutoff: k + 1 for ARP with a cutoff, otherwise 0."""
    if METRIC == "arp":
        return tl.where((k > 0) & (length > k), k + 1.0, 0.0)
    else:
        return 0.0


@triton.jit
def as_loss(value, length, k, scale, METRIC: tl.constexpr):
    """The loss of a list from its normalized ``Σ gain (discount - beyond)``; 0 if undefined."""
    if METRIC == "arp":
        return tl.where(scale > 0, value + beyond(length, k, METRIC), 0.0)
    else:
        return tl.where(scale > 0, 1.0 - value, 0.0)


@triton.jit
def as_gradient(grad, METRIC: tl.constexpr):
    """The derivative of the loss, from that of the sum. Losses other than ARP are 1 - sum."""
    if METRIC == "arp" or METRIC == "operator":
        return grad
    else:
        return -grad
