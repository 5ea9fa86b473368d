"""The demonstration: one model, five kinds of losses, on data whose best ranking is known.

``rankgrad demo`` calls :func:`run`, and so does ``make demo``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rankgrad import _files
from rankgrad._validation import DEFAULT_METRICS
from rankgrad.data import Dataset, synthetic
from rankgrad.results._groups import group
from rankgrad.results.comparison import Comparison, compare
from rankgrad.results.runs import read
from rankgrad.training import FitResult, Settings
from rankgrad.training._evaluations import EvaluatedLists
from rankgrad.training._fitting import fit_to_end
from rankgrad.training.run import RUN, run_metadata

__all__ = ["BEST", "LOSSES", "Demo", "run", "settings_for"]

#: The losses that are compared, and the kind that each stands for.
LOSSES: Mapping[str, str] = {
    "mse": "pointwise",
    "ranknet": "pairwise",
    "softmax": "likelihood",
    "approx_ndcg": "direct: NDCG through sigmoid ranks",
    "neural_ndcg@10": "direct: NDCG through NeuralSort",
}
BEST = "best achievable"  # the name of the best possible ranking in the comparison
_MARKER = "demo.json"  # the file by which the folder of a demonstration is recognized

_OnStart = Callable[[str], None]
_OnEpoch = Callable[[str, dict[str, float]], None]
_OnFit = Callable[[str, FitResult], None]


@dataclass(frozen=True)
class Demo:
    """The result of the demonstration.

    Attributes:
        comparison: of the losses; its last entry is the best possible ranking.
        data: the data sets, by name: ``train``, ``vali`` and ``test``.
        settings: those that all trainings share.
        seconds: how long the demonstration took.
    """

    comparison: Comparison
    data: Mapping[str, Dataset]
    settings: Settings
    seconds: float


def settings_for(size: str, **options: Any) -> Settings:
    """The settings that the trainings of a demonstration share: all except the loss.

    Those of the small size suit two cores, the others a GPU.

    Args:
        size: ``"small"``, or another of :func:`rankgrad.data.synthetic.splits`.
        options: settings that override these.

    Returns:
        The settings.
    """
    shared: dict[str, Any] = {"metric": "ndcg@10", "metrics": DEFAULT_METRICS, "schedule": "cosine"}
    shared["model"] = "mlp(hidden=[64, 32], dropout=0.2)"
    if size == "small":
        shared |= {"epochs": 16, "patience": None, "batch_size": 16, "list_size": 64}
        shared["learning_rate"] = 3e-3
    else:
        shared |= {"epochs": 50, "patience": 10, "batch_size": 64, "list_size": 240}
        shared["learning_rate"] = 1e-3
    return Settings(**shared | options)


def run(
    size: str = "small",
    *,
    folder: Path,
    on_start: _OnStart = lambda loss: None,
    on_epoch: _OnEpoch | None = None,
    on_fit: _OnFit = lambda loss, result: None,
    **options: Any,
) -> Demo:
    """Train the same model with each loss on simulated data, and compare with the best ranking.

    Args:
        size: of the data, see :func:`rankgrad.data.synthetic.splits`.
        folder: gets a run folder for each loss and one for the best ranking.
        on_start: called with the loss before its training.
        on_epoch: called with the loss and the new line of its history after each epoch.
        on_fit: called with the loss and the result of its training.
        options: settings that override those of :func:`settings_for`.

    Returns:
        The comparison of the losses, with the data and the settings.
    """
    started = time.perf_counter()
    data = synthetic.splits(size, seed=options.get("seed", 0))
    shared = settings_for(size, **options)
    test = data["test"]
    _create(folder)
    run_folders = [folder / loss.replace("@", "-at-") for loss in LOSSES]
    for loss, run_folder in zip(LOSSES, run_folders, strict=True):
        settings = Settings(**shared.model_dump() | {"loss": loss})
        on_start(loss)
        callback = None if on_epoch is None else partial(on_epoch, loss)
        result = fit_to_end(
            settings, data["train"], data["vali"], folder=run_folder, on_epoch=callback
        )
        on_fit(loss, result)
        run_labels = {"candidate": loss, **settings.model_dump(include={"loss", "model", "seed"})}
        scores = result.model.predict(test.features, test.offsets)
        EvaluatedLists.of(scores, test, DEFAULT_METRICS, run_labels).save(run_folder)
    # The best ranking was not trained: tables show it, significance tests leave it out.
    best = folder / BEST.replace(" ", "-")
    best.mkdir()
    _files.write_json(best / RUN, run_metadata({}))
    run_labels = {"candidate": BEST, "kind": "reference"}
    EvaluatedLists.of(synthetic.oracle(test), test, DEFAULT_METRICS, run_labels).save(best)
    comparison = compare(group([read(path) for path in (*run_folders, best)]))
    return Demo(comparison, data, shared, time.perf_counter() - started)


def _create(folder: Path) -> None:
    """Create the folder, in place of an earlier demonstration; raise if it holds anything else."""
    is_other = folder.is_file() or (folder.exists() and any(folder.iterdir()))
    if is_other and not (folder / _MARKER).is_file():
        raise FileExistsError(
            f"{folder} is there already and was not made by the demonstration: choose another"
        )
    marker = json.dumps({"format": "rankgrad demo", "version": 1}) + "\n"
    with _files.atomic_folder(folder) as new_folder:
        _files.write(new_folder / _MARKER, marker)
