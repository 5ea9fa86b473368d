"""The same input gives the same bits, wherever its buffers and the kernels' own ones lie."""

import itertools

import numpy as np
import pytest
import torch

from rankgrad.kernels import ops
from rankgrad.kernels.arguments import ExactMetric
from rankgrad.lists import FlatLists

pytest.importorskip("numba")

METRICS = ("ndcg", "dcg", "precision", "recall", "rbp", "arp", "ap", "rr", "err", "hits")
RELAXATIONS = {
    "through_ranks": [
        (relaxation, 1.3, 1.0)
        for relaxation in ("sigmoid", "lapsum", "fastsort", "fastsort_entropic")
    ],
    "through_rows": [("neuralsort", 0.7), ("softsort", 0.7)],
    "through_sinkhorn": [(1.0, 3, 1e-6, False), (1.0, 3, 1e-6, True)],
    "through_smoothi": [(1.0, 0.1, "gain"), (1.0, 0.1, "label")],
    "through_smoothi_ranks": [(1.0, 0.1, 1.0)],
    "through_ot": [(0.05, 3, 1e-6)],
}
OPTIONS = {
    **{
        name: [
            (*relaxation, metric, k, "exponential", 1.0, 0.8)
            for relaxation, metric, k in itertools.product(each, METRICS, (0, 4))
            if "label" not in relaxation or "dcg" in metric
        ]
        for name, each in RELAXATIONS.items()
    },
    "pairs": [
        (kind, k, 1.0, "exponential", "corrected" if kind.startswith("ndcg") else "", 5.0, False)
        for kind in ("ranknet", "hinge", "lambdarank", "ndcg_loss1", "ndcg_loss2", "ndcg_loss2++")
        for k in (0, 4)
    ]
    + [
        (kind, k, 1.0, "exponential", "corrected", 5.0, False, metric, 1.0)
        for kind in ("lambdarank", "ndcg_loss2")
        for k in (0, 4)
        for metric in ("precision", "recall", "ap", "rr", "arp")
    ],
    "pointwise": [("mse", 0.0), ("rmse", 5.0), ("bce", 1.0), ("ordinal", 4.0)],
    "listmle": [(None,), (torch.tensor(3),)],
    "cross_entropy": [("label",), ("softmax",)],
    "ndcg_bound": [(0, "exponential"), (4, "linear")],
    "ordered_logit": [(5,)],
    "listap": [(20, 1.0)],
    "margin_mse": [()],
    "neuralsort_ce": [(0, 1.0), (4, 0.3)],
}
EXACT_METRICS = [
    ExactMetric(metric, k, ties, False, 1.0, 0.8)
    for metric in METRICS
    for k in (0, 4)
    for ties in (False, True)
]
LENGTHS = (9, 21, 70)  # with and without a vector's remainder
PLACES = 8


def shifted(tensors, place):
    """Copies of flat tensors in one buffer, ``place`` numbers after its start and between them."""
    buffer = torch.empty(sum(len(x) + place for x in tensors), dtype=tensors[0].dtype)
    copies, start = [], 0
    for x in tensors:
        start += place
        copies.append(buffer[start : start + len(x)].copy_(x))
        start += len(x)
    return copies


def litter(place):
    """Small blocks, every other one free: the next ones of a kernel lie among them."""
    blocks = [np.empty(1 + (7 * i + 5 * place) % 60) for i in range(40 * place)]
    return blocks[::2]


def lists(length, weighted):
    generator = torch.Generator().manual_seed(length)
    items = 3 * length
    scores = torch.randn(items, generator=generator, dtype=torch.float64)
    scores[-length:] = (scores[-length:] * 2).round()  # ties
    labels = torch.randint(0, 4, (items,), generator=generator).double()
    weights = torch.rand(items, generator=generator, dtype=torch.float64)
    mask = torch.rand(items, generator=generator) < 0.8 if weighted else None
    return scores, labels, weights if weighted else None, mask


def everywhere(compute, tensors):
    """What is computed from these tensors, with each at several places in memory."""
    found = []
    for place in range(PLACES):
        blocks = litter(place)
        found.append([x.clone() for x in compute(*shifted(tensors, place))])
        del blocks
    return found


def assert_same(found):
    for place, each in enumerate(found):
        for one, other in zip(each, found[0], strict=True):
            assert one.equal(other), f"place {place}: {(one - other).abs().max()}"


def test_every_operation_is_here():
    assert set(OPTIONS) == set(ops.LOSSES)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_loss_has_the_same_bits_wherever_its_buffers_lie(name, weighted):
    operation = getattr(torch.ops.rankgrad, name)
    for length, options in itertools.product(LENGTHS, OPTIONS[name]):
        scores, labels, weights, mask = lists(length, weighted)
        rest = (torch.arange(4) * length, length, *options)

        def compute(scores, labels, weights=None, mask=mask, rest=rest):
            return operation(scores, labels, mask, weights, *rest)

        assert_same(everywhere(compute, [x for x in (scores, labels, weights) if x is not None]))


@pytest.mark.parametrize("name", ["sigmoid", "lapsum"])
def test_ranks_have_the_same_bits_wherever_their_buffers_lie(name):
    for length in LENGTHS:
        scores, labels, _, _ = lists(length, False)
        rest = (torch.ones(3, length, dtype=torch.bool), name, [0.7])

        def compute(scores, grad, length=length, rest=rest):
            padded, grads = scores.view(3, length), grad.view(3, length)
            product = torch.ops.rankgrad.rank_vjp(grads, padded, *rest)
            return torch.ops.rankgrad.rank(padded, *rest), product

        assert_same(everywhere(compute, [scores, labels]))


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_exact_metrics_and_means_have_the_same_bits_wherever_their_buffers_lie(weighted):
    for length in LENGTHS:
        scores, labels, weights, mask = lists(length, weighted)
        offsets = torch.arange(4) * length
        inputs = [x for x in (scores, labels, weights) if x is not None]

        def compute(scores, labels, weights=None, mask=mask, offsets=offsets, length=length):
            batch = FlatLists(scores, labels, mask, weights, offsets, length)
            values, _ = ops.exact_metrics(batch, EXACT_METRICS)
            defined = torch.ones(len(scores), dtype=torch.bool)
            mean, normalized_weights = torch.ops.rankgrad.reduce(scores, defined, labels, True)
            scaled = torch.ops.rankgrad.scale_by_list(
                normalized_weights[:3], labels, offsets, length
            )
            return values, mean, normalized_weights, scaled

        assert_same(everywhere(compute, inputs))
