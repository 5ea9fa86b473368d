"""Every loss beside the grid against its formula, written out in loops: values and gradients."""

import itertools
import math

import pytest
import reference
import torch

from rankgrad import kernels, losses, metrics

SEEDS = range(4)
WEIGHTED = pytest.mark.parametrize("weighted", [False, True])


def draw(seed, tied=False):
    generator = torch.Generator().manual_seed(seed)
    n = int(torch.randint(2, 8, (), generator=generator))
    labels = torch.randint(0, 5, (n,), generator=generator).double()
    labels[0] = labels[1:].max() + 1  # a relevant item, and two unequal labels
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    if tied:
        scores = scores.mul(2).round().div(2) + 0.1
    return scores, labels.clamp(max=5), torch.rand(n, generator=generator, dtype=torch.float64)


def check(name, seed, weighted, k=None, tied=False, **options):
    scores, labels, weights = draw(seed, tied)
    scores.requires_grad_()
    weights = weights if weighted else None
    ours = losses.get(name, k=k, **options)(scores, labels, weights=weights)
    theirs = reference.loss(name, scores, labels, k=k, w=weights, **options)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    (gradient,) = torch.autograd.grad(ours, scores)
    (expected,) = torch.autograd.grad(theirs, scores, materialize_grads=True, allow_unused=True)
    torch.testing.assert_close(gradient, expected, rtol=1e-8, atol=1e-10)


@WEIGHTED
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "name",
    [
        "mse",
        "rmse",
        "bce",
        "ordinal",
        "margin_mse",
        "softmax",
        "listnet",
        "neuralsort_ce",
        "ordered_logit",
    ],
)
def test_pointwise_and_listwise(name, seed, weighted):
    check(name, seed, weighted)


@WEIGHTED
@pytest.mark.parametrize("seed", SEEDS)
def test_options(seed, weighted):
    check("rmse", seed, weighted, levels=6)
    check("ordinal", seed, weighted, levels=3)
    check("ordered_logit", seed, weighted, levels=3)
    check("bce", seed, weighted, threshold=2.0)
    check("listap", seed, weighted, bins=20)
    check("listap", seed, weighted, bins=10, threshold=2.0)
    check("listmle", seed, weighted, ties="stable")
    check("neuralsort_ce", seed, weighted, k=2, temperature=0.5)
    check("hinge", seed, weighted, margin=0.5)
    for k in (None, 1, 3):
        check("ndcg_bound", seed, weighted, k=k)
        check("ndcg_bound", seed, weighted, k=k, penalty="loglog", gain="linear")


@pytest.mark.parametrize("mode", ["auto", "eager"])
def test_ordered_logit_keeps_its_digits_where_a_level_has_very_unequal_sides(mode):
    """One item is opposed by 60,000 others, or by one of a weight that float32 would lose."""
    loss = losses.get("ordered_logit")
    labels = torch.zeros(60_000)
    labels[0] = 1.0
    odds = math.log(59_999)
    expected = 59_999 * math.log1p(1 / 59_999) + math.log1p(59_999)
    with kernels.using(mode):
        assert loss(torch.zeros(60_000), labels).item() == pytest.approx(expected, rel=1e-6)
        for above, below in ((1e8, 1.0), (1.0, 1e-9)):
            scores = torch.tensor([odds, odds], requires_grad=True)
            loss(scores, [1, 0], weights=torch.tensor([above, below])).backward()
            wanted = torch.tensor([-below, below])
            torch.testing.assert_close(scores.grad, wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mode", ["auto", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ordered_logit_of_scores_on_which_newtons_method_cycles(dtype, mode):
    """It cycled on the first list, and on one in thirty like the others."""
    generator = torch.Generator().manual_seed(0)
    cases = [([0, 0, -6, -4, 0, 14, 1, 2, -8, -1], [1, 0, 1, 0, 0, 1, 0, 1, 0, 0])]
    for scale in (3, 30, 100):
        for labels in torch.randint(0, 3, (10, 30), generator=generator):
            scores = scale * (labels + 0.3 * torch.randn(30, generator=generator))
            cases.append((scores.tolist(), labels.tolist()))
    for scores, labels in cases:
        ours = torch.tensor(scores, dtype=dtype, requires_grad=True)
        exact = ours.detach().double().requires_grad_()
        expected = reference.loss("ordered_logit", exact, torch.tensor(labels))
        expected.backward()
        with kernels.using(mode):
            value = losses.get("ordered_logit")(ours, labels)
            value.backward()
        rtol, atol = (1e-5, 1e-6) if dtype == torch.float32 else (1e-9, 1e-11)
        torch.testing.assert_close(value.double(), expected, rtol=rtol, atol=atol)
        torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=rtol, atol=atol)


@WEIGHTED
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tied", [False, True])
def test_pairwise(seed, weighted, tied):
    for k in (None, 1, 3):
        check("ranknet", seed, weighted, k, tied, sigma=2.0)
        check("ranknet", seed, weighted, k, tied, ties="half")
        check("hinge", seed, weighted, k, tied)


@WEIGHTED
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("metric", ["ndcg", "precision", "recall", "ap", "rr", "arp"])
def test_lambda_losses_of_every_metric(metric, seed, weighted):
    for k, tied in itertools.product((None, 1, 2, 4), (False, True)):
        check("lambdarank", seed, weighted, k, tied, metric=metric)
        for truncation in ("corrected", "heuristic"):
            check("lambdaloss", seed, weighted, k, tied, metric=metric, truncation=truncation)


@WEIGHTED
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scheme", ["ndcg_loss1", "ndcg_loss2", "ndcg_loss2++"])
def test_lambdaloss_schemes(scheme, seed, weighted):
    for k, truncation in itertools.product((None, 1, 3), ("corrected", "heuristic")):
        check("lambdaloss", seed, weighted, k, scheme=scheme, truncation=truncation, sigma=1.5)


@pytest.mark.parametrize(("penalty", "least"), [("log", 2), ("loglog", 5)])
def test_ndcg_bound_bounds_what_is_missing_of_ndcg(penalty, least):
    for seed, scale in itertools.product(range(20), (0.1, 1.0, 5.0)):
        scores, labels, weights = draw(seed, tied=seed % 2 == 0)
        for k in (least, least + 1, 10, None):
            loss = losses.get("ndcg_bound", k=k, penalty=penalty)
            missing = 1 - metrics.get("ndcg", k=k)(scale * scores, labels, weights=weights)
            assert loss(scale * scores, labels, weights=weights) >= missing.item() - 1e-12


def test_smoothi_through_ranks_has_the_expected_gain_by_default():
    scores, labels = torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2])
    loss = losses.get("smoothi_ndcg@2(through=ranks)")
    plain = losses.RelaxedMetric("ndcg@2", "smoothi", through="ranks")
    assert loss(scores, labels) == plain(scores, labels)
    assert losses.get(str(loss))(scores, labels) == plain(scores, labels)
    with pytest.raises(ValueError, match='expect="label" is for relaxations through a permutation'):
        losses.get("smoothi_ndcg@2(through=ranks, expect=label)")
