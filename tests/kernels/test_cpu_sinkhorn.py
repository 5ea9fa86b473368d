import pytest
import torch
from kernel_harness import KINDS, FlatBatch, assert_matches
from kernels.test_cpu_ranks import METRICS, relaxed

from rankgrad.kernels.ops import backend_kernel

through_sinkhorn = backend_kernel("through_sinkhorn", "cpu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "metric",
    [
        "ndcg",
        "ndcg@5(gain=linear)",
        "recall@4(threshold=2.0)",
        "arp@5",
        "ap",
        "rr",
        "err@4(max_grade=2.0)",
    ],
)
@pytest.mark.parametrize("transposed", ["false", "true"])
def test_sinkhorn(transposed, metric, kind):
    batch = FlatBatch.of_kind(kind)
    found = through_sinkhorn(
        *batch.arguments, 0.7, 30, 1e-6, transposed == "true", *METRICS[metric]
    )
    sort = f"sinkhorn(base=neuralsort(temperature=0.7), transposed={transposed})"
    wanted = batch.reference(relaxed(sort, metric))
    assert_matches(batch, found, wanted, 1e-9, 1e-8)


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_iterations_and_float32(iterations):
    batch = FlatBatch.of_kind("weighted", torch.float32)
    found = through_sinkhorn(*batch.arguments, 2.0, iterations, 1e-9, False, *METRICS["ndcg"])
    assert found[0].dtype == found[1].dtype == torch.float32
    options = f"temperature=2.0, iterations={iterations}, tolerance=1e-9"
    assert_matches(batch, found, batch.reference(f"neural_ndcg({options})"), grad_atol=1e-12)


@pytest.mark.parametrize("transposed", ["false", "true"])
def test_rows_computed_anew(transposed):
    batch = FlatBatch.random([1200])
    for name in ("scores", "labels"):
        setattr(batch, name, getattr(batch, name).double())
    found = through_sinkhorn(*batch.arguments, 900.0, 3, 1e-9, transposed == "true", *METRICS["ap"])
    base = f"neuralsort(temperature=900.0), iterations=3, transposed={transposed}"
    wanted = batch.reference(relaxed(f"sinkhorn(base={base})", "ap"))
    assert_matches(batch, found, wanted, 1e-9, 1e-8)
