"""Gradient and Hessian diagonal of every loss, as gradient boosting takes them."""

import math

import pytest
import torch
from registry import is_random, loss_specs, make_loss

from rankgrad import kernels, losses

OFFSETS = torch.tensor([0, 5, 5, 6, 14, 20, 24])
LABELS = torch.tensor([2, 0, 1, 0, 1, 3, 0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 0, 4, 0, 2, 0, 0, 0, 0.0])
WEIGHTS = torch.linspace(0.5, 2.0, 24, dtype=torch.float64)

EXACT = [  # whose Hessian's diagonal is the second derivative
    "mse",
    "bce",
    "ordinal",
    "margin_mse",
    "softmax",
    "listnet",
    "ndcg_bound@3",
    "ordered_logit",
    "listmle(ties=stable)",
    "ranknet(sigma=2.0, ties=half)",
    "lambdarank@3",
    "lambdarank(metric=ap)",
    "lambdaloss@3",
    "lambdaloss(scheme=ndcg_loss1)",
]
PAIRS = [
    *["ranknet", "ranknet@3(ties=half)", "hinge", "hinge@3", "lambdarank", "lambdarank@3"],
    *["lambdarank@3(norm=true)", "lambdarank(norm=true, sigma=2.0)", "lambdaloss", "lambdaloss@3"],
    *["lambdaloss@3(scheme=ndcg_loss1)", "lambdaloss@3(scheme=ndcg_loss2++)"],
    *["lambdaloss@3(truncation=heuristic)", "lambdaloss@3(gain=linear, sigma=0.5)"],
    "lambdaloss@3(scheme=ndcg_loss1, truncation=heuristic)",
    "lambdaloss@3(scheme=ndcg_loss2++, truncation=heuristic)",
]


def scores_of(scale):
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(24, dtype=torch.float64, generator=generator)
    return (drawn * scale).round(decimals=1)  # some are equal


def second_order(spec, scores, **options):
    return make_loss(spec).gradient_and_hessian(scores, LABELS, offsets=OFFSETS, **options)


@pytest.mark.parametrize("spec", loss_specs())
def test_the_gradient_is_that_of_the_sum_and_the_hessian_positive(spec):
    for scale, weights in ((1.0, None), (0.0, WEIGHTS), (30.0, WEIGHTS)):
        scores = scores_of(scale)
        gradient, hessian = second_order(spec, scores, weights=weights)
        assert gradient.shape == hessian.shape == scores.shape
        assert gradient.isfinite().all()
        assert hessian.isfinite().all()
        assert (hessian >= 0).all()
        assert (hessian[gradient.abs() > 1e-14] > 0).all()
        assert (
            gradient[20:].abs().max() == 0 or spec in POINTWISE | {"listnet", "listmle"} | MARGINS
        )
        if not is_random(spec):
            variable = scores.clone().requires_grad_()
            loss = make_loss(spec, reduction="sum")
            loss(variable, LABELS, offsets=OFFSETS, weights=weights).backward()
            torch.testing.assert_close(gradient, variable.grad, rtol=1e-7, atol=1e-9)


POINTWISE = {"mse", "rmse", "bce", "ordinal"}
MARGINS = {"margin_mse", "neuralsort_ce", "neuralsort_ce@3"}


@pytest.mark.parametrize("spec", PAIRS)
def test_scores_of_a_long_list_may_lie_far_apart(spec):
    """The CPU kernel writes the exponentials of a part of the list at a time."""
    generator = torch.Generator().manual_seed(0)
    scores, weights = torch.rand(2, 120, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 4, (120,), generator=generator)
    loss = losses.get(spec)
    found = loss.gradient_and_hessian(2000 * scores, labels, weights=weights)
    with kernels.using("eager"):
        wanted = loss.gradient_and_hessian(2000 * scores, labels, weights=weights)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spec", EXACT)
def test_the_hessian_is_the_second_derivative(spec):
    scores = scores_of(2.0) + 0.01 * torch.arange(24)  # no ties: ranks stay as they are
    _, hessian = second_order(spec, scores, weights=WEIGHTS)
    step = 1e-5
    for item in range(0, 24, 3):
        one = torch.zeros_like(scores)
        one[item] = step
        above, below = (second_order(spec, scores + d, weights=WEIGHTS)[0] for d in (one, -one))
        found = (above - below)[item] / (2 * step)
        assert hessian[item].item() == pytest.approx(found.item(), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("scores", [[0.0, 0.0, 12.0], [12.0, 0.0, 0.0], [0.0, 9.0, 4.0]])
def test_listmle_keeps_small_second_derivatives_in_float32(scores):
    loss = losses.get("listmle(ties=stable)")
    exact = torch.tensor(scores, dtype=torch.float64)
    _, hessian = loss.gradient_and_hessian(exact.float(), [2, 1, 0])
    wanted = loss.gradient_and_hessian(exact, [2, 1, 0])[1]
    # By the definition: Σ_{r<=m} q (1 - q), with 1 - q as the sum of the others.
    steps = [exact[r:].exp() / exact[r:].exp().sum() for r in range(3)]
    defined = torch.zeros(3, dtype=torch.float64)
    for r, q in enumerate(steps):
        for i in range(len(q)):
            defined[r + i] += q[i] * (q[:i].sum() + q[i + 1 :].sum())
    torch.testing.assert_close(wanted, defined, rtol=1e-12, atol=0)
    torch.testing.assert_close(hessian.double(), wanted, rtol=5e-6, atol=0)


def test_steps_of_neuralsort_ce_are_at_most_its_temperature():
    loss = losses.get("neuralsort_ce(temperature=linear(start=0.1, end=0.5))")
    for loss.progress, temperature in ((0.0, 0.1), (1.0, 0.5)):
        gradient, hessian = loss.gradient_and_hessian(scores_of(1.0)[:3], [2, 0, 1])
        torch.testing.assert_close(gradient.abs() / hessian, torch.full_like(hessian, temperature))


def test_the_bounds_are_as_stated():
    scores = scores_of(1.0)[:3]
    rmse = losses.get("rmse")
    _, hessian = rmse.gradient_and_hessian(scores, [2, 0, 1])
    slope = 5 * scores.sigmoid() * (1 - scores.sigmoid())
    torch.testing.assert_close(hessian, slope**2 / (3 * rmse(scores, [2, 0, 1])))
    differences = torch.tensor([[0.5, 0.0], [3.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    _, hessian = losses.get("hinge").gradient_and_hessian(differences, [[1, 0]] * 3)
    assert hessian[:, 0].tolist() == pytest.approx([1 / 2, 1 / 4, 1 / 8])
    loss = losses.get("neural_ndcg(temperature=0.5)")
    gradient, hessian = loss.gradient_and_hessian(scores, [2, 0, 1])
    torch.testing.assert_close(hessian, gradient.abs() / 0.5)


@pytest.mark.parametrize("spec", PAIRS)
def test_the_kernel_computes_what_the_eager_form_does(spec):
    for scale in (0.0, 1.0, 100.0, 5000.0):
        for weights in (None, WEIGHTS.round(decimals=1)):
            found = second_order(spec, scores_of(scale), weights=weights)
            with kernels.using("eager"):
                wanted = second_order(spec, scores_of(scale), weights=weights)
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("k", [2, 30])
def test_the_norm_of_lambdarank_is_as_lightgbm_writes_it(k):
    scores = [0.4, -0.3, 0.4, 1.2, 0.0]
    labels, sigma = [1, 0, 3, 0, 2], 0.7
    order = sorted(range(5), key=lambda i: -scores[i])
    rank = {item: place + 1 for place, item in enumerate(order)}
    gains = sorted((2**y - 1 for y in labels), reverse=True)[:k]
    ideal = sum(gain / math.log2(2 + place) for place, gain in enumerate(gains))
    gradient, hessian, total = [0.0] * 5, [0.0] * 5, 0.0
    for i in range(5):
        for j in range(5):
            if labels[i] <= labels[j] or min(rank[i], rank[j]) > k:
                continue
            difference = scores[i] - scores[j]
            discounts = abs(1 / math.log2(1 + rank[i]) - 1 / math.log2(1 + rank[j]))
            weight = (2 ** labels[i] - 2 ** labels[j]) * discounts / ideal
            weight /= 0.01 + abs(difference)
            chance = 1 / (1 + math.exp(sigma * difference))
            for item, sign in ((i, -1), (j, 1)):
                gradient[item] += sign * sigma * weight * chance
                hessian[item] += sigma**2 * weight * chance * (1 - chance)
            total += 2 * sigma * weight * chance
    factor = math.log2(1 + total) / total
    for mode in ("auto", "eager"):
        with kernels.using(mode):
            loss = losses.LambdaRank(k, norm=True, sigma=sigma)
            found = loss.gradient_and_hessian(torch.tensor(scores, dtype=torch.float64), labels)
        assert found[0].tolist() == pytest.approx([factor * g for g in gradient])
        assert found[1].tolist() == pytest.approx([factor * h for h in hessian])


def test_padded_lists_and_list_weights():
    scores = torch.tensor([[0.3, 0.1, 9.0], [0.2, 0.4, 0.1]])
    labels, mask = [[1, 0, 7], [0, 1, 2]], [[True, True, False], [True, True, True]]
    loss = losses.get("lambdaloss")
    gradient, hessian = loss.gradient_and_hessian(scores, labels, mask, weights=[2.0, 1.0])
    alone = [loss.gradient_and_hessian(scores[0, :2], labels[0][:2])]
    alone.append(loss.gradient_and_hessian(scores[1], labels[1]))
    assert gradient[0, 2] == hessian[0, 2] == 0
    torch.testing.assert_close(gradient[0, :2], 2 * alone[0][0])
    torch.testing.assert_close(hessian[0, :2], 2 * alone[0][1])
    torch.testing.assert_close(gradient[1], alone[1][0])


def test_groups_of_lists_are_as_each_alone(monkeypatch):
    """Eager forms go through lists in groups of bounded size."""
    scores = scores_of(1.0)
    together = second_order("neural_rr", scores)
    monkeypatch.setattr("rankgrad.losses._newton._MAX_PAIRS", 60)
    for one, other in zip(second_order("neural_rr", scores), together, strict=True):
        torch.testing.assert_close(one, other)


def test_a_subclass_that_overrides_a_method_is_computed_by_it():
    class Steeper(losses.RankNet):
        def term(self, differences):
            values, derivatives = super().term(differences)
            return 3 * values, 3 * derivatives

    scores, labels = torch.tensor([0.5, 0.0]), torch.tensor([0, 1])
    plain, _ = losses.RankNet().gradient_and_hessian(scores, labels)
    torch.testing.assert_close(Steeper().gradient_and_hessian(scores, labels)[0], 3 * plain)


def test_lists_are_the_same_bits_however_many_threads(monkeypatch):
    scores = torch.randn(40 * 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels, offsets = torch.arange(8000) % 3, torch.arange(0, 8001, 200)
    loss = losses.get("lambdaloss@10")
    found = []
    for threads in (1, 3):
        monkeypatch.setattr("rankgrad.kernels.cpu._compiled.available", lambda n=threads: n)
        found.append(loss.gradient_and_hessian(scores, labels, offsets=offsets))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="scores must be finite"):
        losses.get("mse").gradient_and_hessian([0.0, float("inf")], [1, 0])
    with pytest.raises(ValueError, match="labels"):
        losses.get("lambdarank").gradient_and_hessian([0.0, 1.0], [1, -1])
