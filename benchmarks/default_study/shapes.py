"""Data on which the rules of the default were not made: other lengths, labels and metrics.

``grades`` and ``binary`` compare losses by several metrics. The other cases compare the default
with other losses, with the default of few items, and with LightGBM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trees
from data import Data, expected_gains
from train import encode, expected_ndcg

from rankgrad.data import Dataset, synthetic
from rankgrad.metrics import metrics
from rankgrad.training import Settings, fit
from rankgrad.training._settings import for_data

SMALL, LIGHTGBM, WITH_COLUMNS = "`small`", "LightGBM", "LightGBM, the list's columns too"
LONGER = "`softmax`, 20 epochs"  # in place of 10
#: Points of LightGBM: its defaults, and the best on the second world's features at small size.
_POINTS = (0, 4)
_SOFTMAX, _GRADED, _LAMBDA, _RANKNET = "softmax", "ordered_logit", "lambdaloss@10", "ranknet"
_LOSSES = (_SOFTMAX, _GRADED, _LAMBDA, _RANKNET)
_OF_METRICS = (
    *("lambdarank(metric=ap)", "neural_ap", "smoothi_ap", "approx_ap", "smoothi_precision@10"),
    *("neural_precision@10", "lambdarank(metric=rr)", "neural_rr", "smoothi_rr"),
)
_RELEVANT = 2  # the label from which an item of the case ``binary`` is relevant
_NDCG = "ndcg@10"
_GRADED_METRICS = (
    *(_NDCG, "ndcg@10(gain=linear)", "ndcg", "err", "ap", f"ap(threshold={_RELEVANT})"),
    *(f"precision@10(threshold={_RELEVANT})", f"rr(threshold={_RELEVANT})"),
)
_BINARY_METRICS = (_NDCG, "ap", "precision@10", "rr")
_FEW = Data((1000, 300, 2000))
_COMPARED = (_GRADED, _SOFTMAX, _LAMBDA, SMALL, LIGHTGBM, WITH_COLUMNS)


@dataclass(frozen=True)
class Case:
    """Data of some shape, and what is trained on them.

    Args:
        data: the simulated data.
        names: losses, with everything else the default's, or names of this file.
        default: the loss of the default.
        metrics: what is measured on test lists.
        is_binary: whether labels of at least ``_RELEVANT`` are 1 and others 0.
    """

    data: Data
    names: tuple[str, ...]
    default: str = _GRADED
    metrics: tuple[str, ...] = (_NDCG,)
    is_binary: bool = False

    def make(self, part: str) -> tuple[Dataset, np.ndarray]:
        """The lists of a part, and the expected gains of their items."""
        made = self.data.make(part)
        gains = expected_gains(synthetic.oracle(made, world=self.data.world), self.data)
        if self.is_binary:
            labels = (made.labels >= _RELEVANT).astype(np.float32)
            made = Dataset(made.features, labels, made.offsets, made.qids)
        return made, gains


_BINARY_LOSSES = (_SOFTMAX, "ordered_logit(levels=2)", _LAMBDA, _RANKNET, *_OF_METRICS)
#: By name. Those in ``_IN_BOTH`` are in both worlds, but for the losses of single metrics.
CASES = {
    "grades": Case(_FEW, (*_LOSSES, "neural_ap"), metrics=_GRADED_METRICS),
    "binary": Case(_FEW, _BINARY_LOSSES, _SOFTMAX, _BINARY_METRICS, is_binary=True),
    "5 items": Case(Data((12000, 3000, 9000), length=5), (*_COMPARED, LONGER), _SOFTMAX),
    "10 items": Case(Data((8000, 2000, 6000), length=10), _COMPARED, _SOFTMAX),
    "25 items": Case(Data((4000, 1000, 4000), length=25), _COMPARED),
    "300 items or more": Case(
        Data((4000, 2000, 13000), least=300), _COMPARED, metrics=_GRADED_METRICS
    ),
}
_IN_BOTH = ("grades", "binary")
WORLDS = ("listwise", "pointwise")


@dataclass(frozen=True)
class Task:
    """One training: of what, in which case and world, on which queries, with which seed."""

    case: str
    world: str
    name: str
    queries: int = 0
    seed: int = 0

    @property
    def key(self) -> str:
        """The task as JSON."""
        return json.dumps(vars(self), sort_keys=True)


def tasks(
    cases: Iterable[str], only: Collection[str], queries: int, seeds: Iterable[int]
) -> Iterable[Task]:
    """All trainings of some cases, or ``only`` those of some names."""
    for seed in seeds:
        for name in cases:
            for what in (each for each in CASES[name].names if each in only or not only):
                in_both = name in _IN_BOTH and what not in _OF_METRICS
                for world in WORLDS if in_both else WORLDS[:1]:
                    yield Task(name, world, what, queries, seed)


def run(output: Path, planned: Iterable[Task], threads: int, seconds: float) -> None:
    """Train what has no result yet, until the time is over, and add a line for each.

    Args:
        output: a file of JSON lines.
        planned: what to train.
        threads: of PyTorch and LightGBM.
        seconds: no training starts after them.
    """
    deadline = time.monotonic() + seconds
    torch.set_num_threads(threads)
    done = trees.read_trees(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    loaded: tuple[Case, dict[str, tuple[Dataset, np.ndarray]]] | None = None
    for task in planned:
        if task.key in done or time.monotonic() > deadline:
            continue
        case = CASES[task.case]
        case = replace(case, data=replace(case.data, world=task.world, seed=task.queries))
        if loaded is None or loaded[0] != case:
            loaded = (case, {part: case.make(part) for part in trees.PARTS})
        began = time.perf_counter()
        found, scores = _train(task, {part: own[0] for part, own in loaded[1].items()}, threads)
        found["seconds"] = round(time.perf_counter() - began, 1)
        found |= _measured(case, *loaded[1]["test"], scores)
        with output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"task": task.key, **found}) + "\n")
        shown = ", ".join(f"{name} {value:.4f}" for name, value in found["test"].items())
        print(f"{task.key}: {shown}, {found['seconds']} s", flush=True)


def _train(
    task: Task, lists: dict[str, Dataset], threads: int
) -> tuple[dict[str, Any], np.ndarray]:
    """Train, and score test lists."""
    train, vali, test = (lists[part] for part in trees.PARTS)
    if task.name in (LIGHTGBM, WITH_COLUMNS):
        if task.name == WITH_COLUMNS:
            train, vali, test = map(trees.with_columns, (train, vali, test))
        boosters = [trees.boost(trees.points()[n], train, vali, threads) for n in _POINTS]
        values = [booster.best_score["valid_0"]["ndcg@10"] for booster in boosters]
        best = int(np.argmax(values))
        return {"point": _POINTS[best]}, boosters[best].predict(test.features)
    explicit: dict[str, Any] = {"seed": task.seed}
    explicit |= {"model": "small"} if task.name == SMALL else {"loss": task.name}
    if task.name == LONGER:
        explicit |= {"loss": _SOFTMAX, "epochs": 20}
    settings, notes = for_data(Settings(**explicit), train, explicit)
    fitted = fit(settings, train, vali)
    found = {"notes": notes, "epochs": len(fitted.history), "loss": settings.loss}
    return found, np.asarray(fitted.model.predict(test.features, test.offsets))


def _measured(case: Case, test: Dataset, gains: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """Means of all metrics on test lists, and values by list; expected DCG@10 of graded labels."""
    values = torch.from_numpy(np.asarray(scores, np.float32))
    labels, offsets = torch.from_numpy(test.labels), torch.from_numpy(test.offsets)
    by_list = {
        spec: metrics.get(spec)(values, labels, offsets=offsets).numpy() for spec in case.metrics
    }
    found: dict[str, Any] = {"test": {spec: float(own.mean()) for spec, own in by_list.items()}}
    if not case.is_binary:
        expected = expected_ndcg(values, test, gains)
        found["expected"] = float(expected.mean())
        found["expected_per_query"] = encode(1 - expected)
    found["per_query"] = {spec: encode(own) for spec, own in by_list.items()}
    return found
