r"""Every registered loss, with and without a cutoff: time, memory, latency, graphs, errors.

    python benchmarks/grid.py --out grid.json
    python benchmarks/grid.py --out grid.json --only '^ot_' --sections time,error
    python benchmarks/grid.py --out after.json --baseline before.json     # ratios to another run
    python benchmarks/grid.py --out without.json --baseline with.json --sections latency \
        --without-launch-cache

Sections, each over all losses before the next one begins:

- ``time``: device time of a forward and backward pass: a replayed CUDA graph where it can be
  captured, else the sum over its kernels; on CPUs a call. ``by`` says which.
- ``memory``: allocated at the peak above the inputs, the gradient included, at two shapes.
- ``latency``: wall time of an eager call and ``backward()``, waited for, beside a loss that
  computes nothing.
- ``graph``: whether it is captured in a CUDA graph that, replayed on other scores, gives what a
  call gives there.
- ``error``: against the eager form in float64, relative: of the mean over lists and its gradient,
  and of the list where it is largest. Of a loss under 0.001 it is relative to the metric, one minus
  the loss: the loss of recall without a cutoff is 0.
- ``compile``: whether ``torch.compile(fullgraph=True)`` takes it, forward and backward.
- ``long``: single long lists.

Stochastic losses draw eight samples. JSON is written after every figure; what fails is recorded and
the rest goes on. At the end, how many losses reach the targets, and which do not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would say when it starts and stops

import torch
from measure import TorchStep, device_times, latencies, repeated, spread, timed
from torch import Tensor

SECTIONS = ("time", "memory", "latency", "graph", "error", "compile", "long")
CUDA_ONLY = ("graph", "long")
METRICS = ("precision", "recall", "ap", "rr", "arp")
EXTRA = tuple(
    f"{name}{cut}(metric={metric})"
    for name in ("lambdarank", "lambdaloss")
    for metric in METRICS
    for cut in ("", "@10")
)
LINEAR = ("ndcg", "dcg", "precision", "recall", "rbp", "arp")
POINTWISE = ("mse", "rmse", "bce", "ordinal")
SAMPLES = 8
Figures = dict[str, Any]


class OutOfTimeError(Exception):
    """The time that was given is over."""


def specs(only: str) -> list[str]:
    """Every registered name, with and without a cutoff, and lambda losses of other metrics."""
    from rankgrad import losses

    found = []
    for name in losses.names():
        found.append(name)
        try:
            losses.get(f"{name}@10")
        except (TypeError, ValueError):
            continue
        found.append(f"{name}@10")
    return [spec for spec in (*found, *EXTRA) if re.search(only, spec)]


def is_random(spec: str) -> bool:
    return spec.startswith(("gumbel_", "listmle"))


def make(spec: str, **options: Any) -> Any:
    """A loss, stochastic ones with eight samples."""
    from rankgrad import losses

    if spec.startswith("gumbel_"):
        options.setdefault("samples", SAMPLES)
    return losses.get(spec, **options)


def inputs(b: int, n: int, device: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random scores and labels with about WEB30K's label frequencies."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.tensor([0.515, 0.325, 0.134, 0.019, 0.007]).cumsum(0)
    labels = torch.bucketize(torch.rand(b, n, generator=generator), shares).clamp(max=4).float()
    return torch.randn(b, n, generator=generator).to(device), labels.to(device)


def shape(text: str) -> tuple[int, int]:
    b, n = text.split("x")
    return int(b), int(n)


class Nothing(torch.autograd.Function):
    """The cheapest loss there can be."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.save_for_backward(scores)
        return scores.new_empty(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.empty_like(ctx.saved_tensors[0])


class Grid:
    """What is measured and what was found."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device: str = arguments.device
        self.out: Path = arguments.out
        self.shape, self.long_shape = shape(arguments.shape), shape(arguments.large)
        self.repeats: int = arguments.repeats
        self.each: float = arguments.each
        self.backend: str = arguments.compile_backend
        self.end = time.monotonic() + arguments.seconds
        self.start = time.monotonic()
        self.found: Figures = {
            "machine": machine(self.device),
            "date": time.strftime("%Y-%m-%d"),
            "device": self.device,
            "versions": versions(),
            "shapes": [arguments.shape, arguments.large],
            "launch_cache": not arguments.without_launch_cache,
            "samples": SAMPLES,
            "cells": {},
            "long": {},
        }
        if arguments.resume and self.out.exists():
            earlier = json.loads(self.out.read_text())
            self.found |= {key: earlier[key] for key in ("cells", "long")}

    def write(self) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        partial = self.out.with_suffix(".partial")
        partial.write_text(json.dumps(self.found, indent=1) + "\n")
        partial.replace(self.out)

    def keep(self, place: Figures, name: str, count: str, once: Callable[[], Figures]) -> None:
        """A figure, or why there is none; written and shown."""
        if time.monotonic() > self.end:
            raise OutOfTimeError
        begun = time.monotonic()
        try:
            place[name] = once()
        except Exception as error:  # recorded; the others go on
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            place[name] = {"failed": reason[:400]}
            recover(self.device)
        took = time.monotonic() - begun
        passed = time.monotonic() - self.start
        print(f"{passed:7.1f} s  {count}  {brief(place[name])}  [{took:.1f} s]", flush=True)
        self.write()

    def run(self, section: str, chosen: list[str]) -> None:
        measure = getattr(self, f"measure_{section}")
        for at, spec in enumerate(chosen):
            cell = self.found["cells"].setdefault(spec, {})
            if section in cell and "failed" not in cell[section]:
                continue
            count = f"{section:<8}{at + 1:>4}/{len(chosen)} {spec:<36}"
            self.keep(cell, section, count, lambda spec=spec: measure(spec))

    def step(self, spec: str, size: tuple[int, int], **options: Any) -> TorchStep:
        """A step that has run once, so that its kernels are compiled."""
        step = TorchStep(make(spec, **options), *inputs(*size, self.device), capturable=True)
        step.run()
        step.wait()
        return step

    def measure_time(self, spec: str) -> Figures:
        step = self.step(spec, self.shape)
        return self.timed(step) | {"fused": is_fused(step.loss, self.device)}

    def timed(self, step: TorchStep) -> Figures:
        if self.device == "cuda":
            by, times = device_times(step, self.repeats, self.each)
            if by != "graph":
                recover(self.device)
        else:
            by, times = "calls", repeated(lambda: timed(step), self.repeats, self.each)
        return {"ms": statistics.median(times), "by": by, "spread": spread(times)}

    def measure_memory(self, spec: str) -> Figures:
        found = {}
        sizes = [self.shape] if spec.startswith("gumbel_") else [self.shape, self.long_shape]
        for size in sizes:
            step = self.step(spec, size)
            found[f"{size[0]}x{size[1]}"] = step.peak_mib()
            del step
            if self.device == "cuda":
                torch.cuda.empty_cache()
        return {"mib": found}

    def measure_latency(self, spec: str) -> Figures:
        scores, labels = inputs(*self.shape, self.device)
        nothing = TorchStep(lambda scores, _: Nothing.apply(scores), scores, labels)
        steps = {"ours": self.step(spec, self.shape), "nothing": nothing}
        for _ in range(3):
            steps["ours"].run()
        times = latencies(steps, self.repeats, self.each)
        return {
            "ms": statistics.median(times["ours"]),
            "floor_ms": statistics.median(times["nothing"]),
            "spread": spread(times["ours"]),
        }

    def measure_graph(self, spec: str) -> Figures:
        step = self.step(spec, self.shape)
        other, _ = inputs(*self.shape, self.device, seed=1)
        graph = capture(step.run)
        with torch.no_grad():
            step.scores.copy_(other)
        torch.cuda.manual_seed(7)  # what is drawn anew comes from PyTorch's generator
        graph.replay()
        torch.cuda.synchronize()
        replayed, gradient = step.value(), step.gradient()
        torch.cuda.manual_seed(7)
        step.run()
        step.wait()
        return {"captured": True} | compared(step, replayed, gradient)

    def measure_error(self, spec: str) -> Figures:
        from rankgrad import kernels

        options = {"seed": 7} if is_random(spec) else {}
        scores, labels = inputs(*self.shape, self.device)
        values, gradient = per_list(make(spec, reduction="none", **options), scores, labels)
        with kernels.using("eager"):
            loss = make(spec, reduction="none", **options)
            exact, right = per_list(loss, scores.double(), labels.double())
        apart, norm = gradient - right, right.norm(dim=-1)
        worst = apart.norm(dim=-1) / norm.clamp(min=1e-30)
        return {
            "value": value_error(values.mean(), exact.mean()).item(),
            "gradient": (apart.norm() / right.norm().clamp(min=1e-30)).item(),
            "list_value": value_error(values, exact).max().item(),
            "list_gradient": torch.where(norm > 0, worst, apart.norm(dim=-1)).max().item(),
        }

    def measure_compile(self, spec: str) -> Figures:
        if is_random(spec):
            return {"skipped": "stochastic"}
        torch._dynamo.reset()
        step = self.step(spec, self.shape)
        compiled = torch.compile(step.loss, fullgraph=True, backend=self.backend)
        whole = TorchStep(compiled, *inputs(*self.shape, self.device))
        whole.run()
        whole.wait()
        same = compared(step, whole.value(), whole.gradient())
        return {"taken": True, "backend": self.backend} | same

    def measure_long(self) -> None:
        for spec, n in LONG:
            count = f"long     1x{n} {spec:<36}"
            if f"{spec} 1x{n}" not in self.found["long"]:
                place = self.found["long"]
                self.keep(place, f"{spec} 1x{n}", count, lambda s=spec, n=n: self.long_list(s, n))
        for n in (10_000, 50_000):
            key = f"flash-sinkhorn 1x{n}"
            once = lambda n=n: self.timed(flash_sinkhorn(n))  # noqa: E731
            self.keep(self.found["long"], key, f"long     {key:<44}", once)

    def long_list(self, spec: str, n: int) -> Figures:
        step = self.step(spec, (1, n))
        peak = step.peak_mib()
        return self.timed(step) | {"mib": peak}


#: All hundred iterations, with a tolerance that is never reached.
TRANSPORT = "ot_ndcg(iterations=100, tolerance=1e-30)"
LONG = (
    ("approx_ap", 60_000),
    ("lambdarank(metric=ap)", 60_000),
    (TRANSPORT, 10_000),
    (TRANSPORT, 50_000),
)


def flash_sinkhorn(n: int) -> TorchStep:
    """The same problem, points in one dimension, by the package of this name."""
    from flash_sinkhorn import SamplesLoss  # type: ignore[import-not-found]

    loss = SamplesLoss(
        "sinkhorn",
        backend="alternating",
        use_epsilon_scaling=False,
        eps=0.01,
        n_iters=100,
        debias=False,
        allow_tf32=False,
    )
    scores, _ = inputs(1, n, "cuda")
    targets = torch.linspace(1, 0, n, device="cuda")[:, None]

    def cost(scores: Tensor, _: Tensor) -> Tensor:
        points = torch.sigmoid((scores - scores.mean()) / scores.std()).reshape(-1, 1)
        return loss(points.contiguous(), targets)

    step = TorchStep(cost, scores, scores)
    step.run()
    step.wait()
    return step


def per_list(loss: Any, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The value of each list and its gradient, in float64."""
    scores = scores.clone().requires_grad_()
    values = loss(scores, labels)
    (gradient,) = torch.autograd.grad(values.sum(), scores)
    return values.detach().double(), gradient.double()


def value_error(values: Tensor, exact: Tensor) -> Tensor:
    """Relative to the loss, or where that is almost 0 to the metric, one minus it."""
    size = torch.where(exact.abs() < 1e-3, 1 - exact, exact).abs()
    return (values - exact).abs() / size


def compared(step: TorchStep, value: float, gradient: Tensor) -> Figures:
    """Whether a value and a gradient are those of a step's last run, to rounding."""
    right = step.gradient()
    difference = {
        "value": abs(value - step.value()) / max(1.0, abs(step.value())),
        "gradient": ((gradient - right).norm() / right.norm().clamp(min=1e-30)).item(),
    }
    same = difference["value"] <= 1e-6 and difference["gradient"] <= 1e-5
    return {"same": same, "difference": difference}


def is_fused(loss: Any, device: str) -> bool | None:
    """Whether it has a kernel on this device; None where that cannot be asked."""
    try:
        from rankgrad.inputs import as_lists

        few = torch.zeros(1, 2, device=device)
        return loss.kernel_call(as_lists(few, few)) is not None
    except Exception:
        return None


def capture(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of a step, warm."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def recover(device: str) -> None:
    """After a capture that failed: PyTorch's generator may believe that it goes on."""
    if device != "cuda":
        return
    torch.cuda.synchronize()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    fresh = torch.Generator("cuda").manual_seed(0)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
    torch.cuda.empty_cache()


def disable_launch_cache() -> None:
    """Triton's own launches, before any kernel is imported."""
    import rankgrad.kernels.gpu._launcher as launch

    if not hasattr(launch, "launches_as_known"):
        raise SystemExit("--without-launch-cache: there is no launch cache to disable")
    launch.launches_as_known = lambda: False


def brief(figures: Figures) -> str:
    """Figures on one line."""
    parts = []
    for name, value in figures.items():
        if name in ("spread", "difference", "backend"):
            continue
        if isinstance(value, dict):
            value = " ".join(f"{key}: {number:.1f}" for key, number in value.items())
        elif isinstance(value, float):
            value = f"{value:.3g}"
        parts.append(f"{name} {value}")
    return ", ".join(parts)


def machine(device: str) -> str:
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "numba", "numpy", "flash-sinkhorn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


class Target(NamedTuple):
    """A figure that cells must not exceed."""

    name: str
    #: The cell's spec and the figures of all cells: the figure, or None where it is not asked for.
    figure: Callable[[str, dict[str, Figures]], float | None]
    most: float


class Name(NamedTuple):
    """What a spec says: the family and metric of a cell of the grid, or the loss."""

    gumbel: bool
    family: str
    metric: str
    cut: str

    @classmethod
    def of(cls, spec: str) -> Name:
        from rankgrad.sorting import FAMILIES

        gumbel = spec.startswith("gumbel_")
        bare = spec.removeprefix("gumbel_")
        name, at, cut = bare.partition("(")[0].partition("@")
        family, _, metric = name.partition("_")
        if family in FAMILIES and metric:
            return cls(gumbel, family, metric, at + cut)
        return cls(gumbel, "", name, at + cut)

    @property
    def is_cell(self) -> bool:
        return bool(self.family) and not self.gumbel

    def sibling(self, metric: str) -> str:
        return f"{self.family}_{metric}{self.cut}"


def figure(cells: dict[str, Figures], spec: str, section: str, name: str) -> float | None:
    """A figure of a cell; None if it was not measured or failed."""
    value = cells.get(spec, {}).get(section, {}).get(name)
    return None if value is None else float(value)


def ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def targets(baseline: dict[str, Figures], sizes: list[str]) -> Iterator[Target]:
    """The targets of device time, memory and errors."""

    def of(section: str, name: str, asked: Callable[[str, Name], bool]) -> Any:
        def read(spec: str, cells: dict[str, Figures]) -> float | None:
            return figure(cells, spec, section, name) if asked(spec, Name.of(spec)) else None

        return read

    def to_baseline(section: str, asked: Callable[[str, Name], bool]) -> Any:
        def read(spec: str, cells: dict[str, Figures]) -> float | None:
            before = figure(baseline, spec, section, "ms")
            now = figure(cells, spec, section, "ms")
            return ratio(now, before) if asked(spec, Name.of(spec)) else None

        return read

    def to_ndcg(spec: str, cells: dict[str, Figures]) -> float | None:
        name = Name.of(spec)
        if not nonlinear(spec, name):
            return None
        base = figure(cells, name.sibling("ndcg"), "time", "ms")
        return ratio(figure(cells, spec, "time", "ms"), base)

    def to_base(spec: str, cells: dict[str, Figures]) -> float | None:
        if not Name.of(spec).gumbel:
            return None
        base = figure(cells, spec.removeprefix("gumbel_"), "time", "ms")
        return ratio(figure(cells, spec, "time", "ms"), base)

    def peak(size: str, gumbel: bool) -> Any:
        def read(spec: str, cells: dict[str, Figures]) -> float | None:
            found = cells[spec].get("memory", {}).get("mib", {}).get(size)
            return found if Name.of(spec).gumbel == gumbel else None

        return read

    def linear(spec: str, name: Name) -> bool:
        return name.is_cell and name.metric in LINEAR and name.family != "ot"

    def nonlinear(spec: str, name: Name) -> bool:
        return name.is_cell and name.metric not in LINEAR

    def everywhere(spec: str, name: Name) -> bool:
        return True

    if baseline:
        yield Target("linear metrics: device time to baseline", to_baseline("time", linear), 1.05)
        yield Target("call latency to baseline", to_baseline("latency", everywhere), 1.1)
    yield Target("ap, rr, err, hits: device time to ndcg", to_ndcg, 4.0)
    short = of("time", "ms", lambda s, name: nonlinear(s, name) and name.family != "ot")
    yield Target("ap, rr, err, hits but ot: device ms", short, 1.2)
    transport = of("time", "ms", lambda spec, name: name.is_cell and name.family == "ot")
    yield Target("ot: device ms", transport, 3.0)
    lambdas = of("time", "ms", lambda spec, name: spec.startswith("lambda"))
    yield Target("lambda losses: device ms", lambdas, 0.1)
    pointwise = of("time", "ms", lambda spec, name: spec in POINTWISE)
    yield Target("pointwise: device ms", pointwise, 0.02)
    yield Target(f"gumbel, {SAMPLES} samples: device time to base", to_base, 10.0)
    yield Target(f"MiB at {sizes[0]}", peak(sizes[0], False), 32.0)
    yield Target(f"MiB at {sizes[1]}", peak(sizes[1], False), 64.0)
    yield Target(f"MiB at {sizes[0]}, gumbel", peak(sizes[0], True), 128.0)
    yield Target("error of value", of("error", "value", everywhere), 2e-6)
    yield Target("error of gradient", of("error", "gradient", everywhere), 5e-5)
    yield Target("error of value, worst list", of("error", "list_value", everywhere), 2e-6)
    yield Target("error of gradient, worst list", of("error", "list_gradient", everywhere), 5e-5)


def summarize(found: Figures, baseline: dict[str, Figures]) -> None:
    """How many losses reach each target, and which do not, worst first."""
    cells = found["cells"]
    print("\ntarget".ljust(49) + "reached    not")
    for target in targets(baseline, found["shapes"]):
        figures = {spec: target.figure(spec, cells) for spec in cells}
        asked = {spec: value for spec, value in figures.items() if value is not None}
        if not asked:
            continue
        over = sorted((s for s in asked if not asked[s] <= target.most), key=lambda s: -asked[s])
        failing = [f"{spec} {asked[spec]:.3g}" for spec in over]
        report(f"{target.name} <= {target.most:g}", len(asked), failing)
    for section, wanted in (("graph", "captured"), ("compile", "taken")):
        measured = {spec: cell[section] for spec, cell in cells.items() if section in cell}
        counted = {s: each for s, each in measured.items() if "skipped" not in each}
        for name in (wanted, "same"):
            failing = [spec for spec, each in counted.items() if not each.get(name)]
            if counted:
                report(f"{section}: {name}", len(counted), failing)
    failed = [
        f"{spec} ({section}: {figures['failed'][:80]})"
        for spec, cell in cells.items()
        for section, figures in cell.items()
        if "failed" in figures
    ]
    report("no failure", len(cells), failed)
    summarize_baseline(cells, baseline)
    for name, figures in found["long"].items():
        print(f"{name:<60} {brief(figures)}")


def summarize_baseline(cells: dict[str, Figures], baseline: dict[str, Figures]) -> None:
    """The median over losses of ratios to the baseline."""
    for section in ("time", "latency"):
        ratios = [
            ratio(figure(cells, spec, section, "ms"), figure(baseline, spec, section, "ms"))
            for spec in cells
        ]
        known = [each for each in ratios if each is not None]
        if known:
            middle = statistics.median(known)
            print(f"{section}: {middle:.3f} of the baseline, median of {len(known)} losses")


def report(name: str, asked: int, failing: list[str]) -> None:
    print(f"{name:<48}{asked - len(failing):>4}/{asked:<5}", end="")
    print("; ".join(failing[:12]) + (f"; and {len(failing) - 12} more" * (len(failing) > 12)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON, written after every figure")
    parser.add_argument("--only", default="", metavar="REGEX", help="losses whose spec has it")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--baseline", type=Path, help="JSON of another run, for ratios to it")
    parser.add_argument("--seconds", type=float, default=1e9, help="for all; then it stops")
    parser.add_argument("--each", type=float, default=0.2, help="seconds at most for a figure")
    parser.add_argument("--repeats", type=int, default=40, help="of a figure at most")
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--shape", default="64x240", metavar="BxN", help="lists x items")
    parser.add_argument("--large", default="4x4000", metavar="BxN", help="for memory too")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--compile-backend", default="inductor")
    parser.add_argument("--resume", action="store_true", help="go on with the JSON that is there")
    parser.add_argument("--summary", action="store_true", help="of the JSON that is there, only")
    parser.add_argument("--without-launch-cache", action="store_true")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU here")
    arguments.device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    unknown = set(arguments.sections.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"--sections: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    return arguments


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    if arguments.without_launch_cache:
        disable_launch_cache()
    earlier = json.loads(arguments.baseline.read_text())["cells"] if arguments.baseline else {}
    if arguments.summary:
        summarize(json.loads(arguments.out.read_text()), earlier)
        return
    grid = Grid(arguments)
    chosen = specs(arguments.only)
    print(f"{grid.found['machine']}, {len(chosen)} losses, {grid.found['versions']}", flush=True)
    try:
        for section in arguments.sections.split(","):
            if section in CUDA_ONLY and arguments.device != "cuda":
                print(f"{section}: on a GPU only")
            elif section == "long":
                grid.measure_long()
            else:
                grid.run(section, chosen)
    except OutOfTimeError:
        print(f"stopped after {arguments.seconds:g} s; --resume goes on")
    summarize(grid.found, earlier)


if __name__ == "__main__":
    main()
