"""Every metric, exact and relaxed, against loops over all orders of tied items."""

import pytest
import reference
import torch

from rankgrad import kernels, metrics, sorting

PAIRS = ("opa", "kendall_tau", "spearman")
CUTOFFS = (None, 1, 3, 9)


def draw(seed, tied):
    generator = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 7, (), generator=generator))
    labels = torch.randint(0, 5, (n,), generator=generator).double()
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    if tied:
        scores = torch.randint(0, 3, (n,), generator=generator).double()
    return scores, labels, torch.rand(n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", metrics.names())
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_exact(name, tied, seed):
    scores, labels, weights = draw(seed, tied)
    for k in CUTOFFS if name not in PAIRS else (None,):
        for w in (None, weights) if name not in ("kendall_tau", "spearman") else (None,):
            for ties in ("average", "stable") if name not in PAIRS else ("average",):
                value = metrics.get(name, k=k, ties=ties)(scores, labels, weights=w).item()
                expected = reference.metric(name, scores, labels, k=k, w=w, ties=ties)
                assert value == pytest.approx(expected, abs=1e-10), (k, w, ties)


@pytest.mark.parametrize("seed", range(4))
def test_options(seed):
    scores, labels, _ = draw(seed, tied=True)
    for name, options in [
        ("ndcg", {"gain": "linear"}),
        ("dcg", {"gain": "linear"}),
        ("precision", {"threshold": 2.0}),
        ("ap", {"threshold": 3.0}),
        ("rr", {"threshold": 2.0}),
        ("hits", {"threshold": 2.0}),
        ("err", {"max_grade": 2.0}),
        ("rbp", {"persistence": 0.5}),
    ]:
        value = metrics.get(name, k=2, **options)(scores, labels).item()
        assert value == pytest.approx(reference.metric(name, scores, labels, k=2, **options))


@pytest.mark.parametrize("name", [n for n in metrics.names() if n not in PAIRS])
@pytest.mark.parametrize("seed", range(4))
def test_relaxed(name, seed):
    scores, labels, weights = draw(seed, tied=False)
    n = len(scores)
    for k in (None, *range(1, n)):
        for w in (None, weights):
            metric = metrics.get(name, k=k)
            value = metric.relaxed(sorting.NeuralSort(0.7), scores, labels, weights=w)
            P = reference.neuralsort(scores, 0.7)
            expected = reference.relaxed_permutation(name, P, labels, k=k, w=w)
            assert value.item() == pytest.approx(float(expected), abs=1e-10)
            if name in ("dcg", "ndcg"):
                value = metric.relaxed(
                    sorting.NeuralSort(0.7), scores, labels, weights=w, expect="label"
                )
                expected = reference.relaxed_permutation(name, P, labels, k=k, w=w, expect="label")
                assert value.item() == pytest.approx(float(expected), abs=1e-10)
            if name == "hits":
                continue
            value = metric.relaxed(sorting.SigmoidRanks(0.7), scores, labels, weights=w, beta=1.3)
            rho = reference.sigmoid_ranks(scores, 0.7)
            expected = reference.relaxed_ranks(name, rho, labels, k=k, w=w, beta=1.3)
            assert value.item() == pytest.approx(float(expected), abs=1e-10)


@pytest.mark.parametrize("name", [n for n in metrics.names() if n not in PAIRS])
def test_a_cutoff_at_or_past_the_end_is_the_end(name):
    """Except precision, which divides by k."""
    scores, labels = torch.randn(4, 5), torch.randint(0, 5, (4, 5))
    for relaxation in (sorting.SoftSort(), sorting.SigmoidRanks()):
        whole = metrics.get(name).relaxed(relaxation, scores, labels)
        for k in (5, 8):
            cut = metrics.get(name, k=k).relaxed(relaxation, scores, labels)
            factor = 5 / k if name == "precision" else 1.0
            torch.testing.assert_close(cut, whole * factor)
    torch.testing.assert_close(
        metrics.get(name, k=9)(scores, labels),
        metrics.get(name)(scores, labels) * (5 / 9 if name == "precision" else 1.0),
    )


def test_stable_ties_of_pair_metrics_follow_input_order():
    scores, labels = torch.tensor([1.0, 1.0]), torch.tensor([1, 0])
    assert metrics.get("opa")(scores, labels) == 0.5
    assert metrics.get("opa(ties=stable)")(scores, labels) == 1
    assert metrics.get("opa(ties=stable)")(scores, labels.flip(0)) == 0
    assert metrics.get("kendall_tau(ties=stable)")(scores, labels) == 1


def test_pair_metrics_are_undefined_without_a_pair_of_positive_weight():
    scores, labels = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2, 1, 0])
    # What opa, kendall_tau and spearman give. The weight of a pair of opa is that of its item
    # with the higher label, that of the others the product of both.
    expected = {(0.0, 0.0, 1.0): (7, 7, 7), (1.0, 0.0, 0.0): (1, 7, 7), (0.0, 1.0, 1.0): (1, 1, 1)}
    for weights, values in expected.items():
        for name, value in zip(PAIRS, values, strict=True):
            metric = metrics.get(name, empty="skip")
            found = metric(scores, labels, weights=torch.tensor([weights])[0])
            assert found.nan_to_num(7.0).item() == pytest.approx(value)


def test_small_labels_keep_their_digits_in_float32():
    scores, labels = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1e-8, 0.0, 3e-8])
    with kernels.using("eager"):
        for name in ("ndcg", "dcg", "err"):
            found = metrics.get(name)(scores, labels)
            exact = metrics.get(name)(scores.double(), labels.double())
            torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0)
