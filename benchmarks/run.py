"""Time and memory of the losses, forward and backward, beside other libraries on the same inputs.

    python benchmarks/run.py                                    # on the GPU if there is one
    python benchmarks/run.py --device cpu --out cpu.json --plot cpu.svg
    python benchmarks/run.py --losses neural_ndcg lambdaloss --shapes 64x240 --peers allRank rax
    python benchmarks/run.py --peers --sweep                    # ours alone, without the long lists

Call latency is one eager call and ``backward()``, waited for; on a GPU there is device time too: a
replayed CUDA graph where a step can be one, else the time of its kernels. Those of one loss and
shape take turns of ten calls, so that a busy machine slows all alike, and so does a loss that
computes nothing, the floor of what a call takes (on CPUs, a call on 4 lists of 20 items should take
at most three times that); figures are medians with the 10th and 90th percentile. Threads that wait
for each other are slowed most beside other processes: ``--cpu-time --threads 1`` is for a busy
machine. Memory is what PyTorch allocates at the peak above the inputs, the gradient included; on
CPUs, how far the process grows where that is more; of JAX, what the compiled program asks for; of
TensorFlow it is not known.
Errors of ours are against the eager form in float64; of a peer there is the cosine of its gradient
and ours, 1 where both compute the same up to a factor.

The sweep measures one list of 100 to 1,000,000 items; losses over pairs stop at 60,000, or after a
step of a second, or when the next would not fit; ``--plot`` draws it. JSON is written after every
row.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before JAX and PyTorch are imported: the one would take most of a GPU's memory, the other's
# profiler says when it starts and stops.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import peers
import plot
import torch
from measure import (
    Step,
    TorchStep,
    cosine,
    device_times,
    latencies,
    repeated,
    spread,
    timed,
)
from torch import Tensor

import rankgrad
from rankgrad import kernels, losses

OURS = "rankgrad"
PACKAGES = ("torch", "triton", "numba", "jax", "tensorflow")
SHAPES = ("64x240", "16x1000", "4x4000")
SMALL = "4x20"  # on CPUs, where the overhead of a call counts
LOSSES = (
    "neural_ndcg",
    "neural_ndcg(transposed=true)",
    "smoothi_ndcg",
    "approx_ndcg",
    "lambdaloss",
    "lambdarank",
    "lambdarank@10",
    "ranknet",
    "listmle",
    "listnet",
    "softmax",
    "neuralsort_ce",
    "pirank_ndcg",
    "pirank_ndcg@10",
    "softsort_ndcg",
    "lapsum_ndcg",
    "fastsort_ndcg",
)
LONG = {
    "approx_ndcg": 60_000,
    "lambdaloss": 60_000,
    "pirank_ndcg@10": 1_000_000,
    "lapsum_ndcg": 1_000_000,
}
SWEEP = (100, 300, 1000, 3000, 10_000, 30_000, 60_000, 100_000, 300_000, 1_000_000)
QUADRATIC = ("neural_ndcg", "smoothi_ndcg", "approx_ndcg", "lambdaloss")
SWEPT = (
    *((OURS, name) for name in ("pirank_ndcg@10", "lapsum_ndcg", "fastsort_ndcg", "listmle")),
    *((OURS, name) for name in QUADRATIC),
    ("allRank", "neural_ndcg"),
    ("allRank", "lambdaloss"),
    ("rax", "approx_ndcg"),
)
LONGEST_QUADRATIC = 60_000
RANDOM = ("listmle",)  # ties in random order: gradients differ from call to call
Row = dict[str, Any]


def inputs(b: int, n: int, device: str) -> tuple[Tensor, Tensor]:
    """Random scores and labels with about WEB30K's label frequencies."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.515, 0.325, 0.134, 0.019, 0.007]).cumsum(0)
    labels = torch.bucketize(torch.rand(b, n, generator=generator), shares).clamp(max=4).float()
    return torch.randn(b, n, generator=generator).to(device), labels.to(device)


def errors(name: str, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Relative errors of value and gradient against the eager form in float64."""
    loss = losses.get("listmle(ties=stable)" if name == "listmle" else name)
    ours = TorchStep(loss, scores, labels)
    ours.run()
    exact = TorchStep(loss, scores.double(), labels)
    with kernels.using("eager"):
        exact.run()
    apart = (ours.gradient() - exact.gradient()).norm() / exact.gradient().norm().clamp(min=1e-30)
    return {"value": abs(ours.value() / exact.value() - 1), "gradient": apart.item()}


class Nothing(torch.autograd.Function):
    """The cheapest loss there can be."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.save_for_backward(scores)
        return scores.new_empty(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.empty_like(ctx.saved_tensors[0])


class Benchmark:
    """What is measured, how long it may take, and what was found."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device: str = arguments.device
        self.repeats: int = arguments.repeats
        self.seconds: float = arguments.seconds
        self.clock = time.process_time if arguments.cpu_time else time.perf_counter
        self.out: Path | None = arguments.out
        self.end = time.monotonic() + arguments.within
        self.waiting: list[tuple[Row, Step]] = []
        self.tables, versions, self.absent = peers.load(arguments.peers, self.device)
        self.found: dict[str, Any] = {
            "machine": machine(self.device),
            "date": time.strftime("%Y-%m-%d"),
            "device": self.device,
            "threads": torch.get_num_threads(),
            "clock": "CPU time" if arguments.cpu_time else "wall time",
            "versions": {
                "python": platform.python_version(),
                OURS: rankgrad.__version__,
                **{name: peers.version(name) for name in PACKAGES},
                **versions,
            },
            "kernels": kernels.mode(),
            "load": os.getloadavg(),
            "tests": arguments.tests,
            "absent": self.absent,
            "rows": [],
            "sweep": [],
        }

    @property
    def late(self) -> bool:
        return time.monotonic() > self.end

    def write(self) -> None:
        if self.out:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(self.found, indent=1) + "\n")

    def step(self, who: str, name: str, scores: Tensor, labels: Tensor) -> Step:
        if who == OURS:
            return TorchStep(losses.get(name), scores, labels, capturable=True)
        return self.tables[who][name].make(scores, labels)

    def steps(
        self, name: str, scores: Tensor, labels: Tensor
    ) -> tuple[dict[str, Step], dict[str, str]]:
        """Those that run at this shape, warm, ours first; and why the others do not."""
        steps: dict[str, Step] = {}
        skipped: dict[str, str] = {}
        for who in [OURS, *(who for who, table in self.tables.items() if name in table)]:
            most = None if who == OURS else self.tables[who][name].most
            if most is not None and scores.shape[1] > most:
                skipped[who] = f"not over {most:,} items"
            elif who != OURS and self.late:
                skipped[who] = "no time left"
            else:
                try:
                    step = self.step(who, name, scores, labels)
                    step.run()
                    step.wait()
                    steps[who] = step
                except Exception as error:  # said in the table; the others go on
                    skipped[who] = f"{type(error).__name__}: {error}"[:300]
                if self.device == "cuda":
                    torch.cuda.empty_cache()  # which JAX could not use
        return steps, skipped

    def compare(self, name: str, b: int, n: int) -> None:
        """A loss of ours and its peers at one shape."""
        scores, labels = inputs(b, n, self.device)
        steps, skipped = self.steps(name, scores, labels)
        nothing = TorchStep(lambda scores, _: Nothing.apply(scores), scores, labels)
        steps_and_floor = {**steps, "nothing": nothing}
        times = latencies(steps_and_floor, self.repeats, self.seconds, self.clock)
        ours = steps.get(OURS)
        for who, step in steps.items():
            row: Row = {"loss": name, "who": who, "lists": b, "items": n}
            if who != OURS:
                row["what"] = self.tables[who][name].what
            row["latency_ms"] = spread(times[who])
            if who == OURS:
                row["floor_ms"] = spread(times["nothing"])
            try:
                self.look_closer(row, step, ours, scores, labels)
            except Exception as error:
                row["note"] = f"{type(error).__name__}: {error}"[:300]
            self.keep(row)
        for who, reason in skipped.items():
            self.keep({"loss": name, "who": who, "lists": b, "items": n, "skipped": reason})
        if self.device == "cuda":
            del steps, ours
            torch.cuda.empty_cache()

    def look_closer(
        self, row: Row, step: Step, ours: Step | None, scores: Tensor, labels: Tensor
    ) -> None:
        """Device time, memory, and how right it is."""
        row["value"] = step.value()
        if row["who"] == OURS:
            b, n = scores.shape
            if self.device == "cuda" or b * n * n < 4e6:
                row["error"] = errors(row["loss"], scores, labels)
        elif ours is not None and row["loss"] not in RANDOM:
            row["cosine"] = cosine(step.gradient(), ours.gradient())
        if (peak := step.peak_mib()) is not None:
            row["peak_mib"] = peak
        if self.device == "cuda" and step.capturable:
            self.time_device(row, step)
        elif self.device == "cuda":
            self.waiting.append((row, step))

    def time_device(self, row: Row, step: Step) -> None:
        by, times = device_times(step, self.repeats, self.seconds)
        row["device_ms"] = spread(times) | {"by": by}

    def time_waiting(self) -> None:
        """Device times by the profiler, after all calls: it may slow those that come after it."""
        for row, step in self.waiting:
            try:
                self.time_device(row, step)
            except Exception as error:
                row["note"] = f"{type(error).__name__}: {error}"[:300]
            self.show(row)
        self.waiting.clear()

    def keep(self, row: Row) -> None:
        self.found["rows"].append(row)
        self.show(row)

    def show(self, row: Row) -> None:
        """With its ratio to ours."""
        first = next(
            (
                r
                for r in self.found["rows"]
                if r["who"] == OURS and all(r[k] == row[k] for k in ("loss", "lists", "items"))
            ),
            {},
        )
        for figure in ("latency_ms", "device_ms"):
            if row["who"] != OURS and figure in row and figure in first:
                row.setdefault("ratio", {})[figure] = (
                    row[figure]["median"] / first[figure]["median"]
                )
        print(line(row), flush=True)
        self.write()

    def sweep(self, who: str, name: str) -> None:
        """One list, ever longer."""
        quadratic = who != OURS or name in QUADRATIC
        for n in SWEEP:
            if self.late or (quadratic and n > LONGEST_QUADRATIC):
                return
            try:
                point = self.point(who, name, n)
            except Exception as error:
                print(f"{name} of {who}, {n:,} items: {type(error).__name__}: {error}"[:300])
                return
            self.found["sweep"].append(point)
            print(
                f"{name:<30} {who:<22} 1×{n:<10} {point['ms']['median']:>10.4f} "
                f"{point['peak_mib']:>9.1f}",
                flush=True,
            )
            self.write()
            later = next((m for m in SWEEP if m > n), n)
            slow = point["ms"]["least"] > 1e3 or not self.fits(point["peak_mib"], later / n)
            if quadratic and slow:
                return

    def point(self, who: str, name: str, n: int) -> Row:
        step = self.step(who, name, *inputs(1, n, self.device))
        step.run()
        step.wait()
        peak, seconds = step.peak_mib(), self.seconds / 3
        if self.device == "cuda":
            by, times = device_times(step, self.repeats, seconds)
        else:
            by, times = "calls", repeated(lambda: timed(step, self.clock), self.repeats, seconds)
        ms = spread(times) | {"by": by}
        return {"loss": name, "who": who, "items": n, "ms": ms, "peak_mib": peak}

    def fits(self, mib: float, growth: float) -> bool:
        """Whether the next point would, if memory grows with the square of the length."""
        room = torch.cuda.mem_get_info()[0] / 2**20 if self.device == "cuda" else 4096
        return mib * growth**2 < room


def line(row: Row) -> str:
    """A row of the printed table."""
    start = f"{row['loss']:<30} {row['who']:<22} {row['lists']}×{row['items']}".ljust(66)
    if "skipped" in row:
        return f"{start} left out: {row['skipped']}"
    device = row.get("device_ms", {}).get("median")
    cells = [
        f"{device:>10.4f}" if device is not None else " " * 10,
        f"{row['latency_ms']['median']:>10.3f}",
        f"{row['peak_mib']:>9.1f}" if "peak_mib" in row else " " * 9,
        f"{list(row['ratio'].values())[-1]:>7.1f}×" if "ratio" in row else " " * 8,
    ]
    facts = [f"{k} {v:.0e}" for k, v in row.get("error", {}).items()]
    facts += [f"cosine {row['cosine']:.4f}"] if "cosine" in row else []
    if "floor_ms" in row:
        floor = row["latency_ms"]["median"] / row["floor_ms"]["median"]
        facts.append(f"{floor:.1f}× a loss that computes nothing")
    facts += [row["note"]] if "note" in row else []
    return " ".join([start, *cells, "", ", ".join(facts)])


def machine(device: str) -> str:
    """The GPU, or the processor and how many of its cores are ours."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    information = Path("/proc/cpuinfo")
    names = [
        text.partition(":")[2].strip()
        for text in (information.read_text().splitlines() if information.exists() else [])
        if text.startswith("model name")
    ]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def shapes(name: str, given: list[str]) -> Iterator[tuple[int, int]]:
    for shape in given:
        b, n = shape.split("x")
        yield int(b), int(n)
    if name in LONG and tuple(given) == SHAPES:
        yield 1, LONG[name]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--losses", nargs="*", default=LOSSES)
    parser.add_argument("--shapes", nargs="*", help="lists x items", metavar="BxN")
    parser.add_argument("--peers", nargs="*", default=[*peers.LIBRARIES], metavar="LIBRARY")
    parser.add_argument(
        "--sweep", nargs="*", metavar="LOSS", help="losses to sweep; all of those by default"
    )
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=0.5, help="at most, for each figure")
    parser.add_argument("--within", type=float, default=1e9, help="seconds; then no more peers")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="of all threads, in place of wall time: for a busy machine, with --threads 1",
    )
    parser.add_argument("--eager", action="store_true", help="ours without the fused operations")
    parser.add_argument("--tests", metavar="TEXT", help="how the tests went, noted in the JSON")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--plot", type=Path, help="draw the sweep as SVG")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        # Before either library looks: allRank takes a GPU whenever it sees one.
        os.environ["CUDA_VISIBLE_DEVICES"], os.environ["JAX_PLATFORMS"] = "", "cpu"
    if arguments.cpu_time and arguments.device != "cpu":
        parser.error("--cpu-time goes with --device cpu")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU here")
    arguments.device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.shapes is None:
        # On CPUs the longest takes minutes in most peers.
        arguments.shapes = [*SHAPES] if arguments.device == "cuda" else [SMALL, *SHAPES[:2]]
    if arguments.sweep is None:
        arguments.sweep = [*arguments.losses]
    return arguments


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    if arguments.eager:
        kernels.use("eager")
    benchmark = Benchmark(arguments)
    print(f"{benchmark.found['machine']}, {arguments.threads} threads, {benchmark.found['date']}")
    print(", ".join(f"{name} {it}" for name, it in benchmark.found["versions"].items()))
    for who, reason in benchmark.absent.items():
        print(f"without {who}: {reason}"[:300])
    head = f"{'loss':<30} {'of':<22} {'lists':<12}"
    print(f"{head} {'device ms':>10} {'call ms':>10} {'MiB':>9} {'to ours':>8}", flush=True)
    for name in arguments.losses:
        for b, n in shapes(name, arguments.shapes):
            benchmark.compare(name, b, n)
    benchmark.time_waiting()
    for who, name in SWEPT:
        if name in arguments.sweep and (who == OURS or name in benchmark.tables.get(who, {})):
            benchmark.sweep(who, name)
    if arguments.plot and benchmark.found["sweep"]:
        arguments.plot.write_text(plot.draw(benchmark.found))


if __name__ == "__main__":
    main()
