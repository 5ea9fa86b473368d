"""Forward + backward time and peak memory of every loss, beside its plain n × n formulation.

    python benchmarks/losses.py                     # every loss at 64×240 and 16×1000
    python benchmarks/losses.py --losses neural_ndcg lambdaloss --repeats 9
    python benchmarks/losses.py --long              # and one list of 100,000 items

Both are measured in one run and compared as a ratio, since machines differ and are noisy. Memory is
what the operations allocate at their peak above the inputs, gradients included.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from plain import plain
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from rankgrad import losses

SHAPES = ((64, 240), (16, 1000))
LONG = 100_000


def step(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor) -> None:
    """One forward and backward pass."""
    scores.grad = None
    loss(scores, labels).backward()


def seconds(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor, repeats: int) -> float:
    """The median time of a step."""
    step(loss, scores, labels)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step(loss, scores, labels)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_bytes(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor) -> int:
    """The largest number of bytes that a step has allocated at a time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step(loss, scores, labels)
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def inputs(b: int, n: int) -> tuple[Tensor, Tensor]:
    """Random scores and labels with about WEB30K's label frequencies."""
    generator = torch.Generator().manual_seed(0)
    frequencies = torch.tensor([0.515, 0.325, 0.134, 0.019, 0.007])
    labels = torch.multinomial(frequencies, b * n, replacement=True, generator=generator)
    return torch.randn(b, n, generator=generator, requires_grad=True), labels.reshape(b, n)


def row(name: str, b: int, n: int, repeats: int) -> str:
    """One line of the table."""
    scores, labels = inputs(b, n)
    loss = losses.get(name)
    ours, memory = seconds(loss, scores, labels, repeats), peak_bytes(loss, scores, labels)
    line = f"{name:<22} {b:>3}×{n:<6} {1e3 * ours:>9.1f} {memory / 2**20:>9.1f}"
    other = plain(loss)
    if other is None:
        return line
    theirs = seconds(other, scores, labels, max(1, repeats // 3))
    other_memory = peak_bytes(other, scores, labels)
    return (
        f"{line} {1e3 * theirs:>10.1f} {other_memory / 2**20:>10.1f} {theirs / ours:>7.1f}×"
        f" {other_memory / max(memory, 1):>7.1f}×"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--losses", nargs="*", help="specs; by default all but the stochastic ones")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--long", action="store_true", help=f"one list of {LONG:,} items as well")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    names = arguments.losses or [
        n for n in losses.names() if not n.startswith(("gumbel_", "relaxed"))
    ]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, CPU, float32")
    print(f"{'':<33} {'ours':^19} {'plain n × n':^21} {'ratio':^16}")
    columns = f"{'ms':>9} {'MiB':>9} {'ms':>10} {'MiB':>10} {'time':>8} {'memory':>8}"
    print(f"{'loss':<22} {'lists':<10} {columns}")
    for name in names:
        for b, n in SHAPES:
            print(row(name, b, n, arguments.repeats), flush=True)
    if arguments.long:
        for name in ("pirank_ndcg@10", "pirank_ndcg@10(depth=2)", "lapsum_ndcg@10", "listmle"):
            scores, labels = inputs(1, LONG)
            loss = losses.get(name)
            time_, memory = seconds(loss, scores, labels, 3), peak_bytes(loss, scores, labels)
            print(f"{name:<24} 1×{LONG:,} {1e3 * time_:>9.1f} ms {memory / 2**20:>9.1f} MiB")


if __name__ == "__main__":
    main()
