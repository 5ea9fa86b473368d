"""Relaxations as operators on any values, against the eager permutation or ranks."""

import pytest
import torch
from kernel_harness import KINDS, FlatBatch

from rankgrad import kernels, sorting
from rankgrad.kernels.cpu._fastsort import FastSortRanks
from rankgrad.kernels.cpu._lapsum import LapSumRanks
from rankgrad.kernels.cpu._permutation_rows import NeuralSortOperator, SoftSortOperator
from rankgrad.kernels.cpu._ranks import SigmoidRanks
from rankgrad.kernels.cpu._sinkhorn import SinkhornOperator
from rankgrad.kernels.cpu._smoothi import SmoothIOperator, SmoothIRanks

SORTS = {
    "neuralsort(temperature=0.7)": (NeuralSortOperator, 0.7),
    "softsort(temperature=0.7)": (SoftSortOperator, 0.7),
    "sinkhorn(base=neuralsort(temperature=0.7))": (SinkhornOperator, 0.7, 30, 1e-6, False),
    "sinkhorn(base=neuralsort, iterations=5, transposed=true)": (
        SinkhornOperator, 1.0, 5, 1e-6, True,
    ),
    "smoothi(alpha=2.0, delta=0.2)": (SmoothIOperator, 2.0, 0.2),
}  # fmt: skip
RANKS = {
    "sigmoid(alpha=2.0)": (SigmoidRanks, 2.0),
    "lapsum(temperature=2.0)": (LapSumRanks, 2.0),
    "fastsort(strength=0.5)": (FastSortRanks, 0.5, False),
    "fastsort(strength=0.5, regularization=entropic)": (FastSortRanks, 0.5, True),
    "smoothi(alpha=2.0, delta=0.2)": (SmoothIRanks, 2.0, 0.2),
}


def eager(compute, scores, mask, offsets):
    """The results of a function of each list's own scores, and their gradients."""
    results = []
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        some = slice(first, last)
        here = torch.ones(last - first, dtype=torch.bool) if mask is None else mask[some]
        own = scores[some][here].clone().requires_grad_()
        if len(own):
            with kernels.using("eager"):
                results.append((some, here, own, compute(own, some, here)))
    return results


def close(found, wanted, tolerance):
    assert (found - wanted).norm() <= tolerance * wanted.norm() + 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("sort", SORTS)
def test_sorted_values(sort, k, kind):
    scores, _, mask, _, offsets, _ = FlatBatch.of_kind(kind).arguments
    random = torch.Generator().manual_seed(1)
    values, grad = (torch.randn(len(scores), generator=random).double() for _ in range(2))
    if mask is not None:
        values[~mask] = float("nan")
    made, *options = SORTS[sort]
    operator = made(scores, mask, offsets, 61, k, *options)
    found, grad_scores = operator.apply(values), operator.adjoint(values, grad)

    def compute(own, some, here):
        top = sorting.get(sort).permutation(own, k=min(k, len(own)) if k else None)
        return top @ values[some][here]

    # Here SmoothI itself moves by 5e-7 if its scores do so by one rounding.
    tolerance = 1e-5 if "smoothi" in sort and kind == "apart" else 1e-9
    for some, here, own, wanted in eager(compute, scores, mask, offsets):
        close(found[some][: len(wanted)], wanted.detach(), tolerance)
        assert (found[some][len(wanted) :] == 0).all()
        (wanted * grad[some][: len(wanted)]).sum().backward()
        close(
            grad_scores[some][here], own.grad, max(tolerance, 1e-7 if "smoothi" in sort else 1e-8)
        )
        assert (grad_scores[some][~here] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", RANKS)
def test_ranks(rank, kind):
    scores, _, mask, _, offsets, _ = FlatBatch.of_kind(kind).arguments
    grad = torch.randn(len(scores), generator=torch.Generator().manual_seed(1)).double()
    if mask is not None:
        grad[~mask] = float("nan")
    made, *options = RANKS[rank]
    operator = made(scores, mask, offsets, 61, *options)
    grad_scores = operator.adjoint(grad)
    assert torch.equal(operator.adjoint(grad * 2.0**600) / 2.0**600, grad_scores)
    relaxed = eager(lambda own, *_: sorting.get(rank).ranks(own), scores, mask, offsets)
    for some, here, own, wanted in relaxed:
        close(operator.ranks[some][here], wanted.detach(), 1e-9)
        wanted.backward(grad[some][here])
        close(grad_scores[some][here], own.grad, 1e-7 if "smoothi" in rank else 1e-8)
        assert (operator.ranks[some][~here] == 0).all() and (grad_scores[some][~here] == 0).all()


def test_float32():
    scores, labels, mask, _, offsets, _ = FlatBatch.of_kind("padded", torch.float32).arguments
    operator = SoftSortOperator(scores, mask, offsets, 61, 0, 1.0)
    assert operator.apply(labels).dtype == operator.adjoint(labels, labels).dtype == torch.float32
    ranks = SigmoidRanks(scores, mask, offsets, 61, 1.0)
    assert ranks.ranks.dtype == ranks.adjoint(labels).dtype == torch.float32
