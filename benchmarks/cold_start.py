"""How long the first call of a loss takes with nothing compiled, and how long small calls take.

    python benchmarks/cold_start.py [LOSS ...]
    python benchmarks/cold_start.py --device cuda [--out FILE] [LOSS ...]

Each loss runs in a process of its own with an empty cache of compiled code.

On a CPU, it prints seconds of CPU time, which other processes disturb less than wall-clock time:

- import: PyTorch, Numba and rankgrad;
- source: the first forward and backward pass, if everything is compiled from source;
- cached: the same in a second process, which finds the cache of the first;
- package: the same with an empty cache and the compiled code of the package, which is that of a
  wheel or what ``make kernels`` wrote in a checkout; "none" if the package lacks this code;
- small call: forward and backward of 4 lists of 20 items, in microseconds and as a multiple of an
  autograd function that does nothing, in the same process.

On a GPU, it prints wall-clock seconds, after the GPU itself has started: the first call on 64 lists
of 240 items; the first call in a second process, which finds Triton's cache; the second call; and
by how much the first of three epochs of training takes longer than the last one, without a cache
and with it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LOSSES = ("softmax", "lambdaloss@10", "approx_ndcg", "smoothi_ndcg", "neural_ndcg")
GPU_LOSSES = (*LOSSES, "approx_ap")
REPEATS, CALLS = 15, 200


def shortest(call: Callable[[], object]) -> float:
    """CPU seconds of a call: the least of ``REPEATS`` means over ``CALLS`` calls."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        best = min(best, (time.thread_time() - start) / CALLS)
    return best


def from_source(spec: str) -> dict[str, float]:
    """The figures of one loss without the compiled code of the package."""
    start = time.process_time()
    from rankgrad import _precompiled

    _precompiled.FOLDER = Path(os.devnull)
    imported = time.process_time() - start
    figures = from_package(spec)
    return {**figures, "import": figures["import"] + imported}


def from_package(spec: str) -> dict[str, float]:
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


def measure_on_gpu(spec: str) -> dict[str, float]:
    """The figures of one loss on a GPU, in a process that has imported nothing yet."""
    import torch

    from rankgrad.losses import losses

    generator = torch.Generator("cuda").manual_seed(0)
    scores = torch.randn(64, 240, generator=generator, device="cuda", requires_grad=True)
    labels = torch.randint(0, 4, (64, 240), generator=generator, device="cuda").float()
    (scores * labels).sum().backward()  # starts the GPU, and autograd on it
    loss = losses.get(spec)

    def seconds() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        loss(scores, labels).backward()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    first, second = seconds(), seconds()
    return {"first": first, "second": second}


def epochs_on_gpu(spec: str) -> dict[str, float]:
    """Seconds of the first and of the last epoch of a training on a GPU, likewise."""
    from rankgrad.data import synthetic
    from rankgrad.training import Settings, fit

    data = {split: synthetic.make(400, split=split) for split in ("train", "vali")}
    settings = Settings(loss=spec, device="cuda", epochs=3, patience=None)
    result = fit(settings, data["train"], data["vali"])
    ends = [epoch["seconds"] for epoch in result.history]  # since training began
    return {"epoch": ends[0], "last epoch": ends[-1] - ends[-2]}


MEASURES = {
    "source": from_source,
    "package": from_package,
    "cuda": measure_on_gpu,
    "epochs": epochs_on_gpu,
}


def in_a_new_process(measure: str, spec: str, cache: str) -> dict[str, float]:
    """One of :data:`MEASURES`, with compiled code cached in a folder."""
    process = subprocess.run(
        [sys.executable, __file__, "--measure", measure, spec],
        env={**os.environ, "NUMBA_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    figures: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return figures


def twice(measure: str, spec: str) -> list[dict[str, float]]:
    """One of :data:`MEASURES` without compiled code, then with what the first process compiled."""
    with tempfile.TemporaryDirectory() as cache:
        return [in_a_new_process(measure, spec, cache) for _ in range(2)]


def on_cpu(specs: list[str]) -> dict[str, object]:
    """Print a row for each loss; return all figures by loss."""
    columns = ("import", "source", "cached", "package")
    print(f"{'loss':<16}" + "".join(f"{each:>9}" for each in columns) + f"{'small call':>14}")
    figures: dict[str, object] = {}
    for spec in specs or LOSSES:
        source, cached = twice("source", spec)
        with tempfile.TemporaryDirectory() as cache:
            package = in_a_new_process("package", spec, cache)
            compiled = any(path.suffix == ".nbc" for path in Path(cache).rglob("*"))
        figures[spec] = {
            "source": source,
            "cached": cached,
            "package": None if compiled else package,
        }
        seconds = [source["import"], source["first"], cached["first"], package["first"]]
        shown = [f"{each:.2f}s" for each in seconds[:3]] + [
            "none" if compiled else f"{seconds[3]:.2f}s"
        ]
        print(
            f"{spec:<16}"
            + "".join(f"{each:>9}" for each in shown)
            + f"{cached['small'] * 1e6:>8.0f} us{cached['multiple']:>5.1f}x",
            flush=True,
        )
    return figures


def on_gpu(specs: list[str]) -> dict[str, object]:
    """Print a row for each loss; return all figures by loss."""
    print(f"{'loss':<16}{'first':>8}{'cached':>8}{'second':>9}{'epoch 1 more':>14}{'cached':>8}")
    figures: dict[str, object] = {}
    for spec in specs or GPU_LOSSES:
        cold, cached = calls = twice("cuda", spec)
        epochs = twice("epochs", spec)
        more = [each["epoch"] - each["last epoch"] for each in epochs]
        figures[spec] = {"calls": calls, "epochs": epochs}
        print(
            f"{spec:<16}{cold['first']:>7.2f}s{cached['first']:>7.2f}s"
            f"{cold['second'] * 1e3:>6.1f} ms{more[0]:>13.2f}s{more[1]:>7.2f}s",
            flush=True,
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("losses", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="also write the figures to this file, as JSON")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(MEASURES[options.measure](options.losses[0])))
        return
    figures = (on_cpu if options.device == "cpu" else on_gpu)(options.losses)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
