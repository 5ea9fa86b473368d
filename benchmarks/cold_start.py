"""The first call of a loss on a CPU with nothing compiled, and small calls after it.

    python benchmarks/cold_start.py [LOSS ...]

Each loss runs in a process of its own with an empty cache of compiled code. Printed are seconds of
CPU time, which other processes disturb less than the clock: imports (PyTorch, Numba, rankgrad), the
first forward and backward pass, and the first in a second process that finds the cache. Small calls
are 4 lists of 20 items, forward and backward, as a multiple of an autograd function that does
nothing, in the same process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

LOSSES = ("softmax", "lambdaloss@10", "approx_ndcg", "smoothi_ndcg", "neural_ndcg")
REPEATS, CALLS = 15, 200


def shortest(call: Callable[[], object]) -> float:
    """CPU seconds of a call: the mean of some, the least of several such means."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        best = min(best, (time.thread_time() - start) / CALLS)
    return best


def measure(spec: str) -> dict[str, float]:
    """The figures of one loss, in a process that has imported nothing yet."""
    start = time.process_time()
    import torch

    from rankgrad.losses import losses

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scores):
            return scores.new_empty(())

        @staticmethod
        def backward(ctx, grad):
            return grad.new_empty((4, 20))

    imported = time.process_time()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 20, generator=generator, requires_grad=True)
    labels = torch.randint(0, 4, (4, 20), generator=generator).float()
    loss = losses.get(spec)

    def run(value: Callable[[], torch.Tensor]) -> None:
        scores.grad = None
        value().backward()

    run(lambda: loss(scores, labels))
    first = time.process_time()
    empty = shortest(lambda: run(lambda: Nothing.apply(scores)))
    small = shortest(lambda: run(lambda: loss(scores, labels)))
    return {
        "import": imported - start,
        "first": first - imported,
        "small": small,
        "multiple": small / empty,
    }


def in_a_new_process(spec: str, cache: str) -> dict[str, float]:
    """:func:`measure` with compiled code cached in a folder."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", spec],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    print(f"{'loss':<16}{'import':>8}{'first':>8}{'cached':>8}{'small call':>14}")
    for spec in sys.argv[1:] or LOSSES:
        with tempfile.TemporaryDirectory() as cache:
            cold, cached = (in_a_new_process(spec, cache) for _ in range(2))
        print(
            f"{spec:<16}{cold['import']:>7.2f}s{cold['first']:>7.2f}s{cached['first']:>7.2f}s"
            f"{cached['small'] * 1e6:>8.0f} us{cached['multiple']:>5.1f}x"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main()
