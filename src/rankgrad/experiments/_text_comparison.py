"""The run folders of text rankers and their first stage, compared like any others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rankgrad.experiments._text import FIRST_STAGE
from rankgrad.experiments.plans import RUNS
from rankgrad.metrics import metrics as known_metrics
from rankgrad.results._groups import group
from rankgrad.results.comparison import Comparison, check_same_data, compare
from rankgrad.results.runs import Run, read
from rankgrad.text._runs import is_text_run
from rankgrad.training.run import RUN


def is_text_folder(folder: Path) -> bool:
    """Whether a folder holds the runs of ``rankgrad text train``."""
    return folder.is_dir() and next(_paths(folder), None) is not None


def load(folder: Path, metrics: Iterable[str] = ()) -> Comparison:
    """Compare the text runs of a folder, the first stage before the others.

    Args:
        folder: of ``rankgrad text train``.
        metrics: of the test queries; by default those that all runs were evaluated with.

    Raises:
        ValueError: runs of the same fold were evaluated on other data.
    """
    runs = [read(path) for path in _paths(folder)]
    groups = sorted(group(runs), key=lambda one: one.name != FIRST_STAGE)
    check_same_data(groups)
    wanted = [str(known_metrics.get(spec)) for spec in metrics] or _shared(runs)
    plan: dict[str, Any] = {
        "data": str(folder),
        "folds": sorted({run.fold for run in runs if run.fold is not None}),
        "seeds": sorted({run.seed for run in runs if run.seed is not None}),
        "metrics": wanted,
        "tune": None,
        "entries": {one.name: {} for one in groups},
    }
    return compare(groups, metrics=wanted, plan=plan, folder=folder)


def _paths(folder: Path) -> Iterator[Path]:
    """The run folders of text rankers."""
    for path in sorted((folder / RUNS).glob(f"*/*/{RUN}")):
        if is_text_run(path.parent):
            yield path.parent


def _shared(runs: Iterable[Run]) -> list[str]:
    """The metrics that all evaluations have, in the order of the first."""
    every = [run.evaluated.metrics for run in runs if run.evaluated is not None]
    return [metric for metric in (every[0] if every else ()) if all(metric in m for m in every)]
