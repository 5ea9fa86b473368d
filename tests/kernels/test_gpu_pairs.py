"""Sums over pairs on GPUs, against the eager forms in float64."""

import pytest
from kernel_harness import FlatBatch, assert_matches

from rankgrad import losses

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _pairs as kernel
from rankgrad.kernels.ops import backend_kernel

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

KINDS = {
    "ranknet": {"kind": "ranknet"},
    "ranknet(sigma=2.0, ties=half)": {"kind": "ranknet", "sigma": 2.0, "half": True},
    "ranknet@3(ties=half)": {"kind": "ranknet", "k": 3, "half": True},
    "hinge(margin=0.7)": {"kind": "hinge", "sigma": 0.7},
    "hinge@4": {"kind": "hinge", "k": 4},
    "lambdarank": {"kind": "lambdarank"},
    "lambdarank@5(gain=linear)": {"kind": "lambdarank", "k": 5, "gain": "linear"},
    "lambdaloss": {"kind": "ndcg_loss2"},
    "lambdaloss@5": {"kind": "ndcg_loss2", "k": 5},
    "lambdaloss@5(truncation=heuristic)": {
        "kind": "ndcg_loss2",
        "k": 5,
        "truncation": "heuristic",
    },
    "lambdaloss@1(scheme=ndcg_loss1)": {"kind": "ndcg_loss1", "k": 1},
    "lambdaloss(scheme=ndcg_loss1)": {"kind": "ndcg_loss1"},
    'lambdaloss@5(scheme="ndcg_loss2++", mu=3.0)': {"kind": "ndcg_loss2++", "k": 5, "mu": 3.0},
    'lambdaloss@5(scheme="ndcg_loss2++", truncation=heuristic)': {
        "kind": "ndcg_loss2++",
        "k": 5,
        "truncation": "heuristic",
    },
}

#: Lambda losses of other metrics: with and without a cutoff, among and past the relevant items.
METRICS = {
    f"{name}{cut}(metric={metric}, threshold=2.0{more})": {
        "kind": "lambdarank" if name == "lambdarank" else "ndcg_loss2",
        "k": int(cut[1:] or 0),
        "truncation": "heuristic" if more else "corrected",
        "metric": metric,
        "threshold": 2.0,
    }
    for name, cut, metric, more in [
        *(
            (name, cut, metric, "")
            for name in ("lambdarank", "lambdaloss")
            for metric in ("precision", "recall", "ap", "rr", "arp")
            for cut in ("@3", "")
        ),
        ("lambdaloss", "@3", "precision", ", truncation=heuristic"),
    ]
}
LONG = {"lambdarank@150": {"kind": "lambdarank", "k": 150}}
ALL = KINDS | METRICS | LONG


def both(batch, spec):
    options = {"kind": "", "k": 0, "sigma": 1.0, "gain": "exponential", "truncation": "corrected"}
    options |= {"mu": 10.0, "half": False} | ALL[spec]
    return backend_kernel("pairs", "gpu")(*batch.arguments, *options.values()), batch.reference(
        losses.get(spec)
    )


@pytest.mark.parametrize("spec", KINDS)
def test_kinds_with_ties_padding_and_weights(spec):
    batch = FlatBatch.random([9, 1, 0, 2, 20], masked=True, weighted=True, ties=True)
    assert_matches(batch, *both(batch, spec))


@pytest.mark.parametrize("spec", KINDS)
def test_kinds_of_flat_lists(spec):
    batch = FlatBatch.random([37, 3], seed=1)
    assert_matches(batch, *both(batch, spec))


@pytest.mark.parametrize("spec", METRICS)
def test_metrics_with_ties_padding_and_weights(spec):
    batch = FlatBatch.random([9, 1, 0, 2, 20], masked=True, weighted=True, ties=True)
    batch.labels = batch.labels.where(batch.scores < 0.9, batch.labels.clamp(max=1.0))
    assert_matches(batch, *both(batch, spec), rtol=2e-6)


@pytest.mark.parametrize("metric", ["ap", "rr", "recall"])
@pytest.mark.parametrize("shape", [64, 4000])
def test_metrics_of_several_tiles(metric, shape, monkeypatch):
    made = kernel.tile(shape)
    monkeypatch.setattr(kernel, "tile", lambda max_length: made)
    batch = FlatBatch.random([150, 40], ties=True, seed=1)
    batch.labels = batch.labels.where(batch.scores < 0.5, batch.labels.clamp(max=1.0))
    assert_matches(batch, *both(batch, f"lambdarank(metric={metric}, threshold=2.0)"), rtol=2e-6)
    assert_matches(batch, *both(batch, f"lambdaloss@3(metric={metric}, threshold=2.0)"), rtol=2e-6)


@pytest.mark.parametrize("std", [0.0, 30.0, 1e4])
def test_any_range_of_scores(std):
    batch = FlatBatch.random([70, 5], std=std, ties=True, weighted=True)
    assert_matches(batch, *both(batch, "lambdaloss"))


@pytest.mark.parametrize(
    "spec", ["lambdaloss@5", "lambdarank@5(gain=linear)", "ranknet@3(ties=half)"]
)
def test_several_tiles(spec):
    batch = FlatBatch.random([110], ties=True)
    assert_matches(batch, *both(batch, spec))


@pytest.mark.parametrize("spec", ["lambdaloss", "lambdarank@150"])
def test_tiles_of_long_lists(spec, monkeypatch):
    shape = kernel.tile(4000)
    monkeypatch.setattr(kernel, "tile", lambda max_length: shape)
    batch = FlatBatch.random([270], ties=True)
    assert_matches(batch, *both(batch, spec))
