"""Collections and topics through other packages: ``ir_datasets:ID`` and ``datasets:NAME``.

``datasets:NAME[:CONFIG[:SPLIT]]`` is a data set of the Hugging Face hub, or a folder that
``Dataset.save_to_disk`` wrote; its columns have the names of the JSONL format.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankgrad.text._records import TextRecord, from_fields

_PREFIXES = {"ir_datasets": "ir_datasets", "irds": "ir_datasets", "datasets": "datasets"}


def is_identifier(path: str | os.PathLike[str]) -> bool:
    """Whether this names a data set of a package and not a file.

    >>> from rankgrad.text._packages import is_identifier
    >>> is_identifier("irds:vaswani"), is_identifier("corpus.jsonl")
    (True, False)
    """
    prefix, colon, _ = os.fspath(path).partition(":")
    return bool(colon) and prefix in _PREFIXES


def documents(identifier: str) -> Iterator[TextRecord]:
    """The documents of a data set.

    Raises:
        ImportError: the package is not installed; the message has the install line.
    """
    package, name = _open(identifier)
    if package.__name__ == "datasets":
        yield from _rows(package, name, identifier)
        return
    for document in _load(package, name, "docs").docs_iter():
        yield TextRecord(0, document.doc_id, _text(document))


def topics(identifier: str, field: str = "title") -> Iterator[TextRecord]:
    """The topics of a data set; ``field`` is taken where they have it.

    Raises:
        ImportError: the package is not installed; the message has the install line.
    """
    package, name = _open(identifier)
    if package.__name__ == "datasets":
        yield from _rows(package, name, identifier)
        return
    for query in _load(package, name, "queries").queries_iter():
        yield TextRecord(0, query.query_id, getattr(query, field, None) or _text(query))


def _open(identifier: str) -> tuple[Any, str]:
    prefix, _, name = identifier.partition(":")
    package = _PREFIXES[prefix]
    try:
        return importlib.import_module(package), name
    except ImportError as error:
        raise ImportError(f"{identifier} needs {package}: pip install {package}") from error


def _load(package: Any, name: str, part: str) -> Any:
    """A data set of ir_datasets that has ``docs`` or ``queries``."""
    try:
        dataset = package.load(name)
    except KeyError:
        raise ValueError(f"ir_datasets has no data set {name!r}") from None
    if not getattr(dataset, f"has_{part}")():
        raise ValueError(f"the data set {name!r} of ir_datasets has no {part}")
    return dataset


def _text(record: Any) -> str:
    """The text of a document or query of ir_datasets, whose fields differ by data set."""
    if hasattr(record, "default_text"):
        return str(record.default_text()).strip()
    fields = record._asdict()
    return " ".join(str(fields[name]) for name in ("title", "text", "body") if fields.get(name))


def _rows(package: Any, name: str, identifier: str) -> Iterator[TextRecord]:
    parts = [*name.split(":"), "", ""]  # the config and the split may be left out
    name, config, split = parts[:3]
    if any(Path(name, mark).is_file() for mark in ("state.json", "dataset_dict.json")):
        dataset = package.load_from_disk(name)
    else:
        dataset = package.load_dataset(name, config or None)
    if isinstance(dataset, dict):  # by split
        if not split and len(dataset) == 1:
            split = next(iter(dataset))
        if split not in dataset:
            raise ValueError(
                f"{identifier}: say which split, as in datasets:{name}:{config}:SPLIT. There are: "
                f"{', '.join(dataset)}"
            )
        dataset = dataset[split]
    for row, fields in enumerate(dataset, start=1):
        yield from_fields(fields, 0, f"{identifier}, row {row}")
