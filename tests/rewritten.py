"""JSON files that are changed as their writer would have, with the right checksum."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rankgrad import files


def rewrite(path: Path, drop: Iterable[str] = (), **changes: Any) -> None:
    values = files.read_json(path)
    parts = values.pop("files", ())
    for name in drop:
        del values[name]
    files.write_json(path, values | changes, parts)
