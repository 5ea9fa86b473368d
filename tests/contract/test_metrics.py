"""The contract of metrics, for every metric in the registry."""

import pytest
import torch
from registry import metric_specs, relaxation_classes, sharp

from rankgrad import metrics, sorting
from rankgrad.losses.relaxed import grid_metrics
from rankgrad.sorting import Exact, Gumbel, StraightThrough

every_metric = pytest.mark.parametrize("spec", metric_specs())
RELAXED = [s for s in metric_specs() if s.split("@")[0] not in ("opa", "kendall_tau")]
every_relaxed_metric = pytest.mark.parametrize("spec", RELAXED)
TIGHT = {"rtol": 1e-9, "atol": 1e-10}


@every_metric
@pytest.mark.parametrize("weighted", [False, True])
def test_padded_equals_ragged_equals_alone(spec, weighted, example):
    metric = metrics.get(spec)
    weights = torch.rand_like(example.scores) if weighted else torch.ones_like(example.scores)
    flat = metric(example.scores, example.labels, offsets=example.offsets, weights=weights)
    scores, labels, padded_weights, mask = example.padded(12, 1, weights)
    padded = metric(scores, labels, mask, weights=padded_weights)
    torch.testing.assert_close(padded, flat, **TIGHT)
    bounds = example.offsets.tolist()
    for row, (s, y) in enumerate(example.lists):
        alone = metric(s, y, weights=weights[bounds[row] : bounds[row + 1]])
        torch.testing.assert_close(alone[0], flat[row], **TIGHT)


@every_metric
def test_order_does_not_matter_even_with_ties(spec, example):
    metric = metrics.get(spec)
    scores, labels, mask = example.padded(9, seed=3)
    scores = scores.round()
    items = torch.stack([torch.randperm(9) for _ in range(len(scores))])
    moved = metric(*(x.gather(1, items) for x in (scores, labels, mask)))
    torch.testing.assert_close(moved, metric(scores, labels, mask), **TIGHT)


@every_metric
@pytest.mark.parametrize("empty", [0, 1, "skip"])
def test_lists_without_relevant_items(spec, empty):
    metric = metrics.get(spec, empty=empty)
    value = metric(torch.randn(2, 4), torch.zeros(2, 4))
    assert value.isnan().all() if empty == "skip" else (value == empty).all()
    table = metrics.evaluate(
        torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([[1, 0], [0, 0]]), metrics=[metric]
    )
    alone = metric(torch.tensor([2.0, 1.0]), torch.tensor([1, 0])).item()
    expected = alone if empty == "skip" else (alone + empty) / 2
    assert table[str(metric)] == pytest.approx(expected)


@every_metric
def test_spec_round_trip(spec):
    metric = metrics.get(spec)
    assert metrics.get(str(metric)) == metric
    changed = metrics.get(spec, empty="skip", ties="stable")
    assert metrics.get(str(changed)) == changed != metric


@every_metric
@pytest.mark.parametrize("shape", [(1,), (3, 0), (0, 4), (2, 3, 4)])
def test_any_shape(spec, shape):
    value = metrics.get(spec)(torch.randn(shape), torch.randint(0, 5, shape))
    assert value.shape == (shape[:-1] or (1,))
    assert value.isfinite().all()


@every_metric
def test_infinite_scores_rank(spec):
    metric = metrics.get(spec)
    labels = torch.tensor([0, 2, 1])
    value = metric(torch.tensor([1.0, float("inf"), float("-inf")]), labels)
    assert value == metric(torch.tensor([2.0, 3.0, 1.0]), labels)


@every_relaxed_metric
@pytest.mark.parametrize("relaxation", relaxation_classes(), ids=lambda c: c.name)
def test_zero_temperature_is_the_exact_metric(spec, relaxation, example):
    metric = metrics.get(spec)
    scores, labels, mask = example.padded(10, seed=2)
    weights = torch.rand(mask.shape, dtype=torch.float64)
    exact = metric(scores, labels, mask, weights=weights)
    relaxed = sharp(relaxation)
    for through in (form for form in relaxed.forms if form in metric.routes()):
        value = metric.relaxed(
            relaxed, scores, labels, mask, weights=weights, through=through, beta=1e3
        )
        torch.testing.assert_close(value, exact, rtol=1e-6, atol=1e-6)


@every_relaxed_metric
def test_relaxed_metric_keeps_the_empty_rule(spec):
    scores, labels = torch.randn(2, 4), torch.tensor([[0, 1, 2, 0], [0, 0, 0, 0]])
    metric = metrics.get(spec, empty="skip")
    value = metric.relaxed(sorting.NeuralSort(), scores, labels)
    assert value.isnan().tolist() == [False, True]


@pytest.mark.parametrize("name", ["opa", "kendall_tau"])
def test_metrics_without_a_relaxed_form_say_what_has_one(name):
    with pytest.raises(ValueError, match=r"no relaxed form.*ranknet.*ndcg"):
        metrics.get(name).relaxed(sorting.NeuralSort(), torch.randn(3), torch.arange(3))
    with pytest.raises(ValueError, match="takes no cutoff"):
        metrics.get(f"{name}@5")


def test_a_route_that_does_not_exist_is_an_error():
    with pytest.raises(
        ValueError, match="gives ranks, so ndcg@5 cannot be relaxed through its perm"
    ):
        metrics.get("ndcg@5").relaxed(
            sorting.LapSum(), torch.randn(3), torch.arange(3), through="permutation"
        )


@pytest.mark.parametrize("name", grid_metrics())
def test_samples_belong_to_their_own_list(name, example):
    """Noise of several samples, unequal lengths: with next to none, the exact metric comes back."""
    scores, labels, mask = example.padded(10, seed=4)
    relaxation = Gumbel(Exact(), scale=1e-9, samples=5, seed=0)
    metric = metrics.get(f"{name}@3" if metrics.metrics.factory(name).has_cutoff else name)
    value = metric.relaxed(relaxation, scores, labels, mask)
    torch.testing.assert_close(value, metric(scores, labels, mask))


def test_straight_through_is_exact_forward_and_relaxed_backward(example):
    scores, labels, mask = example.padded(10, seed=4)
    scores = torch.where(mask, scores, 0.0).requires_grad_()
    metric = metrics.get("ndcg@3")
    value = metric.relaxed(StraightThrough(sorting.NeuralSort(0.5)), scores, labels, mask)
    torch.testing.assert_close(value, metric(scores.detach(), labels, mask))
    through = torch.autograd.grad(value.sum(), scores)[0]
    soft = metric.relaxed(sorting.NeuralSort(0.5), scores, labels, mask)
    torch.testing.assert_close(through, torch.autograd.grad(soft.sum(), scores)[0])
