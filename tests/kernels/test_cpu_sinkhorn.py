import pytest
import torch
from kernels.test_cpu_ranks import METRICS, relaxed
from kernels.twins import KINDS, batch, check, eager

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
    slots = batch(kind)
    found = through_sinkhorn(*slots, 61, 0.7, 30, 1e-6, transposed == "true", *METRICS[metric])
    sort = f"sinkhorn(base=neuralsort(temperature=0.7), transposed={transposed})"
    wanted = eager(relaxed(sort, metric), *slots)
    check(found, wanted, 1e-9, 1e-8)


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_iterations_and_float32(iterations):
    slots = batch("weighted", torch.float32)
    found = through_sinkhorn(*slots, 61, 2.0, iterations, 1e-9, False, *METRICS["ndcg"])
    assert found[0].dtype == found[1].dtype == torch.float32
    options = f"temperature=2.0, iterations={iterations}, tolerance=1e-9"
    check(found, eager(f"neural_ndcg({options})", *slots))
