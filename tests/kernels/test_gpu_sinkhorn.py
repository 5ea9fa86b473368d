"""NeuralNDCG in Triton against the eager loss in float64."""

import pytest
import torch
from slots import DEVICE, Slots, check

from rankgrad import losses

pytest.importorskip("triton")
from rankgrad.kernels.gpu import sinkhorn
from rankgrad.losses.fused import _described, _operation


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that short lists have several tiles."""
    if DEVICE == "cpu":
        monkeypatch.setattr(sinkhorn, "_ROWS", 8)
        monkeypatch.setattr(sinkhorn, "_COLUMNS", 16)


def fused(slots, spec):
    loss = losses.get(spec)
    name, options = _operation(loss.relaxation, 1.0, loss.expect)
    assert name == "through_sinkhorn"
    return sinkhorn.through_sinkhorn(*slots.given, *options, *_described(loss.metric))


def compare(slots, spec, rtol=1e-5):
    check(slots, fused(slots, spec), slots.eager(losses.get(spec)), rtol)


@pytest.mark.parametrize("transposed", ["false", "true"])
@pytest.mark.parametrize("masked", [False, True])
def test_as_the_eager_loss(transposed, masked):
    slots = Slots.drawn([11, 0, 1, 20], masked=masked, weighted=masked)
    compare(slots, f"neural_ndcg(iterations=3, transposed={transposed})")


@pytest.mark.parametrize("transposed", ["false", "true"])
def test_stops_where_the_eager_loss_stops(transposed):
    slots = Slots.drawn([12], spread=0.3)
    for tolerance in (0.3, 0.02):
        compare(slots, f"neural_ndcg(iterations=5, tolerance={tolerance}, transposed={transposed})")


@pytest.mark.parametrize(
    "metric",
    ["ndcg@3(gain=linear, ", "dcg(", "precision@3(", "recall@2(", "rbp(", "arp@3("],
)
def test_every_metric(metric):
    compare(Slots.drawn([9], ties=True), f"neural_{metric}iterations=2)")


@pytest.mark.parametrize(("spread", "rtol"), [(0.0, 1e-5), (30.0, 1e-4)])
def test_constant_and_far_scores(spread, rtol):
    compare(Slots.drawn([18, 3], spread=spread), "neural_ndcg(iterations=2)", rtol)


def test_a_band_of_tiles():
    compare(Slots.drawn([60]), "neural_ndcg(iterations=2, temperature=0.05)", 1e-4)


def test_nothing_relevant():
    slots = Slots.drawn([5, 4], grades=0)
    values, slopes, defined = fused(slots, "neural_ndcg(iterations=2)")
    assert not defined.any()
    assert (values == 0).all()
    assert (slopes == 0).all()


@pytest.mark.skipif(DEVICE == "cpu", reason="programs that wait for each other need a GPU")
@pytest.mark.parametrize("lengths", [[240] * 64, [1000] * 16, [4000] * 4, [700, 1, 3, 129]])
@pytest.mark.parametrize("transposed", ["false", "true"])
def test_lists_shared_by_programs(lengths, transposed):
    slots = Slots.drawn(lengths)
    compare(slots, f"neural_ndcg(transposed={transposed})")
    first, second = (fused(slots, "neural_ndcg")[1] for _ in range(2))
    assert torch.equal(first, second)
