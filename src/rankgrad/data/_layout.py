"""Layout: which folders are splits and folds, and where each lies.

The splits are called ``train``, ``vali`` and ``test``, whatever the folder calls them; folds are
numbered as their folders are, ``Fold1`` is 1.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from rankgrad import _files
from rankgrad._quoting import quote
from rankgrad.data import _streams, store

_ALIASES = {
    "train": ("train", "training"),
    "vali": ("vali", "valid", "val", "validation", "dev"),
    "test": ("test", "testing"),
}
_SPLIT = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
_FOLD = re.compile(r"fold[ _-]?(\d+)", re.IGNORECASE)
_PART = re.compile(r"part[-_.]?(\d+).*\.(parquet|pq)", re.IGNORECASE)
_SIDE = (".query", ".group", ".weight", ".init", ".position")  # LightGBM's files beside the data
_HEAD = 1 << 20  # bytes that are read to recognize a file's format
_LISTED = 12  # names that an error spells out


def first_features(path: str | os.PathLike[str]) -> set[int]:
    """The ids of the features that the beginning of a LETOR file names."""
    with _streams.open_text(path) as file:
        head = re.sub(rb"#[^\n]*", b"", file.read(_HEAD))
    return set(map(int, set(re.findall(rb"[ \t](\d{1,10}):", head))))


def parts(path: str | os.PathLike[str]) -> list[Path]:
    """The Parquet files of a folder that are parts of one data set, in order.

    They are called ``part-0000.parquet`` and so on. Beside them there may be only markers of
    writers, such as ``_SUCCESS``; otherwise the list is empty.
    """
    path = Path(path)
    if not path.is_dir():
        return []
    inside = [place for place in path.iterdir() if not place.name.startswith((".", "_"))]
    numbers = {place: _PART.fullmatch(place.name) for place in inside}
    found = [(int(match[1]), place.name, place) for place, match in numbers.items() if match]
    return [place for _, _, place in sorted(found)] if len(found) == len(inside) else []


def is_single(path: str | os.PathLike[str]) -> bool:
    """Whether a path is one data set: a file, a pipe, a store, or a folder of parts."""
    if _streams.is_stream(path):
        return True
    return Path(path).is_file() or store.is_store(path) or bool(parts(path))


def splits(path: str | os.PathLike[str], fold: int | None = None) -> dict[str, Path]:
    r"""Where each split of a folder lies, ``train`` first.

    Where a folder has several sets of splits, such as Yahoo's ``set1.train.txt`` and
    ``set2.train.txt``, add the part before the split's name: ``folder/set1``.

    Args:
        path: the folder.
        fold: which fold of a folder of folds, ``1`` for ``Fold1``.

    Returns:
        The files, stores or folders of parts by the name of their split: ``train``,
        ``vali`` and ``test``, those that are there.

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
    place = Path(path)
    return _files.snapshot(lambda: store.manifests(place), lambda: _splits(place, fold))


def _splits(path: Path, fold: int | None) -> dict[str, Path]:
    """Find the splits of a folder; :func:`_files.snapshot` repeats it if the folder is replaced."""
    check_exists(path)
    if _streams.is_stream(path):
        raise ValueError(
            f"{_streams.display_name(path)} is one data set that can be read once: "
            "give a folder of splits"
        )
    path = _files.readable_path(path)
    inside = folds(path)
    if fold is not None:
        if fold not in inside:
            raise ValueError(f"{describe(path, None)}; there is no fold {fold!r}")
        path = inside[fold]
    found = _find_splits(path)
    if not found:
        raise ValueError(f"{describe(path, None)}{'; say which fold' if inside else ''}")
    for name, places in found.items():
        if len(places) > 1:
            names = ", ".join(place.name for place in places)
            prefix = places[0].name.split(".")[0]
            raise ValueError(
                f"{path} has several {name} splits: {names}. Give the file itself, or the part "
                f"before the split's name, such as {path / prefix}"
            )
    return {name: found[name][0] for name in _ALIASES if name in found}


def folds(path: str | os.PathLike[str]) -> dict[int, Path]:
    """Where each fold of a folder lies, ``Fold1`` under 1; empty where there are none.

    Args:
        path: the folder, or any other path.

    Returns:
        The folders of folds by their number, in its order.

    >>> import pathlib, tempfile
    >>> from rankgrad.data import folds
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in (2, 1):
    ...         pathlib.Path(folder, f"Fold{number}").mkdir()
    ...     [(number, path.name) for number, path in folds(folder).items()]
    [(1, 'Fold1'), (2, 'Fold2')]
    """
    path = Path(path)
    if not path.is_dir():
        return {}
    matches = ((_FOLD.fullmatch(inside.name), inside) for inside in path.iterdir())
    return dict(sorted((int(m[1]), inside) for m, inside in matches if m and inside.is_dir()))


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
    name = _SPLIT.get(split.lower())
    if name is None:
        close = difflib.get_close_matches(split.lower(), _SPLIT, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown split {quote(split)}. {hint}There are: {', '.join(_ALIASES)}")
    return name


def check_exists(path: Path) -> None:
    """Raise FileNotFoundError, with the most similar name that exists."""
    if _streams.is_stream(path):
        return
    _streams.check_link(path)
    path = _files.readable_path(path)
    if path.exists() or (path.parent.is_dir() and _find_splits(path)):
        return
    parent, name = path.parent, path.name
    while not parent.exists():
        parent, name = parent.parent, parent.name
    names = [inside.name for inside in parent.iterdir()] if parent.is_dir() else []
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {parent / close[0]}?" if close else ""
    if not hint and parent.is_dir():
        hint = f"; {_listing(parent)}"
    raise FileNotFoundError(f"there is no {path}{hint}")


def describe(path: Path, fold: int | None) -> str:
    """What a folder holds, in one sentence, for errors."""
    inside = folds(path)
    if inside and fold is None:
        return f"{path} is a folder of folds: {', '.join(str(number) for number in inside)}"
    found = splits(path, fold) if fold is not None or _find_splits(path) else {}
    if found:
        listed = ", ".join(f"{name} ({place.name})" for name, place in found.items())
        return f"{path} is a folder of splits: {listed}"
    return f"{path} is not a store and has no train, vali or test in it; {_listing(path)}"


def _find_splits(path: Path) -> dict[str, list[Path]]:
    """The data sets of a folder by split, whose name is between dots: ``set1.train.txt``."""
    folder, prefix = (path, "") if path.is_dir() else (path.parent, f"{path.name}.")
    found: dict[str, list[Path]] = {}
    for inside in sorted(folder.iterdir()):
        if not inside.name.startswith(prefix) or inside.name.startswith("."):
            continue
        name = next((_SPLIT[p] for p in inside.name.lower().split(".") if p in _SPLIT), None)
        if name is None or inside.suffix in _SIDE:
            continue
        _streams.check_link(inside)  # a split that is silently left out would be worse
        if is_single(inside):
            found.setdefault(name, []).append(inside)
    return found


def _listing(folder: Path) -> str:
    names = sorted(inside.name for inside in folder.iterdir() if not inside.name.startswith("."))
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{folder} has {', '.join(names[:_LISTED])}{more}" if names else f"{folder} is empty"
