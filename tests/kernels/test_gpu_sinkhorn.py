"""NeuralNDCG in Triton against the eager loss in float64."""

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch, assert_matches

from rankgrad import losses

pytest.importorskip("triton")
from together import Together

from rankgrad.kernels.gpu import _register_resident, _sinkhorn
from rankgrad.kernels.ops import backend_kernel

interpreted = pytest.mark.skipif(DEVICE != "cpu", reason="done by as many programs on a GPU")
BOTH = pytest.mark.parametrize("transposed", ["false", "true"])


@pytest.fixture(params=["resident", "banded"])
def way(request, monkeypatch):
    """With K in registers, or in a band of tiles so small that short lists have several."""
    if request.param == "banded":
        monkeypatch.setattr(_register_resident, "RESIDENT", {})
        if DEVICE == "cpu":
            monkeypatch.setattr(_sinkhorn, "_ROWS", 8)
            monkeypatch.setattr(_sinkhorn, "_COLUMNS", 16)
    return request.param


def fused(batch, spec):
    loss = losses.get(spec)
    name, options = loss.relaxation.kernel()
    assert name == "sinkhorn"
    return backend_kernel("through_sinkhorn", "gpu")(
        *batch.arguments, *options, *loss.metric.kernel_options()
    )


def compare(batch, spec, rtol=1e-5):
    assert_matches(batch, fused(batch, spec), batch.reference(losses.get(spec)), rtol)


@pytest.mark.usefixtures("way")
@BOTH
@pytest.mark.parametrize("masked", [False, True])
def test_as_the_eager_loss(transposed, masked):
    batch = FlatBatch.random([11, 0, 1, 20], masked=masked, weighted=masked)
    compare(batch, f"neural_ndcg(iterations=3, transposed={transposed})")


@pytest.mark.usefixtures("way")
@BOTH
def test_stops_where_the_eager_loss_stops(transposed):
    batch = FlatBatch.random([12], std=0.3)
    for tolerance in (0.3, 0.02):
        compare(batch, f"neural_ndcg(iterations=5, tolerance={tolerance}, transposed={transposed})")


@pytest.mark.parametrize(
    "metric",
    ["ndcg@3(gain=linear, ", "dcg(", "precision@3(", "recall@2(", "rbp(", "arp@3("],
)
def test_every_metric(metric):
    compare(FlatBatch.random([9], ties=True), f"neural_{metric}iterations=2)")


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("std", "rtol"), [(0.0, 1e-5), (30.0, 1e-4)])
def test_constant_and_far_scores(std, rtol):
    compare(FlatBatch.random([18, 3], std=std), "neural_ndcg(iterations=2)", rtol)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("way", ["banded"], indirect=True)
def test_a_band_of_tiles():
    compare(FlatBatch.random([60]), "neural_ndcg(iterations=2, temperature=0.05)", 1e-4)


def test_nothing_relevant():
    batch = FlatBatch.random([5, 4], grades=0)
    values, grad_scores, defined = fused(batch, "neural_ndcg(iterations=2)")
    assert not defined.any()
    assert (values == 0).all()
    assert (grad_scores == 0).all()


@pytest.mark.skipif(DEVICE == "cpu", reason="programs that wait for each other need a GPU")
@pytest.mark.parametrize("lengths", [[240] * 64, [1000] * 16, [4000] * 4, [700, 1, 3, 129]])
@BOTH
def test_lists_shared_by_programs(lengths, transposed):
    batch = FlatBatch.random(lengths)
    compare(batch, f"neural_ndcg(transposed={transposed})")
    first, second = (fused(batch, "neural_ndcg")[1] for _ in range(2))
    assert torch.equal(first, second)


@BOTH
@pytest.mark.parametrize("lengths", [[5, 31, 1, 2], [33, 0, 64], [65, 128, 7], [130, 3]])
def test_lists_that_stay_in_registers(lengths, transposed, monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setitem(_register_resident.RESIDENT, 256, (1, 16, 128))
    assert _register_resident.ResidentLayout.of(
        FlatBatch.random(lengths).scores, len(lengths), max(lengths)
    )
    compare(FlatBatch.random(lengths), f"neural_ndcg(iterations=4, transposed={transposed})")


@BOTH
def test_one_program_for_one_list_after_another(transposed, monkeypatch):
    monkeypatch.setattr(_register_resident, "WARPS", 4)
    batch = FlatBatch.random([9, 20, 0, 3, 1, 14])
    assert _register_resident.ResidentLayout.of(batch.scores, 6, 20).groups == (
        1 if DEVICE == "cpu" else 6
    )
    compare(batch, f"neural_ndcg(iterations=5, tolerance=0.02, transposed={transposed})")


def test_scratch_ends_at_an_aligned_address():
    """Triton compiles a kernel again for addresses that are no multiples of 16 bytes."""
    layout = _register_resident.ResidentLayout(32, 1, 4, 128, 3)
    sizes = [layout.floats(3, size, 2, "loss") for size in range(8)]
    assert {size % 4 for size in sizes} == {0} and sizes == sorted(sizes)


@interpreted
@BOTH
@pytest.mark.parametrize(("shared", "warps"), [(2, 4), (4, 2)])
def test_programs_that_share_lists(shared, warps, transposed, monkeypatch):
    monkeypatch.setattr(_register_resident, "RESIDENT", {32: (shared, warps, 128)})
    monkeypatch.setattr(_register_resident, "at_once", lambda scores: 2 * shared)
    monkeypatch.setattr(
        _register_resident, "_scale_resident", Together(_register_resident._scale_resident)
    )
    batch = FlatBatch.random([19, 32, 0, 3], std=0.5)
    assert _register_resident.ResidentLayout.of(batch.scores, 4, 32).groups == 2
    compare(batch, f"neural_ndcg(iterations=3, tolerance=0.02, transposed={transposed})")


@interpreted
@BOTH
@pytest.mark.parametrize("way", ["banded"], indirect=True)
def test_programs_that_share_a_band(way, transposed, monkeypatch):
    monkeypatch.setattr(_sinkhorn, "at_once", lambda scores: 8)
    monkeypatch.setattr(_sinkhorn, "_scale", Together(_sinkhorn._scale))
    compare(FlatBatch.random([19, 3]), f"neural_ndcg(iterations=1, transposed={transposed})")


@pytest.mark.parametrize("metric", ["recall@2(", "rbp(", "arp@3("])
def test_programs_that_would_wait_for_one_not_running(metric, monkeypatch):
    """Then K does not stay in registers."""
    monkeypatch.setattr(_register_resident, "at_once", lambda scores: 1)
    monkeypatch.setattr(_register_resident, "RESIDENT", {32: (2, 4, 128)})
    batch = FlatBatch.random([9, 5])
    assert _register_resident.ResidentLayout.of(batch.scores, 2, 9) is None
    compare(batch, f"neural_{metric}iterations=2)")
