"""Reads data from any path: ``rankgrad.data.load``, ``load_pair`` and ``load_splits``.

A path is a file (LETOR, columnar, or LightGBM's with side files), a store, a folder of splits, or a
folder of folds of splits. A pipe, and ``-`` for the standard input, are read as LETOR files.
``_layout.py`` finds the files of a folder; ``letor.py``, ``columnar.py`` and ``store.py`` read
them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rankgrad import _files
from rankgrad._deprecation import renamed_arguments
from rankgrad._quoting import quote
from rankgrad.data import _layout, _memory_limit, _streams, _text_lines, catalog, columnar, store
from rankgrad.data._categories import encode, match, number_columns
from rankgrad.data._dataset import Categories, Dataset, FeaturesError, feature_options
from rankgrad.data._missing import MissingValues, as_values

_MAX_NUMBER = 1 << 62  # above the size of any list and any sensible weight


@renamed_arguments(labelled="labeled")
def load(
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    fold: int | None = None,
    n_features: int | None = None,
    zero_based: bool | None = None,
    feature_names: Sequence[str] | None = None,
    finite: bool = False,
    labeled: bool = True,
    ids: bool | Literal["auto"] = False,
    missing: Sequence[str | float] = (),
    categorical: Sequence[str] = (),
    categories: Categories | None = None,
) -> Dataset:
    r"""Read a data set from any path.

    Missing feature values are NaN: in LETOR and text files empty values, ``?``, ``NA``, ``nan`` and
    ``NULL``, in Parquet and Arrow files null and NaN.

    Args:
        path: a LETOR/LibSVM file (also .gz, .bz2, .xz, a pipe, or ``-`` for the standard input),
            one with LightGBM's ``.query`` file beside it, a Parquet, Arrow, Feather or CSV file, a
            folder of Parquet parts (part-0000.parquet and so on), a store, or a folder of splits or
            folds of these.
        split: which split of a folder, ``train``, ``vali`` or ``test``.
        fold: which fold of a folder of folds, ``1`` for ``Fold1``.
        n_features: the number of features; a sparse file that names fewer is padded with zeros.
        zero_based: whether the feature ids of LETOR files start at 0, as ``Dataset.zero_based`` of
            the training data says; by default they do if there is an id 0.
        feature_names: the names the features must have, such as those of the training data. Of a
            columnar file these columns are read, in this order; features without names are not
            compared.
        finite: raise an error for an infinite value in a LETOR file, as columnar files always do.
        labeled: False if labels may be missing, as in data to be scored; they are then 0.
        ids: item ids of LETOR files from ``docid = X`` in the comments; ``"auto"`` if all rows have
            one. Other files may have a column of ids.
        missing: further missing values, such as ``["-999", "unknown"]``.
        categorical: features that are categories, by name, or by id in a LETOR file. Columns of few
            texts are categories by default.
        categories: the names that codes of categorical features stand for, such as those of the
            training data; values that are not among them become missing.

    Returns:
        The lists, with features ``[N, F]`` in float32.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: a file cannot be read as lists, with the file and the line; or the split, the
            fold or the features asked for are not there.
        ImportError: a columnar file needs a package; the message has the install line.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = pathlib.Path(place, "train.txt")
    ...     _ = path.write_text("2 qid:1 1:0.5 3:1\n0 qid:1 2:4\n1 qid:2 1:1\n")
    ...     data.load(path), data.load(place, split="train", n_features=4).n_features
    (Dataset(2 lists, 3 items, 3 features; labels 0: 33.3%, 1: 33.3%, 2: 33.3%), 4)
    """
    place = Path(path)
    options = _ReadOptions(
        n_features=n_features,
        zero_based=zero_based,
        feature_names=feature_names,
        finite=finite,
        labeled=labeled,
        ids=ids,
        missing=as_values(missing),
        categorical=tuple(map(str, categorical)),
        categories=categories,
    )
    return store.snapshot(place, lambda: _load(place, split, fold, options))


def load_pair(
    train: str | os.PathLike[str],
    vali: str | os.PathLike[str],
    *,
    missing: Sequence[str | float] = (),
    categorical: Sequence[str] = (),
) -> tuple[Dataset, Dataset]:
    r"""Training and validation data from two paths, with the same features.

    As with the splits of a folder, sparse files may name fewer features in one than in the other:
    both get the larger width, and feature ids that start at 0 if one file's do.

    Args:
        train: the training data, a path that :func:`load` reads without a split.
        vali: the validation data, also such a path.
        missing: as in :func:`load`.
        categorical: as in :func:`load`; codes are those of the training data.

    Returns:
        The training and the validation data, both with F features ``[N, F]``.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: one cannot be read, or their features differ.

    >>> import pathlib, tempfile
    >>> from rankgrad.data import load_pair
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train, vali = (pathlib.Path(folder, name) for name in ("a.txt", "b.txt"))
    ...     _ = train.write_text("1 qid:1 1:0.5\n"), vali.write_text("1 qid:2 3:0.5\n")
    ...     [lists.n_features for lists in load_pair(train, vali)]
    [3, 3]
    """
    train, vali = Path(train), Path(vali)
    options: dict[str, Any] = {"missing": missing, "categorical": categorical}
    training = load(train, **options)
    _layout.check_exists(vali)
    if not _is_letor(vali) or training.feature_names is not None:
        # The validation data must have the training data's features.
        return training, load(vali, missing=missing, **feature_options(training))
    validation = load(vali, zero_based=training.zero_based or None, **options)
    if validation.zero_based and training.zero_based is False:
        training = _add_feature_zero(training)
    width = max(training.n_features, validation.n_features)
    training = training.widen(width)
    return training, match(validation.widen(width), training.categories)


def load_splits(
    path: str | os.PathLike[str],
    fold: int | None = None,
    *,
    finite: bool = False,
    ids: bool | Literal["auto"] = False,
    missing: Sequence[str | float] = (),
    categorical: Sequence[str] = (),
    columns: Mapping[str, Any] | None = None,
) -> dict[str, Dataset]:
    r"""All splits of a folder, with the same features.

    Sparse files may name fewer features in one split than in another: all get the largest width,
    and feature ids that start at 0 if those of one split do. A known data set is compared with the
    catalog, with a warning for each difference.

    Args:
        path: the folder.
        fold: which fold, of a folder of folds.
        finite: raise an error for an infinite value in a LETOR file.
        ids: as in :func:`load`.
        missing: as in :func:`load`.
        categorical: as in :func:`load`; codes are those of the first split.
        columns: options of :func:`rankgrad.data.columnar.read`, for columnar files.

    Returns:
        The data sets by the name of their split, ``train`` first.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it has no splits or no such fold, or a file cannot be read.

    >>> import pathlib, tempfile
    >>> from rankgrad.data import load_splits
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for split, feature in {"train": 1, "test": 3}.items():
    ...         _ = pathlib.Path(folder, f"{split}.txt").write_text(f"1 qid:1 {feature}:0.5\n")
    ...     {split: lists.n_features for split, lists in load_splits(folder).items()}
    {'train': 3, 'test': 3}
    """
    path = Path(path)
    options = _ReadOptions(
        finite=finite,
        ids=ids,
        missing=as_values(missing),
        categorical=tuple(map(str, categorical)),
        columns=columns or {},
    )
    datasets = store.snapshot(path, lambda: _load_splits(path, fold, options))
    entry = catalog.recognize(path)
    if entry is not None:
        for difference in catalog.check(entry, datasets, fold=fold or _layout.fold_number(path)):
            warnings.warn(f"{path}: {difference}", stacklevel=2)
    return datasets


@dataclass(frozen=True)
class _ReadOptions:
    """How files are read: arguments of :func:`load` and :func:`load_splits`."""

    n_features: int | None = None
    zero_based: bool | None = None
    feature_names: Sequence[str] | None = None
    finite: bool = False
    labeled: bool = True
    ids: bool | Literal["auto"] = False
    missing: tuple[str | float, ...] = ()
    categorical: tuple[str, ...] = ()
    categories: Categories | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


def _load(path: Path, split: str | None, fold: int | None, options: _ReadOptions) -> Dataset:
    """Read a data set; :func:`store.snapshot` calls this again if a store is replaced meanwhile."""
    _layout.check_exists(path)
    path = _files.readable_path(path)
    if _layout.is_single(path):
        if split is not None or fold is not None:
            folder = "one store" if store.is_store(path) else "one data set in parts"
            kind = "a file" if path.is_file() or _streams.is_stream(path) else folder
            raise ValueError(
                f"{_streams.display_name(path)} is {kind}: a split and a fold are of "
                "folders of splits"
            )
        return _read(path, options)
    if split is None:
        raise ValueError(f"{_layout.describe(path, fold)}; say which split")
    splits = _layout.splits(path, fold)
    name = _layout.split_name(split)
    if name not in splits:
        raise ValueError(f"{path} has no split {split!r}. There are: {', '.join(splits)}")
    if options.zero_based is None:
        options = replace(options, zero_based=_find_zero_based(splits.values()))
    return _read(splits[name], options)


def _load_splits(path: Path, fold: int | None, options: _ReadOptions) -> dict[str, Dataset]:
    """Read the splits of a folder; :func:`store.snapshot` calls this again if one is replaced."""
    datasets: dict[str, Dataset] = {}
    splits = _layout.splits(path, fold)
    for name, source in splits.items():
        split_options = options
        if datasets and _is_columnar(source):
            first = next(iter(datasets.values()))
            names, categories = first.feature_names, first.categories
            split_options = replace(options, feature_names=names, categories=categories)
        datasets[name] = _read(source, split_options)
    if any(data.zero_based for data in datasets.values()):
        for name, data in datasets.items():
            if _is_letor(splits[name]) and not data.zero_based:
                datasets[name] = _add_feature_zero(data)
    datasets = _widen_all(path, datasets)
    categories = next(iter(datasets.values())).categories
    return {name: match(data, categories) for name, data in datasets.items()}


def _read(path: Path, options: _ReadOptions) -> Dataset:
    """Read one file, store or folder of parts, and encode its categorical features."""
    dataset = _read_format(path, options)
    if options.categorical:
        dataset = encode(dataset, options.categorical)
    if options.categories is None and options.feature_names is None:
        return dataset
    return match(dataset, options.categories)


def _read_format(path: Path, options: _ReadOptions) -> Dataset:
    """Read one file, store or folder of parts with the reader of its format."""
    if _is_letor(path):
        return _read_letor(path, options)
    n_features, names = options.n_features, options.feature_names
    if not _is_columnar(path):
        dataset = _mark_missing(store.open(path), options.missing)
        _check_features(path, dataset, options.zero_based, names)
    else:
        arguments = {"labeled": options.labeled, "missing": options.missing, **options.columns}
        arguments["features"] = names or arguments.get("features")
        # Features that are categories in the training data are categories here, too.
        pairs = zip(names or (), options.categories or (), strict=False)
        in_training = [name for name, categories in pairs if categories is not None]
        categorical = arguments.get("categorical", options.categorical)
        arguments["categorical"] = [*categorical, *in_training]
        dataset = columnar.read(path, **arguments)
    if n_features is None or dataset.n_features == n_features:
        return dataset
    if n_features < dataset.n_features or dataset.feature_names is not None:
        raise FeaturesError(
            f"{path} has {dataset.n_features} features, {n_features} were asked for"
        )
    return dataset.widen(n_features)


def _mark_missing(dataset: Dataset, missing: Sequence[str | float]) -> Dataset:
    """Set the numbers and categories that are missing values to NaN, in a copy of the features."""
    missing_values = MissingValues.of(missing)
    if missing and dataset.categories is not None:
        categories = tuple(
            names and tuple(name for name in names if name not in missing_values)
            for names in dataset.categories
        )
        dataset = replace(match(dataset, categories), notes=dataset.notes, check=False)
    if not missing_values.numbers:
        return dataset
    features = np.array(dataset.features)
    missing_values.mark(features, number_columns(dataset.categories, dataset.n_features))
    return replace(dataset, features=features, check=False)


def _check_features(
    path: Path, dataset: Dataset, zero_based: bool | None, names: Sequence[str] | None
) -> None:
    """Raise an error if a store's features are not those asked for, by first id or by names."""
    if None not in (zero_based, dataset.zero_based) and zero_based != dataset.zero_based:
        raise ValueError(
            f"{path} was read with feature ids from {int(not dataset.zero_based)}, but from "
            f"{int(not zero_based)} is asked for, so its columns would be one off: import it again "
            "in one folder with the training data"
        )
    if names is None or dataset.feature_names is None:
        return
    pairs = zip_longest(dataset.feature_names, names)
    for number, (name, expected) in enumerate(pairs, start=1):
        if name != expected:
            raise FeaturesError(
                f"{path} has other features than were asked for: feature {number} is "
                f"{name or 'missing'}, not {expected or 'there at all'}"
            )


def _add_feature_zero(dataset: Dataset) -> Dataset:
    """Add a feature 0, which is 0, to data whose feature ids were taken to start at 1."""
    _memory_limit.check(
        4 * dataset.n_items * (dataset.n_features + 1),
        _memory_limit.available(),
        f"{dataset.n_items:,} rows of {dataset.n_features + 1:,} features",
        "give the features the same first id in all files",
    )
    features = np.pad(dataset.features, ((0, 0), (1, 0)))
    notes = ("feature ids start at 0", *dataset.notes)
    categories = None if dataset.categories is None else (None, *dataset.categories)
    return replace(
        dataset, features=features, zero_based=True, notes=notes, categories=categories, check=False
    )


def _is_letor(path: Path) -> bool:
    """Whether a path is read as a LETOR file: a stream, or a file that is not columnar."""
    if _streams.is_stream(path):
        if columnar.is_columnar(path):
            raise ValueError(
                f"{path} is a pipe, and columnar files are not read in one go: give a file, or "
                "LETOR text"
            )
        return True
    return path.is_file() and not columnar.is_columnar(path)


def _is_columnar(path: Path) -> bool:
    """Whether a path is a columnar file, or a folder of Parquet parts."""
    if path.is_dir():
        return not store.is_store(path) and bool(_layout.parts(path))
    return columnar.is_columnar(path)


def _find_zero_based(paths: Iterable[Path]) -> bool | None:
    """True if one of the LETOR files begins with rows that have a feature 0; None otherwise.

    If True, the ids of all splits start at 0. Read by itself, a split that does not name feature 0
    would be taken to start at 1, and its columns would be one off.
    """
    has_zero = any(0 in _layout.first_features(path) for path in filter(_is_letor, paths))
    return True if has_zero else None


def _read_letor(path: Path, options: _ReadOptions) -> Dataset:
    """Read a LETOR file, with LightGBM's groups and weights in files beside it."""
    from rankgrad.data import letor

    is_file = not _streams.is_stream(path)
    groups_file = _side_file(path, (".query", ".group")) if is_file else None
    weights_file = _side_file(path, (".weight",)) if is_file else None
    sizes = None if groups_file is None else _side_numbers(groups_file, np.int64)
    dataset = letor.read(
        [path],
        groups=sizes,
        n_features=options.n_features,
        zero_based=options.zero_based,
        finite=options.finite,
        labeled=options.labeled,
        ids=options.ids,
        missing=options.missing,
    )
    if weights_file is None:
        return dataset
    item_weights = _side_numbers(weights_file, np.float32)
    # Weights are in file order; the reader may have reordered the rows.
    if dataset.source_rows is not None and len(item_weights) == dataset.n_items:
        item_weights = item_weights[dataset.source_rows]
    try:
        return replace(dataset, weights=item_weights)
    except ValueError as error:
        raise ValueError(f"{weights_file}: {error}") from error


def _side_file(path: Path, suffixes: Iterable[str]) -> Path | None:
    """LightGBM's file beside a data file; beside ``a.txt.gz`` it may be called ``a.txt.query``."""
    stems = [path.name, *([path.stem] if path.suffix.lower() in _streams.COMPRESSED else [])]
    candidates = (path.with_name(stem + suffix) for stem in stems for suffix in suffixes)
    return next(filter(Path.is_file, candidates), None)


def _side_numbers(path: Path, dtype: type[np.number]) -> np.ndarray:
    """The numbers of a side file, one a line: integers of at least 1, or floats of at least 0."""
    is_integer = issubclass(dtype, np.integer)
    lines = path.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    numbers = []
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            number = _text_lines.parse_number(line.strip())
        except ValueError:
            number = -1  # out of range: reported below
        least = 1 if is_integer else 0
        if not least <= number < _MAX_NUMBER or (is_integer and number % 1):
            kind = "a whole number of at least 1" if is_integer else "a finite number of at least 0"
            text = quote(line.strip())
            raise ValueError(f"{path}, line {line_number}: expected {kind}, found {text}")
        numbers.append(number)
    return np.array(numbers, dtype=dtype)


def _widen_all(path: Path, datasets: dict[str, Dataset]) -> dict[str, Dataset]:
    """The splits, all with the features of the widest; named features must be the same."""
    widths = {name: dataset.n_features for name, dataset in datasets.items()}
    all_names = {dataset.feature_names for dataset in datasets.values()}
    if len(all_names) > 1 or (all_names != {None} and len(set(widths.values())) > 1):
        listed = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise ValueError(f"the splits of {path} have different features ({listed})")
    return {name: data.widen(max(widths.values())) for name, data in datasets.items()}
