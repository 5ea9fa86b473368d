"""The demonstration: one model, five kinds of losses, on data whose best ranking is known."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankgrad import files
from rankgrad.data import Dataset, synthetic
from rankgrad.metrics import Evaluation, evaluate
from rankgrad.significance import Interval, bootstrap_interval
from rankgrad.training import Settings, fit
from rankgrad.training.evaluations import Evaluated
from rankgrad.training.run import RUN, run_metadata

#: What is compared, and what each stands for.
LOSSES: Mapping[str, str] = {
    "mse": "pointwise",
    "ranknet": "pairwise",
    "softmax": "likelihood",
    "approx_ndcg": "direct: NDCG through sigmoid ranks",
    "neural_ndcg@10": "direct: NDCG through NeuralSort",
}
METRICS = ("ndcg@5", "ndcg@10", "ap", "rr")
BEST = "best achievable"
MARK = "demo.json"  # says that a folder is a demonstration's

OnEpoch = Callable[[str, dict[str, float]], None]


@dataclass(frozen=True)
class Row:
    """A line of the table: the test metrics of one loss, or of the best ranking there is."""

    loss: str
    kind: str
    mean: Mapping[str, float]
    interval: Mapping[str, Interval]
    best_epoch: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Demo:
    """What the demonstration found; the last row is the best achievable."""

    rows: tuple[Row, ...]
    data: Mapping[str, Dataset]
    settings: Settings
    conventions: tuple[str, ...]
    seconds: float


def settings_for(size: str, **options: Any) -> Settings:
    """The settings that all losses of a demonstration share, but for the loss.

    The small size is made for two cores, the others for a GPU.
    """
    shared: dict[str, Any] = {
        "model": "mlp(hidden=[64, 32], dropout=0.2)",
        "metric": "ndcg@10",
        "metrics": METRICS,
        "epochs": 16 if size == "small" else 50,
        "patience": None if size == "small" else 10,
        "batch_size": 16 if size == "small" else 64,
        "list_size": 64 if size == "small" else 240,
        "schedule": "cosine",
        "learning_rate": 3e-3 if size == "small" else 1e-3,
    }
    return Settings(**shared | options)


def run(
    size: str = "small",
    *,
    losses: Mapping[str, str] | None = None,
    folder: Path | None = None,
    on_data: Callable[[Mapping[str, Dataset]], None] | None = None,
    on_epoch: OnEpoch | None = None,
    **options: Any,
) -> Demo:
    """Train the same model with each loss on simulated data, and test it beside the best ranking.

    Args:
        size: of the data, see :func:`rankgrad.data.synthetic.splits`.
        losses: what to compare, with the kind of each; by default :data:`LOSSES`.
        folder: where to keep a run folder for each loss and one for the best ranking, each with
            its evaluation on the test queries; by default they are not kept.
        on_data: called once the data are there.
        on_epoch: called with the loss and the new line of its history after each epoch.
        options: settings other than those of :func:`settings_for`.
    """
    began = time.perf_counter()
    data = synthetic.splits(size, seed=options.get("seed", 0))
    if on_data is not None:
        on_data(data)
    shared = settings_for(size, **options)
    rows, test = [], data["test"]
    if folder is not None:
        _make(folder)
    for loss, kind in (losses or LOSSES).items():
        settings = Settings(**shared.model_dump() | {"loss": loss})
        done = fit(
            settings,
            data["train"],
            data["vali"],
            folder=None if folder is None else _place(folder, loss),
            on_epoch=None if on_epoch is None else _reporter(on_epoch, loss),
        )
        if done.stopped == "interrupted":
            raise KeyboardInterrupt
        scores = done.model.predict(test.features, test.offsets)
        if folder is not None:
            labels = {"candidate": loss, **settings.model_dump(include={"loss", "model", "seed"})}
            Evaluated.of(scores, test, METRICS, labels).save(_place(folder, loss))
        row = _row(loss, kind, _evaluate(test, scores))
        rows.append(replace(row, best_epoch=done.best_epoch, seconds=done.seconds))
    oracle = synthetic.oracle(test)
    if folder is not None:
        _save_best(folder, oracle, data)
    best = _evaluate(test, oracle)
    rows.append(_row(BEST, "known, as the data are simulated", best))
    return Demo(tuple(rows), data, shared, best.conventions, time.perf_counter() - began)


def is_demo(folder: Path) -> bool:
    """Whether a folder is there that a demonstration made, and that another may replace."""
    return (folder / MARK).is_file()


def _make(folder: Path) -> None:
    """The folder of a demonstration. One that is there is replaced only if it is one itself."""
    if folder.exists() and not is_demo(folder) and any(folder.iterdir()):
        raise FileExistsError(
            f"{folder} is there already and was not made by the demonstration: choose another"
        )
    with files.atomic_folder(folder) as place:
        files.write(place / MARK, json.dumps({"format": "rankgrad demo", "version": 1}) + "\n")


def _place(folder: Path, loss: str) -> Path:
    return folder / loss.replace("@", "-at-")


def _save_best(folder: Path, scores: Any, data: Mapping[str, Dataset]) -> None:
    """A folder for the best ranking there is, which was not trained: to be shown, not compared."""
    place = folder / BEST.replace(" ", "-")
    place.mkdir()
    files.write_json(place / RUN, run_metadata({}))
    labels = {"candidate": BEST, "kind": "reference"}
    Evaluated.of(scores, data["test"], METRICS, labels).save(place)


def _reporter(on_epoch: OnEpoch, loss: str) -> Callable[[dict[str, float]], None]:
    return lambda line: on_epoch(loss, line)


def _evaluate(test: Dataset, scores: Any) -> Evaluation:
    return evaluate(scores, test.labels, offsets=test.offsets, metrics=METRICS)


def _row(loss: str, kind: str, found: Evaluation) -> Row:
    intervals = {name: bootstrap_interval(values) for name, values in found.per_list.items()}
    return Row(loss, kind, dict(found.mean), intervals)
