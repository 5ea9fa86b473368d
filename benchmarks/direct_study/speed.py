"""Measures losses on a CPU: forward and backward, one thread, the fastest of seven calls."""

from __future__ import annotations

import time

import torch

from rankgrad import losses

LOSSES = ("softmax", "ndcg_bound@10", "lambdaloss@10", "approx_ndcg")
SHAPES = ((64, 240), (1, 10_000))
_CALLS = 7


def measure() -> str:
    """A table with a line for each number of lists and items."""
    torch.set_num_threads(1)
    lines = [f"{'lists × items':16s}" + "".join(f"{spec:>16s}" for spec in LOSSES)]
    for lists, items in SHAPES:
        cells = [f"{milliseconds(spec, lists, items):13.2f} ms" for spec in LOSSES]
        lines.append(f"{lists:>3d} × {items:<10d}" + "".join(cells))
    return "\n".join(lines)


def milliseconds(spec: str, lists: int, items: int) -> float:
    """The time of one call; the first call, which compiles, is not counted."""
    scores = torch.randn(lists, items, requires_grad=True)
    labels = torch.randint(0, 5, (lists, items))
    loss, seconds = losses.get(spec), []
    for _ in range(1 + _CALLS):
        began = time.perf_counter()
        torch.autograd.grad(loss(scores, labels), scores)
        seconds.append(time.perf_counter() - began)
    return 1000 * min(seconds[1:])
