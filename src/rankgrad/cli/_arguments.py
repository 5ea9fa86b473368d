"""Arguments that several commands take, and the data they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankgrad._validation import DEFAULT_METRICS
from rankgrad.cli._settings import setting_option

if TYPE_CHECKING:
    from rankgrad.data import Dataset
    from rankgrad.training import FittedRanker


Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A LETOR/LibSVM file (also .gz, .bz2, .xz, a pipe, or - for the standard input), a "
        "Parquet, Arrow or CSV file, a folder of Parquet parts, a store, or a folder of splits or "
        "folds of these.",
        show_default=False,
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Which split of a folder: train, vali or test.", show_default="test, for a folder"
    ),
]
Fold = Annotated[
    int | None, typer.Option(help="Which fold of a folder of folds: 1 for Fold1.", min=0)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda: where the ranker runs.")]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes side by side; 0 for this one alone.",
        min=0,
        show_default="one per core, or per GPU",
    ),
]
TeacherLabels = Annotated[
    Literal["shift", "minmax", "softmax", "rank"],
    typer.Option(
        help="How the teacher's scores become labels: above its lowest, from 0 to 1, "
        "probabilities, or by its order alone, 1 / rank."
    ),
]
TableFormat = Literal["terminal", "markdown", "latex", "csv"]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a file or folder that exists.")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        help="A metric, such as ndcg@10 or 'ndcg(empty=1)'; may be given several times. "
        "See `rankgrad metrics`.",
        show_default=", ".join(DEFAULT_METRICS),
    ),
]
Missing = Annotated[list[str] | None, setting_option("missing")]
Categorical = Annotated[list[str] | None, setting_option("categorical")]


def check_stdin(*paths: Path | None) -> None:
    """Raise if more than one argument is the standard input."""
    if sum(path is not None and str(path) == "-" for path in paths) > 1:
        raise ValueError("the standard input (-) can be read only once: name a file for the other")


def check_run_folder(path: Path, result: str) -> None:
    """Raise if a result is to be saved in a folder that is no run folder."""
    from rankgrad.training import RunFolder

    if not RunFolder.is_run(path):
        raise ValueError(f"{path} is not a run folder: --save has nowhere to keep the {result}")


def check_known(path: Path) -> None:
    """Raise if a path names a known data set that is not there, and say where to get it."""
    import os

    from rankgrad.data import catalog

    if os.path.lexists(path) or str(path) == "-":
        return
    plain = "".join(letter for letter in path.name.lower() if letter.isalnum())
    for entry in catalog.ENTRIES:
        if plain in entry.words:
            raise FileNotFoundError(
                f"there is no {path}. {entry.name} is available at {entry.url} ({entry.license}): "
                "unpack it and give its folder. Without data, `rankgrad demo` makes its own"
            )


def place(path: Path, split: str | None, fold: int | None) -> Path:
    """The file or store that a path, a split (``test`` by default) and a fold name."""
    from rankgrad.data import _layout

    if _layout.is_single(path):
        if split is not None or fold is not None:
            raise ValueError(f"{path} is not a folder of splits: leave out --split and --fold")
        return path
    found = _layout.splits(path, fold)
    name = _layout.split_name(split or "test")
    if name not in found:
        raise ValueError(f"{path} has no split {name!r}. There are: {', '.join(found)}")
    return found[name]


def load(
    path: Path,
    split: str | None = None,
    fold: int | None = None,
    like: Dataset | FittedRanker | None = None,
    **options: Any,
) -> Dataset:
    """Read what :func:`place` names, with the features of a data set or a ranker.

    Further options are those of :func:`rankgrad.data.load`.
    """
    import rankgrad.data

    options |= {} if like is None else features_of(like)
    file = place(path, split, fold)
    if file != path:
        return rankgrad.data.load(path, split=split or "test", fold=fold, **options)
    return rankgrad.data.load(path, **options)


def features_of(like: Dataset | FittedRanker) -> dict[str, Any]:
    """Options of :func:`rankgrad.data.load` to read data with the features of a ranker."""
    from rankgrad.data import _dataset

    settings = getattr(like, "settings", None)
    missing = {} if settings is None else {"missing": settings.missing}
    return missing | _dataset.features_of(like)
