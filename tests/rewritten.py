"""JSON files that are changed as their writer would have, with the right checksum."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rankgrad import _files


def rewrite(path: Path, drop: Iterable[str] = (), **changes: Any) -> None:
    values = _files.read_json(path)
    parts = values.pop("files", ())
    for name in drop:
        del values[name]
    _files.write_json(path, values | changes, parts)
