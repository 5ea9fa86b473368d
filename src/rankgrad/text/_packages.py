"""Collections and topics through other packages, for ``_collections``.

``ir_datasets:ID`` (or ``irds:ID``) is a data set of the package ir_datasets.
``datasets:NAME[:CONFIG[:SPLIT]]`` is a data set of the Hugging Face hub, or a folder that
``Dataset.save_to_disk`` wrote; its columns must be named like the fields of the JSONL
format.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rankgrad.text._records import TextRecord, from_fields

#: The package of each prefix.
_PREFIXES = {"ir_datasets": "ir_datasets", "irds": "ir_datasets", "datasets": "datasets"}

_NO_LINE = 0  # the line number of a record that is not from a file


def is_identifier(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` names a data set of a package, not a file.

    >>> from rankgrad.text._packages import is_identifier
    >>> is_identifier("irds:vaswani"), is_identifier("corpus.jsonl")
    (True, False)
    """
    prefix, colon, _ = os.fspath(path).partition(":")
    return bool(colon) and prefix in _PREFIXES


def records(
    identifier: str, part: Literal["docs", "queries"], field: str = ""
) -> Iterator[TextRecord]:
    """The documents or the topics of a data set.

    Those of ir_datasets have the text in ``field``, or the whole text if there is no such field.

    Raises:
        ImportError: the package is not installed; the message has the install line.
        ValueError: there is no such data set, or it lacks this part.
    """
    prefix, _, name = identifier.partition(":")
    package_name = _PREFIXES[prefix]
    try:
        package = importlib.import_module(package_name)
    except ImportError as error:
        message = f"{identifier} needs {package_name}: pip install {package_name}"
        raise ImportError(message) from error
    if package_name == "datasets":
        yield from _rows_of_datasets(package, name, identifier)
        return
    try:
        dataset = package.load(name)
    except KeyError:
        raise ValueError(f"ir_datasets has no data set {name!r}") from None
    if not getattr(dataset, f"has_{part}")():
        raise ValueError(f"the data set {name!r} of ir_datasets has no {part}")
    for record in getattr(dataset, f"{part}_iter")():
        id = record.doc_id if part == "docs" else record.query_id
        text = getattr(record, field, None) or _text_of_record(record)
        yield TextRecord(_NO_LINE, id, text)


def _text_of_record(record: Any) -> str:
    """The text of a document or query of ir_datasets, whose fields differ by data set."""
    if hasattr(record, "default_text"):
        return str(record.default_text()).strip()
    fields = record._asdict()
    return " ".join(str(fields[name]) for name in ("title", "text", "body") if fields.get(name))


def _rows_of_datasets(package: Any, name: str, identifier: str) -> Iterator[TextRecord]:
    """The rows of a data set ``NAME[:CONFIG[:SPLIT]]`` of Hugging Face datasets."""
    parts = name.split(":")
    if len(parts) > 3:
        raise ValueError(f"{identifier}: expected datasets:NAME[:CONFIG[:SPLIT]]")
    name, config, split = [*parts, "", ""][:3]  # config and split may be left out
    saved_files = ("state.json", "dataset_dict.json")  # of Dataset and DatasetDict
    if any(Path(name, file).is_file() for file in saved_files):
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
    elif split:
        raise ValueError(f"{identifier}: {name} has no splits")
    for row, fields in enumerate(dataset, start=1):
        yield from_fields(fields, _NO_LINE, f"{identifier}, row {row}")
