import itertools

import pytest
import torch
from kernel_harness import KINDS, FlatBatch
from registry import metrics_with_kernel

from rankgrad import kernels, metrics

OPTIONS = {
    "ndcg": ["gain=linear"],
    "dcg": ["gain=linear"],
    "rbp": ["persistence=0.5, threshold=2.0"],
    "err": ["max_grade=2.0"],
    "arp": [],
    **{name: ["threshold=2.0"] for name in ("ap", "hits", "precision", "recall", "rr")},
}
SPECS = [
    f"{name}{k}({option}{', ' if option else ''}ties={ties}, empty={empty})"
    for name in metrics_with_kernel()
    for k, option, (ties, empty) in itertools.product(
        ("", "@3", "@100"),
        ("", *OPTIONS[name]),
        (("average", "0"), ("stable", "1"), ("average", "skip")),
    )
]


def both(batch, specs):
    scores, labels, mask, weights, offsets, _ = batch.arguments
    if mask is None:
        arguments = (scores, labels), {"offsets": offsets, "weights": weights}
    else:
        shape = len(offsets) - 1, -1
        weights = None if weights is None else weights.reshape(shape)
        padded = [x.reshape(shape) for x in (scores, labels, mask)]
        arguments = padded, {"weights": weights}
    with kernels.using("eager"):
        eager = metrics.evaluate(*arguments[0], **arguments[1], metrics=specs)
    return metrics.evaluate(*arguments[0], **arguments[1], metrics=specs), eager


@pytest.mark.parametrize("kind", KINDS)
def test_against_the_eager_form(kind):
    found, wanted = both(FlatBatch.of_kind(kind), SPECS)
    for name, values in wanted.per_list.items():
        torch.testing.assert_close(
            found.per_list[name], values, rtol=1e-12, atol=1e-14, equal_nan=True
        )
    assert found.without_relevant == wanted.without_relevant
    assert str(found) == str(wanted)


def test_float32():
    found, wanted = both(FlatBatch.of_kind("ragged", torch.float32), SPECS)
    for name, values in wanted.per_list.items():
        assert found.per_list[name].dtype == torch.float32
        torch.testing.assert_close(
            found.per_list[name], values, rtol=1e-5, atol=1e-6, equal_nan=True
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["precision", "ap", "rr"])
def test_a_label_reaches_the_threshold_that_it_is(name, dtype):
    metric = metrics.get(f"{name}(threshold=0.7)")
    arguments = torch.tensor([0.3, 0.2], dtype=dtype), torch.tensor([0.7, 0.0], dtype=dtype)
    with kernels.using("eager"):
        wanted = metric(*arguments)
    assert metric(*arguments) == wanted > 0


def test_infinite_scores_are_ranked():
    scores = torch.tensor([float("-inf"), float("inf"), 0.0, torch.finfo(torch.float32).min])
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0])
    for metric in map(metrics.get, ("ndcg", "ndcg(ties=stable)", "ap")):
        with kernels.using("eager"):
            wanted = metric(scores, labels)
        torch.testing.assert_close(metric(scores, labels), wanted)


def test_metrics_without_a_kernel_are_evaluated_beside_those_with_one():
    found, wanted = both(FlatBatch.of_kind("tied"), ["ndcg@3", "opa", "kendall_tau", "ap"])
    assert found.mean == pytest.approx(wanted.mean, rel=1e-12)


def test_a_metric_of_ones_own_is_not_taken_for_its_parent():
    class Doubled(metrics.NDCG):
        def gains(self, labels):
            return 2 * labels

    scores, labels = torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2])
    assert Doubled()(scores, labels) == pytest.approx(
        metrics.get("ndcg(gain=linear)")(scores, labels)
    )


def test_a_label_too_large_for_its_gain_is_an_error_still():
    with pytest.raises(ValueError, match="too large for the gain"):
        metrics.get("ndcg")([0.3, 0.2], [2000.0, 1.0])


def test_lists_of_nothing():
    assert metrics.get("ndcg")(torch.empty(0), torch.empty(0), offsets=[0]).shape == (0,)
    assert metrics.get("ndcg")(torch.empty(0), torch.empty(0), offsets=[0, 0]).tolist() == [0.0]


def test_lists_that_are_ranked_without_sorting_and_those_that_are_sorted():
    """Few relevant items without ties are placed by counting; ties and many of them are sorted."""
    scores = torch.arange(160, dtype=torch.float64).sin()
    labels = torch.zeros(160, dtype=torch.float64)
    labels[[3, 17, 30]], labels[[45, 50, 70]], labels[80:] = 2.0, 1.0, torch.arange(80.0) % 3
    scores[60:63] = 0.5  # ties among irrelevant items alone
    scores[[45, 46]], scores[[50, 52]] = 0.3, -0.3  # and of relevant ones
    offsets = torch.tensor([0, 40, 60, 80, 160])
    for spec in ("ndcg", "precision@5", "recall@5", "hits@5", "ap", "rr", "err", "rbp", "arp@7"):
        metric = metrics.get(spec)
        with kernels.using("eager"):
            wanted = metric(scores, labels, offsets=offsets)
        torch.testing.assert_close(metric(scores, labels, offsets=offsets), wanted)
