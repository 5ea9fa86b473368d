"""Value checks on a CPU find every invalid value, and none in padding."""

import itertools

import pytest
import torch

from rankgrad import kernels, losses
from rankgrad.kernels.cpu._value_check import check_values

NAMES = ("scores", "labels", "mask", "weights", "list_weights")


def lists(items=67, count=7, dtype=torch.float32):
    arguments = [torch.ones(items, dtype=dtype) for _ in range(4)]
    return dict(
        zip(
            NAMES,
            (*arguments[:2], arguments[2].bool(), arguments[3], torch.ones(count)),
            strict=True,
        )
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=3)))
def test_valid_lists(present, dtype):
    found = lists(dtype=dtype)
    for name, is_present in zip(NAMES[2:], present, strict=True):
        if not is_present:
            found[name] = None
    assert check_values(*found.values())()


@pytest.mark.parametrize("flaw", [float("nan"), float("inf"), -float("inf"), -1.0])
@pytest.mark.parametrize("name", ["scores", "labels", "weights", "list_weights"])
def test_every_flaw_is_seen_but_not_in_padding(name, flaw):
    for at in (0, 40, -1):
        found = lists()
        found[name][at % len(found[name])] = flaw
        right = name == "scores" and flaw == -1.0
        assert check_values(*found.values())() == right
        assert check_values(*(found | {"mask": None}).values())() == right
        found["mask"][at % len(found[name])] = False
        assert check_values(*found.values())() == (name != "list_weights")


def test_large_labels_are_seen():
    found = lists()
    found["labels"][5] = 101.0
    assert not check_values(*found.values())()
    found["mask"][5] = False
    assert check_values(*found.values())()


def test_nothing():
    nothing = torch.zeros(0)
    assert check_values(nothing, nothing, None, None, None)()


def test_wrapped_tensors_are_not_checked():
    seen = []

    def within(scores):
        seen.append(check_values(scores, torch.ones(3), None, None, None)())
        return losses.get("softmax")(scores, torch.tensor([1.0, 0.0, 0.0]))

    gradient = torch.func.grad(within)(torch.zeros(3))
    assert seen == [False]
    torch.testing.assert_close(gradient, torch.tensor([-2 / 3, 1 / 3, 1 / 3]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_losses_take_any_kind_of_number(dtype):
    scores, labels = torch.tensor([[0, 1, 2]]).to(dtype), torch.tensor([[1, 0, 2]])
    with kernels.using("eager"):
        wanted = losses.get("listnet")(scores, labels)
    torch.testing.assert_close(losses.get("listnet")(scores, labels), wanted)
