"""Arguments that several commands share: types, checks, help texts, and the reading of data.

The two sections below are the help texts. Commands get them from ``DESCRIPTIONS``, this docstring,
by :func:`rankgrad.cli._docstrings.add_command`.

Inputs:
    run: A run folder of `rankgrad train`, or a saved model.
    data: A LETOR/LibSVM file (also .gz, .bz2, .xz, a pipe, or - for the standard input), a Parquet,
        Arrow or CSV file, a folder of Parquet parts, a store, or a folder of splits or folds of
        these.

Options:
    split: Which split of a folder: train, vali or test. [default: test, for a folder]
    fold: Which fold of a folder of folds: 1 for Fold1.
    json: Print JSON instead of a table.
    device: auto, cpu or cuda: where the ranker runs.
    workers: Processes side by side; 0 for this one alone. [default: one per core, or per GPU]
    teacher_labels: How the teacher's scores become labels: above its lowest, from 0 to 1,
        probabilities, or by its order alone, 1 / rank.
    overwrite: Replace a file or folder that exists.
    metric: A metric, such as ndcg@10 or 'ndcg(empty=1)'; may be given several times. See `rankgrad
        metrics`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import rankgrad
from rankgrad._validation import DEFAULT_METRICS
from rankgrad.cli._setting_options import setting_option

#: Help texts of arguments, for commands whose own docstring does not describe them.
DESCRIPTIONS = __doc__ or ""

Run = Annotated[Path, typer.Argument(metavar="RUN")]
Data = Annotated[Path, typer.Argument(metavar="DATA")]
Fold = Annotated[int | None, typer.Option(min=0)]
Workers = Annotated[int | None, typer.Option(min=0)]
TeacherLabels = Literal["shift", "minmax", "softmax", "rank"]
Metrics = Annotated[
    list[str] | None, typer.Option("--metric", "-m", show_default=", ".join(DEFAULT_METRICS))
]
Missing = Annotated[list[str] | None, setting_option("missing")]
Categorical = Annotated[list[str] | None, setting_option("categorical")]


def check_stdin(*paths: Path | None) -> None:
    """Raise if more than one argument is the standard input."""
    if sum(path is not None and str(path) == "-" for path in paths) > 1:
        raise ValueError("the standard input (-) can be read only once: name a file for the other")


def check_run_folder(path: Path, result: str) -> None:
    """Raise if ``path``, where ``--save`` puts a result, is not a run folder.

    ``result`` says in the error what would be saved.
    """
    if not rankgrad.training.RunFolder.is_run(path):
        raise ValueError(f"{path} is not a run folder: --save has nowhere to keep the {result}")


def check_known_dataset(path: Path) -> None:
    """Raise if a path is missing and its name is that of a known data set; say where to get it."""
    if os.path.lexists(path) or str(path) == "-":
        return
    # An entry's words are names of its folder in this form: lower case, letters and digits only.
    name = "".join(letter for letter in path.name.lower() if letter.isalnum())
    for entry in rankgrad.data.catalog.ENTRIES:
        if name in entry.words:
            raise FileNotFoundError(
                f"there is no {path}. {entry.name} is available at {entry.url} ({entry.license}): "
                "unpack it and give its folder. Without data, `rankgrad demo` makes its own"
            )


def load(
    path: Path,
    split: str | None = None,
    fold: int | None = None,
    like: rankgrad.data.Dataset | rankgrad.training.FittedRanker | None = None,
    **options: Any,
) -> rankgrad.data.Dataset:
    """Read a data set.

    Args:
        path: a data set, or a folder of splits or folds.
        split: which split of a folder; ``test`` by default.
        fold: which fold of a folder of folds.
        like: a data set or a ranker; the data are read with its features.
        options: further options of :func:`rankgrad.data.load`.
    """
    from rankgrad.data import _layout

    if like is not None:
        options |= reading_options(like)
    if not _layout.is_single(path):
        name = _layout.split_name(split or "test")
        return rankgrad.data.load(path, split=name, fold=fold, **options)
    if split is not None or fold is not None:
        raise ValueError(f"{path} is not a folder of splits: leave out --split and --fold")
    return rankgrad.data.load(path, **options)


def reading_options(like: rankgrad.data.Dataset | rankgrad.training.FittedRanker) -> dict[str, Any]:
    """Options of :func:`rankgrad.data.load` that give data the features of a data set or ranker."""
    from rankgrad.data import _dataset

    options = _dataset.feature_options(like)
    settings = getattr(like, "settings", None)  # a ranker has settings, a data set does not
    return options if settings is None else {"missing": settings.missing} | options
