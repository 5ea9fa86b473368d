"""``rankgrad import``: converts data of any format to a store, or to Parquet."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

import rankgrad
from rankgrad.cli._arguments import Categorical, Fold, Missing, check_stdin
from rankgrad.cli._printing import show_json
from rankgrad.cli.data import describe, show_data

_QUERY_COLUMN, _LABEL_COLUMN = "qid", "label"  # of columnar files, by default


def import_(
    sources: Annotated[list[Path], typer.Argument(metavar="SOURCE...")],
    output: Annotated[Path, typer.Option("--output", "-o")],
    fold: Fold = None,
    query: str = _QUERY_COLUMN,
    label: str = _LABEL_COLUMN,
    feature: list[str] | None = None,
    weight: str | None = None,
    id: str | None = None,
    fill: float | None = None,
    missing: Missing = None,
    categorical: Categorical = None,
    docids: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Bring data into a store, which opens at once whatever its size.

    A folder of splits becomes a folder of stores; one of folds, a folder of those. Known data sets
    are checked against their published counts.

    Inputs:
        sources: A file, a folder of Parquet parts, or a folder of splits or folds; several LETOR
            files become one data set; - is LETOR text from the standard input.

    Options:
        output: The store to write, or a .parquet file.
        query: Columnar files: the column of query ids.
        label: Columnar files: the column of labels.
        feature: Columnar files: a column to take as a feature; may be given several times.
            [default: all other numbers]
        weight: Columnar files: the column of item weights.
        id: Columnar files: the column of item ids.
        fill: Columnar files: the value for missing features.
        docids: LETOR files: every row must have an item id, 'docid = X' in its comment. Without it
            they are read if all rows have one.

    \b
    Examples:
      rankgrad import train.txt.gz -o train.store
      rankgrad import MSLR-WEB30K -o web30k
      rankgrad import MSLR-WEB30K --fold 1 -o web30k-fold1
      rankgrad import part1.txt part2.txt -o all.store
      rankgrad import log.csv --query session --label clicks -o log.store
      rankgrad import splits --query session --label clicks -o splits.stores
      rankgrad import train.txt -o train.parquet
    """  # noqa: D301
    from rankgrad.data import _layout, columnar, store

    check_stdin(*sources)
    if not output.parent.is_dir():
        raise ValueError(f"there is no folder {output.parent} to write {output.name} into")
    # columns are arguments of columnar.read, options those of rankgrad.data.load_splits.
    columns: dict[str, Any] = {"query": query, "label": label, "features": feature}
    columns |= {"weight": weight, "id": id, "fill": fill}
    options: dict[str, Any] = {"missing": missing or (), "categorical": categorical or ()}
    options |= {"ids": docids or "auto", "columns": columns}
    source = sources[0]
    if len(sources) == 1 and source.is_dir() and not _layout.is_single(source):
        if columnar.is_columnar(output):
            raise ValueError(
                f"a folder becomes a folder of stores, which {output} is no name for: give a name "
                "without a suffix, or import its files one by one"
            )
        _check_folder_options(source, fold, options)
        descriptions = _import_folder(source, fold, output, overwrite, options)
    else:
        dataset = _read(sources, fold, options)
        if columnar.suffix(output) in columnar.PARQUET:
            columnar.write(dataset, output, overwrite=overwrite)
        else:
            store.write(dataset, output, sources=sources, overwrite=overwrite)
        descriptions = {output: {source.name: describe(dataset)}}
    if json:
        return show_json(descriptions)
    for path, by_split in descriptions.items():
        show_data(by_split, title=f"written: {path}")


def _read(sources: list[Path], fold: int | None, options: dict[str, Any]) -> rankgrad.data.Dataset:
    """Read one data set from one file or several.

    Args:
        sources: one columnar file or folder of Parquet parts, or LETOR files.
        fold: the fold, for :func:`rankgrad.data.load`.
        options: ``ids``, for LETOR files (True if every row must have an item id); ``columns``, for
            columnar files; ``missing`` and ``categorical``, for files of any kind.
    """
    from rankgrad.data import _categories, _layout, columnar, letor, load

    columns, ids, missing = options["columns"], options["ids"], options["missing"]
    categorical = options["categorical"]
    is_columnar = all(columnar.is_columnar(path) or _layout.parts(path) for path in sources)
    if fold is not None and (is_columnar or len(sources) > 1):
        raise ValueError(f"{sources[0]} is not a folder of folds: leave out --fold")
    if is_columnar:
        if len(sources) > 1:
            raise ValueError(
                "several columnar files cannot be imported at once; give one, or a folder of "
                "Parquet parts (part-0000.parquet and so on)"
            )
        if ids is True:
            raise ValueError("--docids goes with LETOR files; for columnar ones there is --id")
        return columnar.read(sources[0], missing=missing, categorical=categorical, **columns)
    changed = _changed_options(columns)
    if changed:
        raise ValueError(f"--{changed[0]} goes with columnar files, which {sources[0]} is not")
    letor_options: dict[str, Any] = {"ids": ids, "finite": True, "missing": missing}
    if len(sources) > 1:
        return _categories.encode(letor.read(sources, **letor_options), categorical)
    return load(sources[0], fold=fold, categorical=categorical, **letor_options)


def _changed_options(columns: dict[str, Any]) -> list[str]:
    """The names of the options for columnar files that the user changed, without their ``--``."""
    defaults = {"query": _QUERY_COLUMN, "label": _LABEL_COLUMN}  # of the others: None
    return [
        name.replace("features", "feature")  # the argument features is the option --feature
        for name, value in columns.items()
        if value != defaults.get(name)
    ]


def _check_folder_options(source: Path, fold: int | None, options: dict[str, Any]) -> None:
    """Raise if an option is for a kind of file that the folder does not have."""
    from rankgrad.data import _layout, columnar, folds

    # The first fold stands for all folds.
    checked_fold = next(iter(folds(source)), None) if fold is None else fold
    paths = list(_layout.splits(source, checked_fold).values())
    columnar_paths = [p for p in paths if columnar.is_columnar(p) or _layout.parts(p)]
    changed = _changed_options(options["columns"])
    if changed and not columnar_paths:
        raise ValueError(f"--{changed[0]} goes with columnar files, of which {source} has none")
    if options["ids"] is True and len(columnar_paths) == len(paths):
        raise ValueError("--docids goes with LETOR files; for columnar ones there is --id")


def _import_folder(
    source: Path, fold: int | None, output: Path, overwrite: bool, options: dict[str, Any]
) -> dict[Path, dict[str, dict[str, Any]]]:
    """Import a folder of splits, or of folds of splits, atomically.

    Returns:
        The description of each split (:func:`describe`), by the path of the folder that the split
        is written to, then by the split's name.
    """
    fold_numbers = list(rankgrad.data.folds(source)) if fold is None else []
    if not fold_numbers:
        return {output: _import_splits(source, fold, output, overwrite, options)}
    catalog = rankgrad.data.catalog
    entry = catalog.recognize(source)
    for difference in catalog.check_folds(entry, fold_numbers) if entry else []:
        warnings.warn(f"{source}: {difference}", stacklevel=2)
    descriptions = {}
    with rankgrad.data.store.atomic_store(output, overwrite) as unfinished:
        for number in fold_numbers:
            name = f"Fold{number}"
            by_split = _import_splits(source, number, unfinished / name, False, options)
            descriptions[output / name] = by_split
    return descriptions


def _import_splits(
    source: Path, fold: int | None, output: Path, overwrite: bool, options: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Import a folder of splits to a folder of stores, and describe each split."""
    datasets = rankgrad.data.load_splits(source, fold, finite=True, **options)
    sources = rankgrad.data.splits(source, fold)
    rankgrad.data.store.write_splits(datasets, output, sources=sources, overwrite=overwrite)
    return {name: describe(dataset) for name, dataset in datasets.items()}
