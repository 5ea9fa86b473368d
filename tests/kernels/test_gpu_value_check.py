"""Value checks on a GPU find every invalid value, and none in padding."""

import itertools

import pytest
import torch
from kernel_harness import DEVICE

pytest.importorskip("triton")
from rankgrad.kernels.gpu._value_check import check_values

NAMES = ("scores", "labels", "mask", "weights", "list_weights")


def lists(items=2100, count=7):
    arguments = torch.ones(items), torch.ones(items), torch.ones(items).bool(), torch.ones(items)
    return {
        name: tensor.to(DEVICE)
        for name, tensor in zip(NAMES, (*arguments, torch.ones(count)), strict=True)
    }


@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=3)))
def test_valid_lists(present):
    found = lists()
    for name, is_present in zip(NAMES[2:], present, strict=True):
        if not is_present:
            found[name] = None
    assert check_values(*found.values())()


@pytest.mark.parametrize("flaw", [float("nan"), float("inf"), -float("inf"), -1.0])
@pytest.mark.parametrize("name", ["scores", "labels", "weights", "list_weights"])
def test_every_flaw_is_seen_but_not_in_padding(name, flaw):
    for at in (0, -1):
        found = lists()
        found[name][at] = flaw
        assert check_values(*found.values())() == (name == "scores" and flaw == -1.0)
        found["mask"][at] = False
        assert check_values(*found.values())() == (name != "list_weights" or flaw == 1)


def test_more_lists_than_items_and_none():
    found = lists(items=3, count=5000)
    assert check_values(*found.values())()
    found["list_weights"][4999] = -1.0
    assert not check_values(*found.values())()
    nothing = torch.zeros(0, device=DEVICE)
    assert check_values(nothing, nothing, None, None, None)()


def test_large_labels_are_seen():
    found = lists()
    found["labels"][5] = 101.0
    assert not check_values(*found.values())()
    found["mask"][5] = False
    assert check_values(*found.values())()


def test_a_result_is_that_of_its_own_check_only():
    flawed, right = lists(), lists()
    flawed["scores"][0] = float("nan")
    first, second = check_values(*flawed.values()), check_values(*right.values())
    assert not first() and second()
    first, second = check_values(*right.values()), check_values(*flawed.values())
    assert not second()
    assert not first()  # overwritten, and so not known to be sound
