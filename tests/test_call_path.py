"""How many modules a reader goes through to follow a loss from the call to its gradient."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import rankgrad
from rankgrad import lists, losses

SOURCE = str(Path(rankgrad.__file__).parent)


def functions_entered(call: Callable[[], None]) -> list[tuple[str, str]]:
    """The modules and functions of the package that a warm call enters, in order."""
    visited: list[tuple[str, str]] = []

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(SOURCE):
            visited.append((path.removeprefix(SOURCE + "/"), frame.f_code.co_name))

    call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return visited


def walk(spec: str) -> list[str]:
    """The modules that a warm call of a loss and its backward pass enter, in order."""
    scores = torch.tensor([[0.3, 0.2, 0.1], [0.2, 0.5, 0.0]], requires_grad=True)
    labels = torch.tensor([[1, 0, 2], [0, 1, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])

    def call() -> None:
        losses.get(spec)(scores, labels, mask).backward()

    return [module for module, _ in functions_entered(call)]


def test_a_small_call_enters_few_functions(monkeypatch):
    """Each takes a quarter of a microsecond or more, an empty autograd function 27 in all."""
    monkeypatch.setattr(lists, "_cache", {})  # other tests may have filled it
    scores, loss = torch.randn(4, 20, requires_grad=True), losses.get("softmax")
    entered = functions_entered(lambda: loss(scores, torch.ones(4, 20)).backward())
    assert len(entered) <= 23, entered


def test_a_reader_follows_a_loss_through_few_modules():
    """Spec, loss, validation, lists, autograd function, kernel: this keeps the way short."""
    visited = walk("lambdaloss@5")
    changes = sum(one != other for one, other in itertools.pairwise(visited))
    assert len(set(visited)) <= 8, sorted(set(visited))
    assert changes <= 12, visited
