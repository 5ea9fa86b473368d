"""The first call of a loss with nothing compiled, and what comes after it.

    python benchmarks/cold_start.py [LOSS ...]
    python benchmarks/cold_start.py --device cuda [--out FILE] [LOSS ...]

Each loss runs in a process of its own with an empty cache of compiled code.

On a CPU, seconds of CPU time are printed, which other processes disturb less than the clock:
imports (PyTorch, Numba, rankgrad), and the first forward and backward pass: where all is compiled
("source"), in a second process that finds the cache of the first ("cached"), and with an empty
cache and the compiled code of the package ("package": that of a wheel, or what ``make kernels``
wrote in a checkout; "none" where it lacks what is called). Small calls are 4 lists of 20 items,
forward and backward, as a multiple of an autograd function that does nothing, in the same process.

On a GPU, they are seconds of the clock, after the GPU itself is started: the first call on 64 lists
of 240 items, the second, the first in a second process that finds Triton's cache; and by how much
the first of three epochs of training takes longer than the last one, without a cache and with it.
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
ON_GPU = (*LOSSES, "approx_ap")
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


def from_source(spec: str) -> dict[str, float]:
    """The figures of one loss without the compiled code of the package."""
    start = time.process_time()
    from rankgrad import _precompiled

    _precompiled.FOLDER = Path(os.devnull)
    imported = time.process_time() - start
    found = from_package(spec)
    return {**found, "import": found["import"] + imported}


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
    """By how much a first epoch takes longer than the last one, likewise."""
    from rankgrad.data import synthetic
    from rankgrad.training import Settings, fit

    data = {split: synthetic.make(400, split=split) for split in ("train", "vali")}
    settings = Settings(loss=spec, device="cuda", epochs=3, patience=None)
    done = fit(settings, data["train"], data["vali"])
    ends = [epoch["seconds"] for epoch in done.history]  # since training began
    return {"epoch": ends[0], "last epoch": ends[-1] - ends[-2]}


MEASURES = {
    "source": from_source,
    "package": from_package,
    "cuda": measure_on_gpu,
    "epochs": epochs_on_gpu,
}


def in_a_new_process(what: str, spec: str, cache: str) -> dict[str, float]:
    """One of :data:`MEASURES`, with compiled code cached in a folder."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", what, spec],
        env={**os.environ, "NUMBA_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def twice(what: str, spec: str) -> list[dict[str, float]]:
    """A measure without compiled code, and with that of the first time."""
    with tempfile.TemporaryDirectory() as cache:
        return [in_a_new_process(what, spec, cache) for _ in range(2)]


def on_cpu(specs: list[str]) -> dict[str, object]:
    columns = ("import", "source", "cached", "package")
    print(f"{'loss':<16}" + "".join(f"{each:>9}" for each in columns) + f"{'small call':>14}")
    found: dict[str, object] = {}
    for spec in specs or LOSSES:
        source, cached = twice("source", spec)
        with tempfile.TemporaryDirectory() as cache:
            package = in_a_new_process("package", spec, cache)
            compiled = any(path.suffix == ".nbc" for path in Path(cache).rglob("*"))
        found[spec] = {"source": source, "cached": cached, "package": None if compiled else package}
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
    return found


def on_gpu(specs: list[str]) -> dict[str, object]:
    print(f"{'loss':<16}{'first':>8}{'cached':>8}{'second':>9}{'epoch 1 more':>14}{'cached':>8}")
    found: dict[str, object] = {}
    for spec in specs or ON_GPU:
        cold, cached = calls = twice("cuda", spec)
        epochs = twice("epochs", spec)
        more = [each["epoch"] - each["last epoch"] for each in epochs]
        found[spec] = {"calls": calls, "epochs": epochs}
        print(
            f"{spec:<16}{cold['first']:>7.2f}s{cached['first']:>7.2f}s"
            f"{cold['second'] * 1e3:>6.1f} ms{more[0]:>13.2f}s{more[1]:>7.2f}s",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("losses", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="also as JSON")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(MEASURES[given.measure](given.losses[0])))
        return
    found = (on_cpu if given.device == "cpu" else on_gpu)(given.losses)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
