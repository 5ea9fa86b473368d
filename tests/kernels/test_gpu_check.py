"""Looking at lists on a GPU: every flaw is seen, and none in padding."""

import itertools

import pytest
import torch
from slots import DEVICE

pytest.importorskip("triton")
from rankgrad.kernels.gpu.check import look

NAMES = ("scores", "labels", "mask", "weights", "list_weights")


def lists(slots=2100, count=7):
    given = torch.ones(slots), torch.ones(slots), torch.ones(slots).bool(), torch.ones(slots)
    return {
        name: tensor.to(DEVICE)
        for name, tensor in zip(NAMES, (*given, torch.ones(count)), strict=True)
    }


@pytest.mark.parametrize("given", list(itertools.product([False, True], repeat=3)))
def test_sound_lists(given):
    found = lists()
    for name, there in zip(NAMES[2:], given, strict=True):
        if not there:
            found[name] = None
    assert look(*found.values())()


@pytest.mark.parametrize("flaw", [float("nan"), float("inf"), -float("inf"), -1.0])
@pytest.mark.parametrize("name", ["scores", "labels", "weights", "list_weights"])
def test_every_flaw_is_seen_but_not_in_padding(name, flaw):
    for at in (0, -1):
        found = lists()
        found[name][at] = flaw
        assert look(*found.values())() == (name == "scores" and flaw == -1.0)
        found["mask"][at] = False
        assert look(*found.values())() == (name != "list_weights" or flaw == 1)


def test_more_lists_than_items_and_none():
    found = lists(slots=3, count=5000)
    assert look(*found.values())()
    found["list_weights"][4999] = -1.0
    assert not look(*found.values())()
    nothing = torch.zeros(0, device=DEVICE)
    assert look(nothing, nothing, None, None, None)()


def test_large_labels_are_seen():
    found = lists()
    found["labels"][5] = 101.0
    assert not look(*found.values())()
    found["mask"][5] = False
    assert look(*found.values())()


def test_a_verdict_is_on_its_own_look_only():
    flawed, right = lists(), lists()
    flawed["scores"][0] = float("nan")
    first, second = look(*flawed.values()), look(*right.values())
    assert not first() and second()
    first, second = look(*right.values()), look(*flawed.values())
    assert not second()
    assert not first()  # overwritten, and so not known to be sound
