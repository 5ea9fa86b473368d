"""Losses as objectives of tree libraries: the cost of a round, the GPU kernel, a study of losses.

::

    python benchmarks/trees.py round                      ours beside LightGBM's own, in turns
    python benchmarks/trees.py gpu --out FILE             gradient and Hessian of 3.6 million rows
    python benchmarks/trees.py study MQ2008 -o RUNS --page docs/results/tables/trees.md

``round`` boosts on simulated data of WEB10K's size with two boosters on one data set, a tree of the
one and a tree of the other in turns, and gives the median of the ratios of neighboring rounds.
``gpu`` needs a GPU, torch and triton alone, takes lists of unequal and of equal lengths, and checks
some against the eager form in float64. ``study`` goes on with what RUNS has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankgrad import kernels, losses

STUDIED = (
    *("mse", "rmse", "bce", "ordinal", "margin_mse", "hinge", "ranknet", "ranknet@10"),
    *("lambdarank@10", "lambdarank@30(norm=true)", "lambdarank@10(metric=ap)", "lambdaloss@10"),
    *("lambdaloss", "lambdaloss@10(scheme=ndcg_loss2++)", "softmax", "listnet", "listmle"),
    *("listap", "neuralsort_ce", "neural_ndcg@10", "neural_ndcg", "neural_ap", "pirank_ndcg@10"),
    *("smoothi_ndcg@10", "approx_ndcg", "approx_ap", "softsort_ndcg@10", "fastsort_ndcg"),
    *("lapsum_ndcg", "lapsum_ap"),
)
FIXED = {"num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 50}


def rounds(arguments: argparse.Namespace) -> None:
    import lightgbm  # the other commands do without

    from rankgrad.data import synthetic
    from rankgrad.integrations.lightgbm import objective

    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    lists = synthetic.make(arguments.lists, seed=0, split="train")
    shared = {"num_threads": arguments.threads, "verbosity": -1, "num_leaves": arguments.leaves}
    dataset = lightgbm.Dataset(np.asarray(lists.features), lists.labels, group=lists.lengths)
    dataset.params = dict(shared)
    built_in = lightgbm.Booster({**shared, "objective": "lambdarank"}, dataset)
    print(f"{len(lists):,} lists, {lists.n_items:,} items, load {os.getloadavg()[0]:.1f}")
    results = []
    for spec in arguments.losses:
        ours, chosen = lightgbm.Booster({**shared, "objective": "none"}, dataset), objective(spec)
        spent: dict[str, list[float]] = {"built-in": [], "ours": [], "objective": []}

        def timed(scores: Any, data: Any, chosen: Any = chosen, spent: Any = spent) -> Any:
            start = clock()
            found = chosen(scores, data)
            spent["objective"].append(clock() - start)
            return found

        ours.update(fobj=chosen)  # compiled, and its rows laid out
        for _ in range(arguments.rounds):
            for name, step in (("built-in", built_in.update), ("ours", ours.update)):
                start = clock()
                step() if name == "built-in" else step(fobj=timed)
                spent[name].append(clock() - start)
        pairs = zip(spent["ours"], spent["built-in"], strict=True)
        ratio = statistics.median(own / other for own, other in pairs)
        line = {"loss": spec, "ratio": ratio} | {
            f"{name} seconds": statistics.median(times) for name, times in spent.items()
        }
        results.append(line)
        print(
            f"{spec:<28} a round {line['ours seconds']:.3f} s, LightGBM's own "
            f"{line['built-in seconds']:.3f} s: {ratio:.2f} times; the objective takes "
            f"{line['objective seconds']:.3f} s",
            flush=True,
        )
    metadata = {"lists": len(lists), "items": lists.n_items, "load": os.getloadavg()[0]}
    write(arguments.out, {**metadata, "options": shared, "rounds": results})


def gpu(arguments: argparse.Namespace) -> None:
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here")
    shapes = [_on_lists(arguments, equal) for equal in (False, True)]
    metadata = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    write(arguments.out, {**metadata, "shapes": shapes})


def _on_lists(arguments: argparse.Namespace, equal: bool) -> dict[str, Any]:
    """Lists of one length, or from half to three halves of it."""
    generator = torch.Generator().manual_seed(0)
    per_list = arguments.rows // arguments.lists
    lengths = torch.randint(
        per_list // 2, per_list * 3 // 2 + 1, (arguments.lists,), generator=generator
    )
    if equal:
        lengths = torch.full((arguments.lists,), per_list)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    items = int(offsets[-1])
    print(f"{items:,} items in {arguments.lists:,} lists of {lengths.min()} to {lengths.max()}")
    labels = torch.multinomial(
        torch.tensor([0.52, 0.32, 0.13, 0.02, 0.01]), items, replacement=True, generator=generator
    ).float()
    results = []
    for spec in arguments.losses:
        for name, scores in (
            ("all equal", torch.zeros(items)),
            ("unequal", torch.randn(items, generator=generator)),
        ):
            results.append(_timed_on_gpu(spec, name, scores, labels, offsets))
    shape = {"min": int(lengths.min()), "max": int(lengths.max())}
    return {"lists": arguments.lists, "items": items, "lengths": shape, "kernels": results}


def _timed_on_gpu(
    spec: str, name: str, scores: torch.Tensor, labels: torch.Tensor, offsets: torch.Tensor
) -> dict[str, Any]:
    from rankgrad.kernels.pair_derivatives import compute

    loss = losses.get(spec)
    max_length, config = int(offsets.diff().max()), loss.newton_kernel()
    inputs = scores.cuda(), labels.cuda(), None, offsets.cuda(), max_length, config
    found = compute(*inputs)
    some = int(offsets[5])
    with kernels.using("eager"):
        wanted = loss.gradient_and_hessian(
            scores[:some].double(), labels[:some].double(), offsets=offsets[:6]
        )
    error = max(
        float((one[:some].cpu().double() - other).abs().max() / other.abs().max())
        for one, other in zip(found, wanted, strict=True)
    )
    times = []
    for _ in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # so that the launches are there when the device comes to them
        start.record()
        compute(*inputs)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    waited = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss.gradient_and_hessian(inputs[0], inputs[1], offsets=inputs[3])
        torch.cuda.synchronize()
        waited.append(1e3 * (time.perf_counter() - began))
    line = {
        "loss": spec,
        "scores": name,
        "device ms": statistics.median(times),
        "call ms": statistics.median(waited),
        "error": error,
        "parts ms": _parts(lambda: compute(*inputs)),
    }
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in line["parts ms"].items() if ms >= 0.05)
    print(
        f"{spec:<26} scores {name:<10} {line['device ms']:.2f} ms on the device ({parts}), a call "
        f"{line['call ms']:.2f} ms, error {error:.1e}",
        flush=True,
    )
    return line


def _parts(call: Callable[[], Any]) -> dict[str, float]:
    """The device time of each kernel of a call, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call()
        torch.cuda.synchronize()
    times = {
        event.key[:40]: event.self_device_time_total / 1e3 for event in profiled.key_averages()
    }
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def study(arguments: argparse.Namespace) -> None:
    from rankgrad.experiments import compare
    from rankgrad.experiments.plans import folds_of
    from rankgrad.results.comparison_tables import differences_table, table
    from rankgrad.training import Settings

    fixed = {**FIXED, "feature_fraction": 1.0, "bagging_fraction": 1.0}
    entries = [compare.TreeEntry("LightGBM", "lightgbm", fixed, arguments.trees)]
    entries += [
        compare.TreeEntry(loss, "lightgbm", fixed, arguments.trees, loss=loss)
        for loss in arguments.losses
    ]
    plan = compare.Plan(
        arguments.data,
        tuple(entries),
        folds=folds_of(arguments.data),
        metrics=("ndcg@10", "ndcg@5", "ap", "rr"),
        settings=Settings(metric="ndcg@10"),
    )
    found = compare.run(plan, arguments.output, workers=arguments.workers, baseline="LightGBM")
    tables = [table(found), differences_table(found, "ndcg@10")]
    page = "\n\n".join(one.render("markdown") for one in tables) + "\n"
    print(page)
    for key, reason in found.missing.items():
        print("missing:", key, reason)
    if arguments.page:
        arguments.page.parent.mkdir(parents=True, exist_ok=True)
        arguments.page.write_text(page, encoding="utf-8")


def write(path: Path | None, metadata: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("round")
    one.set_defaults(call=rounds)
    one.add_argument("--losses", nargs="*", default=["lambdarank@30(norm=true)", "lambdaloss@10"])
    one.add_argument("--lists", type=int, default=6000, help="WEB10K trains on 6,000")
    one.add_argument("--threads", type=int, default=2)
    one.add_argument("--leaves", type=int, default=31)
    one.add_argument("--rounds", type=int, default=20)
    one.add_argument(
        "--cpu-time",
        action="store_true",
        help="of all threads, in place of wall time: for a busy machine, with --threads 1",
    )
    one.add_argument("--out", type=Path)
    one = commands.add_parser("gpu")
    one.set_defaults(call=gpu)
    one.add_argument(
        "--losses", nargs="*", default=["lambdaloss@10", "lambdaloss", "lambdarank@10"]
    )
    one.add_argument("--rows", type=int, default=3_600_000)
    one.add_argument("--lists", type=int, default=10_000)
    one.add_argument("--out", type=Path)
    one = commands.add_parser("study")
    one.set_defaults(call=study)
    one.add_argument("data", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--losses", nargs="*", default=STUDIED)
    one.add_argument("--trees", type=int, default=500)
    one.add_argument("--workers", type=int, default=0)
    one.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
