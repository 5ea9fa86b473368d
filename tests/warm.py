"""Compile the CPU kernels once, before the tests: ``python tests/warm.py``, beside the linters.

Otherwise each process of the tests compiles them anew on a fresh clone, at the same time.
"""

import tempfile
from itertools import product
from pathlib import Path

import torch

from rankgrad.data import letor
from rankgrad.losses import losses
from rankgrad.metrics import evaluate, metrics

LENGTHS = [3, 1, 4]


def call(loss, dtype: torch.dtype, padded: bool) -> None:
    """A loss and its gradient."""
    random = torch.Generator().manual_seed(0)
    labels = torch.tensor([2.0, 0, 1, 1, 0, 0, 3, 1], dtype=dtype)
    scores = torch.randn(8, dtype=dtype, generator=random, requires_grad=True)
    if padded:
        mask = torch.tensor([[True] * 4, [True, True, False, True]])
        value = loss(scores.view(2, 4), labels.view(2, 4), mask)
    else:
        value = loss(scores, labels, offsets=torch.tensor([0, 3, 4, 8]))
    value.backward()


def main() -> None:
    for name, dtype, padded in product(
        losses.names(), (torch.float32, torch.float64), (False, True)
    ):
        call(losses.get(name), dtype, padded)
    for dtype in (torch.float32, torch.float64):
        scores = torch.arange(8, dtype=dtype)
        labels = torch.tensor([2.0, 0, 1, 1, 0, 0, 3, 1], dtype=dtype)
        evaluate(scores, labels, offsets=torch.tensor([0, 3, 4, 8]), metrics=metrics.names())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_text("1 qid:1 1:0.5 2:1\n0 qid:1 1:0.25 # id\n")
        letor.read(path)


if __name__ == "__main__":
    main()
