"""Sums over pairs on GPUs, against the eager forms in float64."""

import pytest
from slots import Slots, check

from rankgrad import losses

pytest.importorskip("triton")
from rankgrad.kernels.gpu import pairs as kernel
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

LONG = {"lambdarank@150": {"kind": "lambdarank", "k": 150}}


def both(slots, spec):
    options = {"kind": "", "k": 0, "sigma": 1.0, "gain": "exponential", "truncation": "corrected"}
    options |= {"mu": 10.0, "half": False} | (KINDS | LONG)[spec]
    return backend_kernel("pairs", "gpu")(*slots.given, *options.values()), slots.eager(
        losses.get(spec)
    )


@pytest.mark.parametrize("spec", KINDS)
def test_kinds_with_ties_padding_and_weights(spec):
    slots = Slots.drawn([9, 1, 0, 2, 20], masked=True, weighted=True, ties=True)
    check(slots, *both(slots, spec))


@pytest.mark.parametrize("spec", KINDS)
def test_kinds_of_flat_lists(spec):
    slots = Slots.drawn([37, 3], seed=1)
    check(slots, *both(slots, spec))


@pytest.mark.parametrize("spread", [0.0, 30.0, 1e4])
def test_any_range_of_scores(spread):
    slots = Slots.drawn([70, 5], spread=spread, ties=True, weighted=True)
    check(slots, *both(slots, "lambdaloss"))


@pytest.mark.parametrize(
    "spec", ["lambdaloss@5", "lambdarank@5(gain=linear)", "ranknet@3(ties=half)"]
)
def test_several_tiles(spec):
    slots = Slots.drawn([110], ties=True)
    check(slots, *both(slots, spec))


@pytest.mark.parametrize("spec", ["lambdaloss", "lambdarank@150"])
def test_tiles_of_long_lists(spec, monkeypatch):
    shape = kernel.tile(4000)
    monkeypatch.setattr(kernel, "tile", lambda longest: shape)
    slots = Slots.drawn([270], ties=True)
    check(slots, *both(slots, spec))
