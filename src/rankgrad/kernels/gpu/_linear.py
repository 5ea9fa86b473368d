"""Discounts of linear metrics (see :mod:`rankgrad.metrics.linear`), and their sum as a loss.

A linear metric is ``Σ_r discount(r) gain_(r)``, divided by its norm. Kernels of relaxed
permutations sum ``gain (discount - discount_beyond)`` over the ranks up to the cutoff. Past the
cutoff every rank has the discount ``discount_beyond``, which is 0 except for ARP.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def discount(rank, METRIC: tl.constexpr, persistence):
    """The discount of a 1-based rank, as a float."""
    if METRIC == "ndcg" or METRIC == "dcg":
        return 1.0 / tl.log2(1.0 + rank)
    elif METRIC == "rbp":
        return (1.0 - persistence) * tl.exp2((rank - 1.0) * tl.log2(persistence))
    elif METRIC == "arp":
        return rank
    else:
        return rank * 0.0 + 1.0


@triton.jit
def discount_beyond(length, k, METRIC: tl.constexpr):
    """The discount of ranks past the cutoff: k + 1 for ARP with a cutoff, otherwise 0."""
    if METRIC == "arp":
        return tl.where((k > 0) & (length > k), k + 1.0, 0.0)
    else:
        return 0.0


@triton.jit
def as_loss(value, length, k, scale, METRIC: tl.constexpr):
    """The loss of a list from its normalized ``Σ gain (discount - discount_beyond)``.

    It is one minus the metric, or ARP itself; 0 where the scale is 0, since it is undefined there.
    """
    if METRIC == "arp":
        return tl.where(scale > 0, value + discount_beyond(length, k, METRIC), 0.0)
    else:
        return tl.where(scale > 0, 1.0 - value, 0.0)


@triton.jit
def as_gradient(grad, METRIC: tl.constexpr):
    """The derivative of the loss from that of the sum, which all losses but ARP subtract from 1.

    The METRIC is "operator" if there is no metric but a gradient from outside.
    """
    if METRIC == "arp" or METRIC == "operator":
        return grad
    else:
        return -grad
