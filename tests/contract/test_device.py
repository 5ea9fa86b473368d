"""That the contract is held on the device it is said to be held on."""

import pytest
import torch
from devices import DEVICE, entries, moved

from rankgrad import inputs, kernels, losses, metrics, sorting
from rankgrad.lists import Lists
from rankgrad.losses import _base as loss_base
from rankgrad.sorting import _base

SCORES, LABELS = torch.tensor([[0.3, 2.0, 1.0]]), torch.tensor([[0, 1, 2]])
CALLS = {
    "loss": lambda: losses.get("mse")(SCORES, LABELS),
    "fused loss": lambda: losses.get("neural_ndcg")(SCORES, LABELS),
    "metric": lambda: metrics.get("ndcg")(SCORES, LABELS),
    "relaxed": lambda: metrics.get("ndcg").relaxed(sorting.Gumbel(), SCORES, LABELS),
    "evaluate": lambda: metrics.evaluate(SCORES, LABELS).per_list["rr"],
    "call": lambda: sorting.get("neuralsort")(SCORES),
    "permutation": lambda: sorting.Gumbel().permutation(SCORES),
    "ranks": lambda: sorting.LapSum().ranks(SCORES),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_called_sees_the_device(call, monkeypatch):
    seen = []

    def watched(function):
        def watch(*args, **kwargs):
            result = function(*args, **kwargs)
            tensors = result.flat if isinstance(result, Lists) else result
            seen.extend(x.device.type for x in tensors if isinstance(x, torch.Tensor))
            return result

        return watch

    for module in (inputs, loss_base):
        monkeypatch.setattr(module, "make_lists", watched(inputs.make_lists))
    for module in (_base, sorting.gumbel):
        monkeypatch.setattr(module, "check_scores", watched(_base.check_scores))
    result = CALLS[call]()
    assert set(seen) == {DEVICE}
    assert call == "evaluate" or result.device.type == "cpu"


@pytest.mark.skipif(DEVICE == "cpu", reason="there, kernels are chosen by what is installed")
def test_fused_kernels_are_on():
    assert kernels.mode() == "fused"
    assert kernels.ready("through_sinkhorn", SCORES.to(DEVICE))


def test_tensors_are_moved_once_and_nothing_else_is():
    calls = []

    def inner(scores, *, offsets):
        calls.append((scores.device.type, offsets))
        return len(calls)

    def outer(scores, offsets):
        return inner(scores, offsets=offsets)

    inner = moved(inner, "meta")
    assert moved(outer, "meta")(SCORES, [0, 3]) == 1
    assert calls == [("meta", [0, 3])]


def test_every_way_in_is_known():
    names = {f"{owner.__name__}.{name}" for owner, name in entries()}
    assert {"Loss.forward", "Metric.relaxed", "Relaxation.ranks", "Gumbel.ranks"} <= names
