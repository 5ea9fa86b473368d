import pytest
import torch
from kernel_harness import KINDS, FlatBatch, assert_matches
from kernels.test_cpu_ranks import METRICS, relaxed

from rankgrad.kernels.ops import backend_kernel

listmle = backend_kernel("listmle", "cpu")
through_rows = backend_kernel("through_rows", "cpu")
through_smoothi = backend_kernel("through_smoothi", "cpu")
OF_ROWS = [metric for metric in METRICS if metric != "spearman"]  # which is through ranks only


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", OF_ROWS)
@pytest.mark.parametrize("relaxation", ["neuralsort", "softsort"])
def test_rows(relaxation, metric, kind):
    batch = FlatBatch.of_kind(kind)
    found = through_rows(*batch.arguments, relaxation, 0.7, *METRICS[metric])
    assert_matches(
        batch, found, batch.reference(relaxed(f"{relaxation}(temperature=0.7)", metric)), 1e-9, 1e-9
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("expect", "metric"),
    [("gain", metric) for metric in OF_ROWS] + [("label", m) for m in OF_ROWS if "dcg" in m],
)
def test_smoothi(expect, metric, kind):
    batch = FlatBatch.of_kind(kind)
    found = through_smoothi(*batch.arguments, 2.0, 0.2, expect, *METRICS[metric])
    # Logits of size 1e4 times products of earlier rows: rounding errors grow from row to row.
    loss = relaxed("smoothi(alpha=2.0, delta=0.2)", metric, expect=expect)
    assert_matches(batch, found, batch.reference(loss), 1e-9, 1e-7)


@pytest.mark.parametrize("expect", ["gain", "label"])
@pytest.mark.parametrize("alpha", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("delta", [0.01, 0.1, 0.45])
def test_smoothi_far_down_long_lists(delta, alpha, expect):
    """Where items are no longer followed one by one."""
    generator = torch.Generator().manual_seed(0)
    lengths = [200, 50, 120]
    scores = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    scores[200:250] = scores[200:250].round()  # ties
    scores[250:] = 3.0
    scores[-1] = 4.0  # all but one are equal
    labels = torch.randint(0, 4, scores.shape, generator=generator).double()
    weights = torch.rand(scores.shape, generator=generator, dtype=torch.float64)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    spec = f"smoothi_ndcg(alpha={alpha}, delta={delta}, through=permutation, expect={expect})"
    for item_weights in (None, weights):
        batch = FlatBatch(scores, labels, None, item_weights, offsets, 200)
        found = through_smoothi(*batch.arguments, alpha, delta, expect, *METRICS["ndcg"])
        assert_matches(batch, found, batch.reference(spec), 1e-11, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_listmle(kind):
    batch = FlatBatch.of_kind(kind)
    assert_matches(
        batch, listmle(*batch.arguments, None), batch.reference("listmle(ties=stable)"), 1e-9, 1e-9
    )


def test_listmle_shuffles_equal_labels():
    n = 400
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(n, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (n,), generator=generator).double()
    lists = scores, labels, None, None, torch.tensor([0, n])
    values = [float(listmle(*lists, n, torch.tensor(seed))[0]) for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]
    # Among equal scores the order does not matter, whatever the seed.
    tied = torch.zeros_like(scores), *lists[1:]
    found = listmle(*tied, n, torch.tensor(-(2**63)))
    torch.testing.assert_close(found[0], listmle(*tied, n, None)[0])


@pytest.mark.parametrize("scale", [1.0, 0.3, 20.0])
@pytest.mark.parametrize("std", [1.0, 250.0, 2000.0])
def test_listmle_of_any_labels_and_scores(std, scale):
    """Labels that are counted or sorted, scores that are summed with and without care."""
    scores, labels, *rest = FlatBatch.of_kind("weighted").arguments
    batch = FlatBatch(scores * std, labels * scale, *rest)
    assert_matches(
        batch,
        listmle(*batch.arguments, None),
        batch.reference("listmle(ties=stable)"),
        1e-11,
        1e-11,
    )


def test_listmle_shuffles_a_list_alike_in_any_company():
    lengths = [0, 3, 2, 70, 5, 64, 1]
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, scores.shape, generator=generator).double()
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    seed = torch.tensor(3)
    together = listmle(scores, labels, None, None, offsets, 70, seed)
    for b, (s, y) in enumerate(zip(scores.split(lengths), labels.split(lengths), strict=True)):
        alone = listmle(s, y, None, None, torch.tensor([0, len(s)]), len(s), seed)
        torch.testing.assert_close(together[0][b], alone[0][0])
        torch.testing.assert_close(together[1].split(lengths)[b], alone[1])


@pytest.mark.parametrize("kind", ["plain", "ragged", "weighted", "extreme"])
def test_float32(kind):
    batch = FlatBatch.of_kind(kind, torch.float32)
    for found, loss in (
        (through_rows(*batch.arguments, "neuralsort", 1.0, *METRICS["ndcg"]), "pirank_ndcg"),
        (through_rows(*batch.arguments, "softsort", 1.0, *METRICS["ndcg"]), "softsort_ndcg"),
        (through_smoothi(*batch.arguments, 1.0, 0.1, "label", *METRICS["ndcg"]), "smoothi_ndcg"),
        (listmle(*batch.arguments, None), "listmle(ties=stable)"),
    ):
        assert found[0].dtype == found[1].dtype == torch.float32
        assert_matches(batch, found, batch.reference(loss), grad_atol=1e-12)
