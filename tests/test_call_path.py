"""How many modules a reader goes through to follow a loss from the call to its gradient."""

import itertools
import sys
from pathlib import Path

import torch

import rankgrad
from rankgrad import losses

SOURCE = str(Path(rankgrad.__file__).parent)


def walk(spec: str) -> list[str]:
    """The modules that a warm call of a loss and its backward pass enter, in order."""
    scores = torch.tensor([[0.3, 0.2, 0.1], [0.2, 0.5, 0.0]], requires_grad=True)
    labels = torch.tensor([[1, 0, 2], [0, 1, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])

    def call() -> None:
        losses.get(spec)(scores, labels, mask).backward()

    visited: list[str] = []

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(SOURCE):
            visited.append(path.removeprefix(SOURCE + "/"))

    call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return visited


def test_a_reader_follows_a_loss_through_few_modules():
    """Spec, loss, validation, lists, autograd function, kernel: this keeps the way short."""
    visited = walk("lambdaloss@5")
    changes = sum(one != other for one, other in itertools.pairwise(visited))
    assert len(set(visited)) <= 8, sorted(set(visited))
    assert changes <= 12, visited
