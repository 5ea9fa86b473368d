"""Seconds to a given validation NDCG@10: rankgrad's losses beside boosted trees, on synthetic data.

    python benchmarks/time_to_quality.py                      # small data, on a GPU if there is one
    python benchmarks/time_to_quality.py --size web30k --device cuda --out quality.json

Of ours the time is that of training and of validation after each epoch; of LightGBM and XGBoost
(hist) that of binning and boosting alone, with early stopping by the same metric. Each loss is
trained on a few lists before, so that no compilation of kernels and no start of a GPU is in its
time. The level asked for is 99 % of the worst one's best unless ``--level`` says otherwise. All run
after each other in one process with the same threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import torch
import xgboost

import rankgrad
from rankgrad.data import synthetic
from rankgrad.data._dataset import Dataset
from rankgrad.training import Settings, fit

METRIC = "ndcg@10"
FEW = 100  # lists to warm up with
Curve = list[tuple[float, float]]  # seconds so far and the validation metric
TREES = {"learning_rate": 0.1, "num_leaves": 31, "min_data_in_leaf": 50}


def ours(loss: str, train: Dataset, vali: Dataset, arguments: argparse.Namespace) -> Curve:
    """A line per epoch, with rankgrad's default settings."""
    settings = Settings(
        loss=loss, metric=METRIC, epochs=arguments.epochs, device=arguments.device, seed=0
    )
    few = train.select(range(FEW)), vali.select(range(FEW))
    fit(settings.model_copy(update={"epochs": 1}), *few)
    history = fit(settings, train, vali).history
    return [(line["seconds"], line[METRIC]) for line in history]


class LightGBM:
    """LightGBM's lambdarank, a tree at a time."""

    def __init__(self, train: Dataset, vali: Dataset, threads: int) -> None:
        options = TREES | {
            "objective": "lambdarank",
            "lambdarank_truncation_level": 13,
            "metric": "None",
            "num_threads": threads,
            "verbosity": -1,
            "seed": 0,
        }
        data = lightgbm.Dataset(train.features, train.labels, group=train.lengths)
        self.booster = lightgbm.Booster(options, data)
        self.features = vali.features

    def add_tree(self, tree: int) -> None:
        self.booster.update()

    def scores_of(self, tree: int) -> np.ndarray:
        return self.booster.predict(
            self.features, start_iteration=tree, num_iteration=1, raw_score=True
        )


class XGBoost:
    """XGBoost's hist with ``rank:ndcg``, a tree at a time."""

    def __init__(self, train: Dataset, vali: Dataset, threads: int) -> None:
        options = {
            "objective": "rank:ndcg",
            "tree_method": "hist",
            "eta": TREES["learning_rate"],
            "nthread": threads,
            "seed": 0,
        }
        self.data = xgboost.QuantileDMatrix(
            train.features, train.labels, group=train.lengths, nthread=threads
        )
        self.vali = xgboost.DMatrix(vali.features, nthread=threads)
        self.booster = xgboost.Booster(options, [self.data])

    def add_tree(self, tree: int) -> None:
        self.booster.update(self.data, tree)

    def scores_of(self, tree: int) -> np.ndarray:
        return self.booster.predict(self.vali, output_margin=True, iteration_range=(tree, tree + 1))


BOOSTED = {"lightgbm": LightGBM, "xgboost": XGBoost}


def boosted(library: str, train: Dataset, vali: Dataset, arguments: argparse.Namespace) -> Curve:
    """A line per tree; the time that evaluating takes is left out."""
    curve: Curve = []
    start = time.perf_counter()
    booster = BOOSTED[library](train, vali, arguments.threads)
    spent = time.perf_counter() - start
    scores = 0.0
    for tree in range(arguments.trees):
        start = time.perf_counter()
        booster.add_tree(tree)
        spent += time.perf_counter() - start
        scores = scores + booster.scores_of(tree)
        value = rankgrad.evaluate(scores, vali.labels, offsets=vali.offsets, metrics=[METRIC])
        curve.append((spent, value[METRIC]))
        best = max(range(len(curve)), key=lambda i: curve[i][1])
        if tree - best >= arguments.patience:
            break
    return curve


def reached(curve: Curve, level: float) -> float | None:
    """The seconds after which the metric was first there."""
    return next((seconds for seconds, value in curve if value >= level), None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--losses", nargs="*", default=["lambdaloss", "approx_ndcg", "neural_ndcg"])
    parser.add_argument("--size", choices=tuple(synthetic.SIZES), default="small")
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="for ours; by default a GPU if there is one",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--trees", type=int, default=1000)
    parser.add_argument("--patience", type=int, default=50, help="trees without a better value")
    parser.add_argument("--level", type=float, help=f"{METRIC} to reach")
    parser.add_argument("--out", type=Path, help="write the curves as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    splits = synthetic.splits(arguments.size)
    train, vali = splits["train"], splits["vali"]
    curves: dict[str, Curve] = {}
    for name in (*BOOSTED, *arguments.losses):
        trained = boosted if name in BOOSTED else ours
        curves[name] = trained(name, train, vali, arguments)
        best = max(value for _, value in curves[name])
        print(f"{name:<16} best {best:.4f} in {curves[name][-1][0]:.1f} s", flush=True)
    level = arguments.level or 0.99 * min(max(v for _, v in curve) for curve in curves.values())
    seconds = {name: reached(curve, level) for name, curve in curves.items()}
    print(f"\nseconds to a validation {METRIC} of {level:.4f}, and as a ratio to lightgbm's")
    for name, spent in seconds.items():
        other = seconds["lightgbm"]
        ratio = f"{other / spent:.2f}×" if spent and other else ""
        print(f"{name:<16} {'not reached' if spent is None else f'{spent:.2f}':>12} {ratio}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(facts(arguments, level, seconds, curves)) + "\n")


def facts(
    arguments: argparse.Namespace,
    level: float,
    seconds: dict[str, float | None],
    curves: dict[str, Curve],
) -> dict[str, Any]:
    gpu = arguments.device == "cuda"
    return {
        "machine": torch.cuda.get_device_name() if gpu else f"{os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            "python": platform.python_version(),
            "rankgrad": rankgrad.__version__,
            "torch": torch.__version__,
            "lightgbm": lightgbm.__version__,
            "xgboost": xgboost.__version__,
        },
        "load": os.getloadavg(),
        "size": arguments.size,
        "threads": arguments.threads,
        "metric": METRIC,
        "level": level,
        "seconds": seconds,
        "curves": curves,
    }


if __name__ == "__main__":
    main()
