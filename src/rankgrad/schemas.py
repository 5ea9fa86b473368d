"""Reads JSON and array files that rankgrad wrote, and validates them; errors are one sentence."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankgrad import files
from rankgrad.quoting import quote, shorten

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Scalar = str | int | float | bool | None


def read_json(path: Path, schema: Any) -> Any:
    """Read a JSON file and validate it against a schema.

    Args:
        path: the file.
        schema: a type, such as a ``TypedDict``; further keys are allowed.

    Raises:
        ValueError: the file is damaged, with the first key that is wrong.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place, "a.json")
    ...     _ = path.write_text('{"epoch": 3}')
    ...     read_json(path, dict[str, int])
    {'epoch': 3}
    """
    values = files.read_json(path)
    check(path, values, schema)
    return values


def parse_array(path: Path, content: bytes) -> np.ndarray:
    """The array of a ``.npy`` file; nothing in it is executed.

    Args:
        path: the file, for errors.
        content: its bytes.

    Raises:
        ValueError: the file is damaged. A damaged header makes NumPy raise errors of many types.
    """
    try:
        array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:
        what = shorten(" ".join(str(error).split()), 200) or type(error).__name__
        raise ValueError(files.damaged(path, what)) from None
    return array


def check(path: Path, values: Any, schema: Any) -> None:
    """Raise an error that names the file and the key, if values do not fit a schema."""
    from pydantic import ValidationError

    try:
        _adapter(schema).validate_python(values, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = quote(".".join(map(str, first["loc"]))) if first["loc"] else "it"
        what = first["msg"].removeprefix("Input ").lower()
        found = "" if first["type"] == "missing" else f", found {quote(first['input'])}"
        raise ValueError(files.damaged(path, f"{where}: {what}{found}")) from None


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(schema)
