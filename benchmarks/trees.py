"""Losses as objectives of tree libraries: the cost of a round, the GPU kernel, a study of losses.

::

    python benchmarks/trees.py round                      ours beside LightGBM's and XGBoost's own
    python benchmarks/trees.py gpu --out FILE             gradient and Hessian of 3.6 million rows
    python benchmarks/trees.py study MQ2008 -o RUNS --page docs/results/tables/trees.md

``round`` boosts on simulated data of WEB10K's size with two boosters on one data set, a tree of the
one and a tree of the other in turns, and gives the median of the ratios of neighboring rounds;
then LightGBM and XGBoost, each with its own objective, in the same way.
``gpu`` needs a GPU, torch and triton alone, takes lists of unequal and of equal lengths, and checks
some against the eager form in float64. ``study`` goes on with what RUNS has.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import itertools
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
PACKAGES = {"LightGBM": "lightgbm", "XGBoost": "xgboost-cpu"}
Round = Callable[[], Any]  # grows one more tree
Timed = Callable[[Any], Any]  # an objective that notes what it takes
FIXED = {"num_leaves": 15, "learning_rate": 0.05, "min_data_in_leaf": 50}


class LightGBMRounds:
    """Boosters of LightGBM on one data set."""

    own = "lambdarank@30(norm=true)"  # what its objective is called here

    def __init__(self, lists: Any, threads: int, leaves: int) -> None:
        import lightgbm  # the other commands do without

        self.booster = lightgbm.Booster
        self.options = {"num_threads": threads, "verbosity": -1, "num_leaves": leaves}
        self.data = lightgbm.Dataset(np.asarray(lists.features), lists.labels, group=lists.lengths)
        self.data.params = dict(self.options)

    def built_in(self) -> Round:
        return self.booster({**self.options, "objective": "lambdarank"}, self.data).update

    def custom(self, spec: str, timed: Timed) -> Round:
        from rankgrad.integrations.lightgbm import objective

        booster = self.booster({**self.options, "objective": "none"}, self.data)
        return functools.partial(booster.update, fobj=timed(objective(spec)))


class XGBoostRounds:
    """Boosters of XGBoost, with histograms of as many bins as LightGBM's, grown by leaves too."""

    own = "lambdarank@32(norm=true)"

    def __init__(self, lists: Any, threads: int, leaves: int) -> None:
        import xgboost

        self.booster = xgboost.Booster
        shape = {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": leaves, "max_bin": 255}
        self.options = {"nthread": threads, "verbosity": 0, "tree_method": "hist", **shape}
        self.data = xgboost.QuantileDMatrix(
            np.asarray(lists.features),
            lists.labels,
            group=lists.lengths,
            max_bin=255,
            nthread=threads,
        )

    def built_in(self) -> Round:
        return self._round({"objective": "rank:ndcg"})

    def custom(self, spec: str, timed: Timed) -> Round:
        from rankgrad.integrations.xgboost import objective

        return self._round({"disable_default_eval_metric": 1}, fobj=timed(objective(spec)))

    def _round(self, options: dict[str, Any], **more: Any) -> Round:
        booster, count = self.booster({**self.options, **options}, [self.data]), itertools.count()
        return lambda: booster.update(self.data, next(count), **more)


LIBRARIES = {"LightGBM": LightGBMRounds, "XGBoost": XGBoostRounds}


def rounds(arguments: argparse.Namespace) -> None:
    from rankgrad.data import synthetic

    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    lists = synthetic.make(arguments.lists, seed=0, split="train")
    print(f"{len(lists):,} lists, {lists.n_items:,} items, load {os.getloadavg()[0]:.1f}")
    made = {
        name: LIBRARIES[name](lists, arguments.threads, arguments.leaves)
        for name in arguments.libraries
    }
    results = []
    for name, library in made.items():
        for spec in arguments.losses or (library.own, "lambdaloss@10"):
            in_objective: list[float] = []

            def timed(chosen: Any, into: list[float] = in_objective) -> Any:
                def call(scores: Any, data: Any) -> Any:
                    start = clock()
                    found = chosen(scores, data)
                    into.append(clock() - start)
                    return found

                return call

            steps = {"built-in": library.built_in(), "ours": library.custom(spec, timed)}
            line = {"library": name, "loss": spec} | _in_turns(steps, arguments.rounds, clock)
            line["objective seconds"] = statistics.median(in_objective[1:])
            results.append(line)
            print(
                f"{spec:<28} a round {line['ours seconds']:.3f} s, {name}'s own "
                f"{line['built-in seconds']:.3f} s: {line['ratio']:.2f} times; the objective takes "
                f"{line['objective seconds']:.3f} s",
                flush=True,
            )
    metadata: dict[str, Any] = {"lists": len(lists), "items": lists.n_items}
    metadata |= {"load": os.getloadavg()[0], "clock": clock.__name__, "rounds": results}
    metadata["options"] = {name: library.options for name, library in made.items()}
    metadata["versions"] = {name: importlib.metadata.version(PACKAGES[name]) for name in made}
    if len(made) == len(LIBRARIES):
        steps = {name: library.built_in() for name, library in made.items()}
        metadata["own"] = _in_turns(steps, arguments.rounds, clock)
        print("XGBoost's own beside LightGBM's own:", metadata["own"])
    write(arguments.out, metadata)


def _in_turns(steps: dict[str, Round], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of a round of each, and of the ratios of the second to the first."""
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()  # compiled, and its rows laid out
    for _ in range(rounds):
        for name, step in steps.items():
            start = clock()
            step()
            spent[name].append(clock() - start)
    ratios = [second / first for first, second in zip(*spent.values(), strict=True)]
    medians = {f"{name} seconds": statistics.median(times) for name, times in spent.items()}
    return {"ratio": statistics.median(ratios), **medians}


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
    from rankgrad.kernels._pair_derivatives import compute
    from rankgrad.lists import FlatLists

    loss = losses.get(spec)
    on_gpu = scores.cuda(), labels.cuda(), None, None, offsets.cuda()
    lists = FlatLists(*on_gpu, int(offsets.diff().max()))
    found = compute(lists, loss.newton_kernel())
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
        compute(lists, loss.newton_kernel())
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    waited = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss.gradient_and_hessian(lists.scores, lists.labels, offsets=lists.offsets)
        torch.cuda.synchronize()
        waited.append(1e3 * (time.perf_counter() - began))
    line = {
        "loss": spec,
        "scores": name,
        "device ms": statistics.median(times),
        "call ms": statistics.median(waited),
        "error": error,
        "parts ms": _parts(lambda: compute(lists, loss.newton_kernel())),
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
    from rankgrad.results._comparison_tables import differences_table, table
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
    one.add_argument("--libraries", nargs="*", choices=[*LIBRARIES], default=[*LIBRARIES])
    one.add_argument("--losses", nargs="*", help="the library's own here, and lambdaloss@10")
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
