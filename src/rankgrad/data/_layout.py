"""Folders of data: where their folds, splits and parts of splits are.

``sources.py`` reads what is found here. Splits are called ``train``, ``vali`` and ``test``,
whatever the folder calls them (``valid.txt`` is ``vali``). Folds have the numbers of their folders:
``Fold1`` is 1.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from rankgrad import _files
from rankgrad._quoting import quote
from rankgrad.data import _streams, store

#: The names that folders use for each split.
_ALIASES = {
    "train": ("train", "training"),
    "vali": ("vali", "valid", "val", "validation", "dev"),
    "test": ("test", "testing"),
}
_SPLIT_BY_ALIAS = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
_FOLD = re.compile(r"fold[ _-]?(\d+)", re.IGNORECASE)
_PART = re.compile(r"part[-_.]?(\d+).*\.(parquet|pq)", re.IGNORECASE)
# LightGBM's side files, such as train.txt.query, are not splits.
_SIDE_SUFFIXES = (".query", ".group", ".weight", ".init", ".position")
_HEAD_BYTES = 1 << 20  # read by first_features
_MAX_LISTED = 12  # file names in an error


def first_features(path: str | os.PathLike[str]) -> set[int]:
    """The feature ids in the first mebibyte of a LETOR file."""
    with _streams.open_text(path) as file:
        head = re.sub(rb"#[^\n]*", b"", file.read(_HEAD_BYTES))
    return set(map(int, set(re.findall(rb"[ \t](\d{1,10}):", head))))


def parts(path: str | os.PathLike[str]) -> list[Path]:
    """The Parquet files of a folder that are parts of one data set, in order.

    They are called ``part-0000.parquet`` and so on. The list is empty if the folder has other files
    too, except for markers of writers, such as ``_SUCCESS``.
    """
    folder = Path(path)
    if not folder.is_dir():
        return []
    files = [file for file in folder.iterdir() if not file.name.startswith((".", "_"))]
    matches = {file: _PART.fullmatch(file.name) for file in files}
    numbered = [(int(match[1]), file.name, file) for file, match in matches.items() if match]
    return [file for _, _, file in sorted(numbered)] if len(numbered) == len(files) else []


def is_single(path: str | os.PathLike[str]) -> bool:
    """Whether a path is one data set: a file, a pipe, a store, or a folder of parts."""
    if _streams.is_stream(path):
        return True
    return Path(path).is_file() or store.is_store(path) or bool(parts(path))


def splits(path: str | os.PathLike[str], fold: int | None = None) -> dict[str, Path]:
    r"""The path of each split of a folder, ``train`` first.

    Where a folder has several sets of splits, such as Yahoo's ``set1.train.txt`` and
    ``set2.train.txt``, add the part before the split's name: ``folder/set1``.

    Args:
        path: the folder, or ``folder/set1`` where it has several sets of splits.
        fold: which fold of a folder of folds, ``1`` for ``Fold1``.

    Returns:
        Files, stores or folders of parts, by those of the names ``train``, ``vali`` and ``test``
        that the folder has.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it has no splits, several of one name, or no such fold.

    >>> import pathlib, tempfile
    >>> from rankgrad.data import splits
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("test.txt", "train.txt", "valid.txt"):
    ...         _ = pathlib.Path(folder, name).write_text("1 qid:1 1:0.5\n")
    ...     {split: path.name for split, path in splits(folder).items()}
    {'train': 'train.txt', 'vali': 'valid.txt', 'test': 'test.txt'}
    """
    folder = Path(path)
    return store.snapshot(folder, lambda: _splits(folder, fold))


def _splits(path: Path, fold: int | None) -> dict[str, Path]:
    """Find the splits of a folder; :func:`store.snapshot` repeats it if the folder is replaced."""
    check_exists(path)
    if _streams.is_stream(path):
        raise ValueError(
            f"{_streams.display_name(path)} is one data set that can be read once: "
            "give a folder of splits"
        )
    path = _files.readable_path(path)
    by_fold = folds(path)
    if fold is not None:
        if fold not in by_fold:
            raise ValueError(f"{describe(path, None)}; there is no fold {fold!r}")
        path = by_fold[fold]
    candidates = _find_splits(path)
    if not candidates:
        raise ValueError(
            f"{describe(path, None)}{'; say which fold' if by_fold and fold is None else ''}"
        )
    for name, paths in candidates.items():
        if len(paths) > 1:
            names = ", ".join(candidate.name for candidate in paths)
            prefix = paths[0].name.split(".")[0]
            raise ValueError(
                f"{path} has several {name} splits: {names}. Give the file itself, or the part "
                f"before the split's name, such as {path / prefix}"
            )
    return {name: candidates[name][0] for name in _ALIASES if name in candidates}


def folds(path: str | os.PathLike[str]) -> dict[int, Path]:
    """The path of each fold of a folder by its number; empty if there are none.

    Args:
        path: the folder, or any other path.

    Returns:
        The folders of the folds by number, ascending; ``Fold1`` is 1.

    >>> import pathlib, tempfile
    >>> from rankgrad.data import folds
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in (2, 1):
    ...         pathlib.Path(folder, f"Fold{number}").mkdir()
    ...     [(number, path.name) for number, path in folds(folder).items()]
    [(1, 'Fold1'), (2, 'Fold2')]
    """
    folder = Path(path)
    if not folder.is_dir():
        return {}
    matches = ((_FOLD.fullmatch(entry.name), entry) for entry in folder.iterdir())
    return dict(sorted((int(m[1]), entry) for m, entry in matches if m and entry.is_dir()))


def fold_number(path: str | os.PathLike[str]) -> int | None:
    """The number of a fold by its folder's name; None if it is not a fold.

    >>> from rankgrad.data import _layout
    >>> _layout.fold_number("MQ2008/Fold3"), _layout.fold_number("MQ2008")
    (3, None)
    """
    match = _FOLD.fullmatch(Path(path).name)
    return int(match[1]) if match else None


def split_name(split: str) -> str:
    """The usual name of a split: ``valid`` and ``dev`` are ``vali``."""
    name = _SPLIT_BY_ALIAS.get(split.lower())
    if name is None:
        close = difflib.get_close_matches(split.lower(), _SPLIT_BY_ALIAS, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown split {quote(split)}. {hint}There are: {', '.join(_ALIASES)}")
    return name


def check_exists(path: Path) -> None:
    """Raise FileNotFoundError if there is no such path.

    A path such as ``folder/set1`` counts, if the folder has splits that begin with ``set1.``. The
    message suggests the path with the most similar name, or lists the folder.
    """
    if _streams.is_stream(path):
        return
    _streams.check_link(path)
    path = _files.readable_path(path)
    if path.exists() or (path.parent.is_dir() and _find_splits(path)):
        return
    parent, name = path.parent, path.name  # then: the first part of the path that is missing
    while not parent.exists():
        parent, name = parent.parent, parent.name
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {parent / close[0]}?" if close else ""
    if not hint and parent.is_dir():
        hint = f"; {_listing(parent)}"
    raise FileNotFoundError(f"there is no {path}{hint}")


def describe(path: Path, fold: int | None) -> str:
    """What a folder holds, or that a path is a file, in one sentence, for errors."""
    if path.is_file():
        return f"{path} is a file, not a folder of splits"
    by_fold = folds(path)
    if by_fold and fold is None:
        return f"{path} is a folder of folds: {', '.join(str(number) for number in by_fold)}"
    by_split = splits(path, fold) if fold is not None or _find_splits(path) else {}
    if by_split:
        listed = ", ".join(f"{name} ({file.name})" for name, file in by_split.items())
        return f"{path} is a folder of splits: {listed}"
    return f"{path} is not a store and has no train, vali or test in it; {_listing(path)}"


def _find_splits(path: Path) -> dict[str, list[Path]]:
    """The data sets of a folder by split; all candidates, as there may be several of one split.

    A split may be called ``train``, ``train.txt`` or ``set1.train.txt``, for example. With the path
    ``folder/set1``, only names that begin with ``set1.`` count.
    """
    folder, prefix = (path, "") if path.is_dir() else (path.parent, f"{path.name}.")
    by_split: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if not entry.name.startswith(prefix) or entry.name.startswith("."):
            continue
        words = entry.name.lower().split(".")
        name = next((_SPLIT_BY_ALIAS[word] for word in words if word in _SPLIT_BY_ALIAS), None)
        if name is None or entry.suffix in _SIDE_SUFFIXES:
            continue
        _streams.check_link(entry)  # an error; is_single would silently skip a broken link
        if is_single(entry):
            by_split.setdefault(name, []).append(entry)
    return by_split


def _listing(folder: Path) -> str:
    """The names of a folder's files, for errors."""
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{folder} has {', '.join(names[:_MAX_LISTED])}{more}" if names else f"{folder} is empty"
