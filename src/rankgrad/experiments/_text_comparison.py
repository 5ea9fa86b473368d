"""Compares the runs in a folder of ``rankgrad text train``: text rankers and their first stage.

``rankgrad compare`` calls :func:`load` for such a folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rankgrad.experiments._cross_validation import FIRST_STAGE
from rankgrad.experiments.plans import RUNS
from rankgrad.metrics import metrics as known_metrics
from rankgrad.results._groups import group
from rankgrad.results.comparison import Comparison, check_same_data, compare
from rankgrad.results.runs import Run, read
from rankgrad.text._text_run import is_text_run
from rankgrad.training.run import RUN


def is_text_folder(folder: Path) -> bool:
    """Whether a folder holds the runs of ``rankgrad text train``."""
    return folder.is_dir() and next(_run_folders(folder), None) is not None


def load(folder: Path, metrics: Iterable[str] = ()) -> Comparison:
    """Compare the text runs of a folder; the first stage is the first entry.

    Args:
        folder: the folder that ``rankgrad text train`` wrote.
        metrics: the columns of tables; by default those that all runs were evaluated with.

    Raises:
        ValueError: runs of the same fold were evaluated on different data.
    """
    runs = [read(path) for path in _run_folders(folder)]
    entries = sorted(group(runs), key=lambda entry: entry.name != FIRST_STAGE)
    check_same_data(entries)
    columns = [str(known_metrics.get(spec)) for spec in metrics] or _common_metrics(runs)
    plan: dict[str, Any] = {
        "data": str(folder),
        "folds": sorted({run.fold for run in runs if run.fold is not None}),
        "seeds": sorted({run.seed for run in runs if run.seed is not None}),
        "metrics": columns,
        "tune": None,
        "candidates": {entry.name: {} for entry in entries},
    }
    return compare(entries, metrics=columns, plan=plan, folder=folder)


def _run_folders(folder: Path) -> Iterator[Path]:
    """The run folders of text rankers."""
    for path in sorted((folder / RUNS).glob(f"*/*/{RUN}")):
        if is_text_run(path.parent):
            yield path.parent


def _common_metrics(runs: Iterable[Run]) -> list[str]:
    """The metrics that all evaluated runs have, in the order of the first run."""
    per_run = [run.evaluated.metrics for run in runs if run.evaluated is not None]
    first = per_run[0] if per_run else ()
    return [metric for metric in first if all(metric in names for names in per_run)]
