"""Device time, call latency, peak memory and accuracy of the fused losses, at several shapes.

    python benchmarks/kernels.py                       # every loss below, on the GPU
    python benchmarks/kernels.py --losses neural_ndcg lambdaloss --out figures.json

Device time is that of forward and backward as a replayed CUDA graph; call latency that of one eager
``loss(scores, labels)``, ``backward()`` and synchronisation. Medians of many repetitions, with the
10th and 90th percentile. Memory is what is allocated at the peak above the inputs, the gradient
included. Errors are against the eager form in float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankgrad import kernels, losses

SHAPES = ((64, 240), (16, 1000), (4, 4000))
LONG = {
    "approx_ndcg": 60_000,
    "lambdaloss": 60_000,
    "pirank_ndcg@10": 1_000_000,
    "lapsum_ndcg": 1_000_000,
}
LOSSES = (
    "neural_ndcg",
    "neural_ndcg(transposed=true)",
    "smoothi_ndcg",
    "approx_ndcg",
    "lambdaloss",
    "lambdarank@10",
    "ranknet",
    "listmle",
    "pirank_ndcg@10",
    "softsort_ndcg",
    "lapsum_ndcg",
    "fastsort_ndcg",
)


def inputs(b: int, n: int, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """Random scores and labels with about WEB30K's label frequencies."""
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.515, 0.325, 0.134, 0.019, 0.007]).cumsum(0)
    labels = torch.bucketize(torch.rand(b, n, generator=generator), shares).clamp(max=4).float()
    scores = torch.randn(b, n, generator=generator)
    return scores.to(device).requires_grad_(), labels.to(device)


def step(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor) -> None:
    scores.grad = None
    loss(scores, labels).backward()


def percentiles(times: list[float]) -> dict[str, float]:
    """Median and spread in milliseconds."""
    cuts = statistics.quantiles(times, n=10)
    return {"median": statistics.median(times), "p10": cuts[0], "p90": cuts[-1]}


def latency(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor, repeats: int) -> Any:
    """Milliseconds of an eager step, waited for."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(loss, scores, labels)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return percentiles(times)


def device_time(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor, repeats: int) -> Any:
    """Milliseconds of a step on the device, as a replayed CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(loss, scores, labels)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    scores.grad = None
    with torch.cuda.graph(graph):
        loss(scores, labels).backward()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return percentiles(times)


def peak_mib(loss: Callable[..., Tensor], scores: Tensor, labels: Tensor) -> float:
    """Memory at the peak of a step above what was there before."""
    scores.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(loss, scores, labels)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def errors(name: str, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Relative errors of value and gradient against the eager form in float64."""
    loss = losses.get(name)
    step(loss, scores, labels)
    value = loss(scores, labels).item()
    exact = scores.detach().double().requires_grad_()
    with kernels.using("eager"):
        reference = loss(exact, labels)
        reference.backward()
    apart = (scores.grad.double() - exact.grad).norm() / exact.grad.norm().clamp(min=1e-30)
    return {"value": abs(value / reference.item() - 1), "gradient": apart.item()}


def measure(name: str, b: int, n: int, repeats: int) -> dict[str, Any]:
    """All figures of one loss at one shape."""
    scores, labels = inputs(b, n)
    loss = losses.get(name)
    step(loss, scores, labels)
    found: dict[str, Any] = {"loss": name, "lists": b, "items": n}
    found["latency_ms"] = latency(loss, scores, labels, repeats)
    found["device_ms"] = device_time(loss, scores, labels, repeats)
    found["peak_mib"] = peak_mib(loss, scores, labels)
    if n <= 4000 and "(ties=shuffle" not in name and name != "listmle":
        found["error"] = errors(name, scores, labels)
    elif name == "listmle":
        found["error"] = errors("listmle(ties=stable)", scores, labels)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--losses", nargs="*", default=LOSSES)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--eager", action="store_true", help="without the fused operations")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    arguments = parser.parse_args()
    if arguments.eager:
        kernels.use("eager")
    facts = {
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    print(", ".join(facts.values()))
    print(f"{'loss':<30} {'lists':<12} {'device ms':>10} {'call ms':>8} {'MiB':>8}  errors")
    rows = []
    for name in arguments.losses:
        shapes = [*SHAPES, *([(1, LONG[name])] if name in LONG else [])]
        for b, n in shapes:
            try:
                row = measure(name, b, n, arguments.repeats)
            except Exception as error:  # said in the table; the others go on
                print(f"{name:<30} {f'{b}×{n}':<12} {type(error).__name__}: {error}"[:300])
                continue
            rows.append(row)
            off = row.get("error", {})
            wrong = ", ".join(f"{k} {v:.0e}" for k, v in off.items())
            print(
                f"{name:<30} {f'{b}×{n}':<12} {row['device_ms']['median']:>10.4f} "
                f"{row['latency_ms']['median']:>8.3f} {row['peak_mib']:>8.1f}  {wrong}",
                flush=True,
            )
            if arguments.out:
                arguments.out.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
