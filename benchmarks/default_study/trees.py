"""LightGBM and XGBoost on the same data: 24 points of their options, chosen on validation lists.

Points are tried on the first quarter of the training lists; the best four of them are trained on
all lists, and the best of these on validation lists is the one that counts.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data import Data, expected_gains
from train import encode, expected_ndcg, ndcg

from rankgrad.data import Dataset, synthetic
from rankgrad.models._in_list import in_list_columns

#: From features ``[N, f]`` to scores ``[N]``.
Predict = Callable[[np.ndarray], np.ndarray]

POINTS, BEST = 24, 4
TREES, PATIENCE = 1000, 50
IN_LIST = ("rank", "score", "ties")
PARTS = ("train", "vali", "test")
_FIXED = {
    "objective": "lambdarank",
    "metric": "ndcg",
    "eval_at": [10],
    "verbosity": -1,
    "seed": 0,
    "bagging_freq": 1,
}


@dataclass(frozen=True)
class Trees:
    """What is trained on.

    Args:
        size: a size of the simulator.
        seed: of the queries.
        world: of the simulator.
        in_list: whether columns of the list, as our default model has them, stand beside the
            features.
        library: ``lightgbm`` or ``xgboost``.
    """

    size: str
    seed: int
    world: str
    in_list: bool
    library: str = "lightgbm"


def points() -> list[dict[str, Any]]:
    """LightGBM's defaults with up to 1,000 trees, then points drawn at random."""
    random = np.random.default_rng(18)
    found: list[dict[str, Any]] = [{"learning_rate": 0.1, "num_leaves": 31}]
    while len(found) < POINTS:
        point = {
            "learning_rate": [0.05, 0.1][random.integers(2)],
            "num_leaves": [15, 31, 63, 127][random.integers(4)],
            "min_data_in_leaf": [20, 50, 200, 500][random.integers(4)],
            "feature_fraction": [0.3, 0.5, 0.8, 1.0][random.integers(4)],
            "bagging_fraction": [0.5, 0.8, 1.0][random.integers(3)],
            "lambda_l2": [0.0, 1.0, 10.0][random.integers(3)],
            "lambdarank_truncation_level": [10, 15, 30][random.integers(3)],
        }
        if point not in found:
            found.append(point)
    return found


def run(
    output: Path,
    which: Trees,
    *,
    seconds: float,
    threads: int,
    previous: list[Path],
    best: int | None = None,
    again: bool = False,
) -> None:
    """Train points that have no result yet, until the time is over.

    Args:
        output: a file; a line is added for each training.
        which: what is trained on.
        seconds: no training starts after them.
        threads: of the library.
        previous: files with results of earlier calls.
        best: only so many points on all lists: those best on the first quarter of medium size, in
            the same world if they were tried there.
        again: train again points on all lists whose earlier results lack the expected values of
            test lists, the best on validation lists first.
    """
    deadline = time.monotonic() + seconds
    done = {}
    for path in (*previous, output):
        done |= read_trees(path)
    torch.set_num_threads(threads)
    splits = {part: features(which, part) for part in PARTS}
    count = len(splits["train"])
    for lists in (count,) if best or again else (count // 4, count):
        chosen = _best_at_medium(done, which, best) if best else points()
        if which.library == "xgboost":
            chosen = [{}]
        elif again:
            chosen = _best(done, which, count, POINTS)
        elif lists == count and not best:
            chosen = _best(done, which, count // 4, BEST)
        for point in chosen:
            key = _key(which, lists, point)
            if key in done and not (again and "expected_per_query" not in done[key]):
                continue
            if time.monotonic() > deadline:
                return
            train = splits["train"].select(np.arange(lists))
            trained = train_xgboost if which.library == "xgboost" else train_point
            found, predict = trained(point, train, splits["vali"], threads)
            found |= _measured(predict, splits["vali"], splits["test"], which.world)
            done[key] = found
            output.parent.mkdir(parents=True, exist_ok=True)
            with output.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"task": key, **found}) + "\n")
            shown = f"vali {found['best_value']:.4f} test {found['test']:.4f}"
            print(f"{key}: {shown}, {found['trees']} trees, {found['seconds']} s", flush=True)


def read_trees(path: Path) -> dict[str, Any]:
    """Results by task; a line that was not written to its end is passed over."""
    found = {}
    if path.is_file():
        open_file = gzip.open if path.suffix == ".gz" else open
        with open_file(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        for line in lines:
            try:
                own = json.loads(line)
            except json.JSONDecodeError:
                continue
            found[own.pop("task")] = own
    return found


def _key(which: Trees, lists: int, point: Mapping[str, Any]) -> str:
    own = {**vars(which), "lists": lists, "point": dict(point)}
    if which.library == "lightgbm":
        del own["library"]
    return json.dumps(own, sort_keys=True)


def _best(done: Mapping[str, Any], which: Trees, lists: int, count: int) -> list[dict[str, Any]]:
    found = [(done.get(_key(which, lists, point)), point) for point in points()]
    known = [(own["best_value"], point) for own, point in found if own]
    return [point for _, point in sorted(known, key=lambda each: -each[0])[:count]]


def _best_at_medium(done: Mapping[str, Any], which: Trees, count: int) -> list[dict[str, Any]]:
    """The best points on the first quarter of medium size, in the same world or else the first."""
    lists = synthetic.SIZES["medium"][0] // 4
    worlds = (which.world, "listwise")
    found = (_best(done, Trees("medium", 0, w, which.in_list), lists, count) for w in worlds)
    return next(filter(None, found), [])


def features(which: Trees, part: str) -> Dataset:
    """A part of the data, with columns of the list if these are asked for."""
    count = synthetic.SIZES[which.size][PARTS.index(part)]
    made = synthetic.make(count, seed=which.seed, split=part, world=which.world)
    return with_columns(made) if which.in_list else made


def with_columns(made: Dataset) -> Dataset:
    """Beside the features, what our default model derives of them within the list.

    Ranks and ties are those of raw features. The score takes features on a scale of about 1: it is
    that of their logarithm.
    """
    columns = np.empty((made.n_items, 4 * made.n_features), np.float32)
    columns[:, : made.n_features] = made.features
    for start, stop in zip(made.offsets[:-1], made.offsets[1:], strict=True):
        raw = torch.from_numpy(made.features[start:stop])
        real = torch.ones(len(raw), dtype=torch.bool)
        logs = torch.sign(raw) * torch.log1p(raw.abs())
        rank, ties = in_list_columns(raw, real, ("rank", "ties"))
        (score,) = in_list_columns(logs, real, ("score",))
        columns[start:stop, made.n_features :] = torch.cat([rank, score, ties], -1).numpy()
    return Dataset(columns, made.labels, made.offsets, made.qids)


def train_point(
    point: Mapping[str, Any], train: Dataset, vali: Dataset, threads: int
) -> tuple[dict[str, Any], Predict]:
    """A training with early stopping by validation NDCG@10: what it took, and its predictions."""
    began = time.perf_counter()
    booster = boost(point, train, vali, threads)
    found: dict[str, Any] = {"seconds": round(time.perf_counter() - began, 1)}
    found["trees"] = booster.best_iteration
    return found, lambda features: booster.predict(features, num_threads=threads)


def boost(point: Mapping[str, Any], train: Dataset, vali: Dataset, threads: int) -> Any:
    """LightGBM's booster, with the number of trees that is best on validation lists."""
    import lightgbm

    data = lightgbm.Dataset(train.features, train.labels, group=train.lengths)
    valid = data.create_valid(vali.features, vali.labels, group=vali.lengths)
    options = {**_FIXED, "num_threads": threads, **point}
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    return lightgbm.train(options, data, TREES, valid_sets=[valid], callbacks=[stop])


def train_xgboost(
    point: Mapping[str, Any], train: Dataset, vali: Dataset, threads: int
) -> tuple[dict[str, Any], Predict]:
    """The same with XGBoost's hist: its defaults with a learning rate of 0.1."""
    import xgboost

    began = time.perf_counter()
    data = xgboost.QuantileDMatrix(
        train.features, train.labels, group=train.lengths, nthread=threads
    )
    valid = xgboost.QuantileDMatrix(
        vali.features, vali.labels, group=vali.lengths, nthread=threads, ref=data
    )
    options = {"objective": "rank:ndcg", "eval_metric": "ndcg@10", "eta": 0.1, "seed": 0}
    options |= {"tree_method": "hist", "nthread": threads, **point}
    booster = xgboost.train(
        options,
        data,
        TREES,
        evals=[(valid, "vali")],
        early_stopping_rounds=PATIENCE,
        verbose_eval=False,
    )
    found: dict[str, Any] = {"seconds": round(time.perf_counter() - began, 1)}
    found["trees"] = booster.best_iteration + 1
    span = (0, booster.best_iteration + 1)

    def predict(features: np.ndarray) -> np.ndarray:
        return booster.predict(xgboost.DMatrix(features), iteration_range=span)

    return found, predict


def _measured(predict: Predict, vali: Dataset, test: Dataset, world: str) -> dict[str, Any]:
    """Values as our metric has them, and the expected ones of networks (``train.py``)."""
    vali_scores, test_scores = (
        torch.from_numpy(np.asarray(predict(lists.features), np.float32)) for lists in (vali, test)
    )
    data = Data((0, len(vali), len(test)), world=world)
    expected = [
        expected_ndcg(scores, lists, expected_gains(synthetic.oracle(lists, world=world), data))
        for scores, lists in ((vali_scores, vali), (test_scores, test))
    ]
    values = ndcg(test_scores, test)
    return {
        "best_value": float(ndcg(vali_scores, vali).mean()),
        "expected": float(expected[0].mean()),
        "test": float(values.mean()),
        "per_query": encode(values),
        "expected_per_query": encode(1 - expected[1]),
    }
