"""One forward and backward pass of a loss, ours or a peer's: its time, memory, value, gradient."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Loss = Callable[[Tensor, Tensor], Tensor]
Clock = Callable[[], float]
Spread = dict[str, Any]
AT_LEAST = 3  # repetitions, however slow
TURN = 10  # calls of one library in a row
CYCLES = 500_000  # that a GPU is kept busy while the host asks for what is timed: some 0.3 ms


class Step(Protocol):
    """A forward and backward pass on inputs that are already on the device."""

    capturable: bool  # as a CUDA graph: it never waits for the device inside

    def run(self) -> None:
        """Start one, without waiting for it."""

    def wait(self) -> None:
        """Until the device has finished."""

    def value(self) -> float:
        """What the last run gave."""

    def gradient(self) -> Tensor:
        """The gradient of the last run, on the CPU in float64."""

    def peak_mib(self) -> float | None:
        """Memory at the peak of a run above the inputs, outputs included; None if untold."""


class TorchStep:
    """A step in PyTorch."""

    def __init__(
        self, loss: Loss, scores: Tensor, labels: Tensor, *, capturable: bool = False
    ) -> None:
        self.loss, self.labels, self.capturable = loss, labels, capturable
        self.scores = scores.detach().clone().requires_grad_()
        self.cuda = scores.device.type == "cuda"

    def run(self) -> None:
        self.scores.grad = None
        value = self.loss(self.scores, self.labels)
        value.backward()
        self.last = value.detach()

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def value(self) -> float:
        return self.last.item()

    def gradient(self) -> Tensor:
        assert self.scores.grad is not None
        return self.scores.grad.double().cpu()

    def peak_mib(self) -> float:
        self.scores.grad = None
        if not self.cuda:
            return max(cpu_peak_bytes(self.run), resident_bytes(self.run)) / 2**20
        self.wait()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.run()
        self.wait()
        return (torch.cuda.max_memory_allocated() - before) / 2**20


class JaxStep:
    """A step in JAX, compiled for the inputs' shape."""

    capturable = False

    def __init__(self, loss: Callable[..., Any], scores: Tensor, labels: Tensor) -> None:
        import jax

        device = jax.devices("gpu" if scores.device.type == "cuda" else "cpu")[0]
        self.inputs = [
            jax.device_put(x.detach().float().cpu().numpy(), device) for x in (scores, labels)
        ]
        self.compiled = jax.jit(jax.value_and_grad(loss)).lower(*self.inputs).compile()

    def run(self) -> None:
        self.last = self.compiled(*self.inputs)

    def wait(self) -> None:
        for part in self.last:
            part.block_until_ready()

    def value(self) -> float:
        return float(self.last[0])

    def gradient(self) -> Tensor:
        import numpy as np

        return torch.from_numpy(np.array(self.last[1])).double()

    def peak_mib(self) -> float:
        needs = self.compiled.memory_analysis()
        return (needs.temp_size_in_bytes + needs.output_size_in_bytes) / 2**20


class TensorFlowStep:
    """A step in TensorFlow on CPUs, traced for the inputs' shape: a graph, or compiled by XLA."""

    capturable = False

    def __init__(
        self, loss: Callable[..., Any], scores: Tensor, labels: Tensor, *, xla: bool
    ) -> None:
        import tensorflow

        self.inputs = [tensorflow.constant(x.detach().numpy()) for x in (labels, scores)]

        def value_and_gradient(labels: Any, scores: Any) -> Any:
            with tensorflow.GradientTape() as tape:
                tape.watch(scores)
                value = loss(labels, scores)
            return value, tape.gradient(value, scores)

        self.step = tensorflow.function(value_and_gradient, jit_compile=xla)

    def run(self) -> None:
        self.last = self.step(*self.inputs)

    def wait(self) -> None:
        for part in getattr(self, "last", ()):
            part.numpy()

    def value(self) -> float:
        return float(self.last[0])

    def gradient(self) -> Tensor:
        return torch.from_numpy(self.last[1].numpy().copy()).double()

    def peak_mib(self) -> None:
        """Its allocator keeps what it has freed, and says nothing on CPUs."""


def timed(step: Step, clock: Clock = time.perf_counter) -> float:
    """Milliseconds of a step, waited for."""
    step.wait()
    start = clock()
    step.run()
    step.wait()
    return 1e3 * (clock() - start)


def latencies(
    steps: dict[str, Step], repeats: int, seconds: float, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Milliseconds of each step, in turns, so that a busy machine slows all of them alike.

    A turn is several calls, as in training: the first, which finds another's data in the caches,
    does not count.
    """
    times: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(-(-repeats // TURN)):
        for who, step in steps.items():
            if _enough(times[who], seconds):
                continue
            timed(step)
            for _ in range(TURN):
                times[who].append(timed(step, clock))
                if _enough(times[who], seconds):
                    break
    return times


def _enough(times: list[float], seconds: float) -> bool:
    return len(times) >= AT_LEAST and sum(times) >= 1e3 * seconds


def repeated(once: Callable[[], float], repeats: int, seconds: float) -> list[float]:
    """As many times as asked for, or as fit into the time, but never under three."""
    start = time.perf_counter()
    times: list[float] = []
    while len(times) < repeats:
        if len(times) >= AT_LEAST and time.perf_counter() - start > seconds:
            break
        times.append(once())
    return times


def device_times(step: Step, repeats: int, seconds: float) -> tuple[str, list[float]]:
    """How they were measured, and milliseconds on the GPU."""
    if step.capturable:
        try:
            return "graph", graph_times(step.run, repeats, seconds)
        except RuntimeError:  # it does wait for the device somewhere
            torch.cuda.synchronize()
    times = kernel_times(step, min(repeats, 5), seconds)
    if min(times) > 0:
        return "kernels", times
    return "queued calls", repeated(lambda: queued(step, 20), 5, seconds)  # no profiler there


def graph_times(run: Callable[[], None], repeats: int, seconds: float) -> list[float]:
    """Milliseconds of a step as a replayed CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # others' threads go on
        run()

    def replay() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(CYCLES)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    replay()
    return repeated(replay, repeats, seconds)


def kernel_times(step: Step, repeats: int, seconds: float) -> list[float]:
    """Milliseconds that the kernels and copies of a step take, without the gaps between them."""

    def once() -> float:
        with profile(activities=[ProfilerActivity.CUDA]) as record:
            step.run()
            step.wait()
        events = record.profiler.kineto_results.events()
        return sum(e.duration_ns() for e in events if e.device_type() == DeviceType.CUDA) / 1e6

    once()  # the first one starts the profiler
    return repeated(once, repeats, seconds)


def queued(step: Step, calls: int) -> float:
    """Milliseconds of a step among many that do not wait for each other."""
    start = time.perf_counter()
    for _ in range(calls):
        step.run()
    step.wait()
    return 1e3 * (time.perf_counter() - start) / calls


def cpu_peak_bytes(run: Callable[[], None]) -> int:
    """The largest number of bytes that PyTorch had allocated at a time for it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def resident_bytes(run: Callable[[], None]) -> int:
    """How far the process grows at the peak, compiled loops included; 0 if not on Linux."""
    status, references = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not references.exists():
        return 0

    def kib(key: str) -> int:
        lines = (line.split() for line in status.read_text().splitlines())
        return next(int(words[1]) for words in lines if words[0] == f"{key}:")

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else what was freed before would be taken again unseen
    references.write_text("5")  # the high-water mark begins anew
    before = kib("VmRSS")
    run()
    return 1024 * (kib("VmHWM") - before)


def spread(times: list[float]) -> Spread:
    """Median, least, 10th and 90th percentile."""
    cuts = statistics.quantiles(times, n=10, method="inclusive")
    return {
        "median": statistics.median(times),
        "least": min(times),
        "p10": cuts[0],
        "p90": cuts[-1],
        "repeats": len(times),
    }


def cosine(one: Tensor, other: Tensor) -> float:
    """Of the angle between two gradients: 1 where they point the same way."""
    return torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0).item()
