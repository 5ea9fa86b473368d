"""Validation of the files that rankgrad writes: JSON against a schema, and folders of arrays.

Runs, evaluations, comparisons, saved rankers and explanations are read through this module. If a
file was damaged or edited, the error is one sentence that names the file and the key.
:mod:`rankgrad._files` makes the writes atomic and compares the checksums.

Pydantic is imported only when something is validated: its import takes 50 ms.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from rankgrad import _files
from rankgrad._quoting import message_of, quote

if TYPE_CHECKING:
    from pydantic import TypeAdapter

#: A JSON value that is neither a list nor an object, such as the fold in the labels of a run.
Scalar = str | int | float | bool | None


def read_json(path: Path, schema: Any) -> Any:
    """Read a JSON file and validate it against a schema.

    Args:
        path: the file.
        schema: a type, such as a ``TypedDict``; the file may have further keys, unless the schema
            comes from :func:`fields_of`.

    Returns:
        The values as JSON has them. Validation does not convert them.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged; the message names the first invalid key.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.json")
    ...     _ = path.write_text('{"epoch": 3}')
    ...     read_json(path, dict[str, int])
    {'epoch': 3}
    """
    values = _files.read_json(path)
    check(path, values, schema)
    return values


def read_versioned(
    path: Path, schema: Any, format: str, version: int, remedy: str
) -> dict[str, Any]:
    """Read a JSON file that names its format and version, and validate it against a schema.

    Args:
        path: the file.
        schema: the type of its contents.
        format: the expected value of its key ``format``.
        version: the expected value of its key ``version``.
        remedy: what the error advises if the version is another one.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, of another format or of another version.
    """
    values: dict[str, Any] = read_json(path, dict[str, Any])
    if values.get("format") != format:
        raise _files.damaged(path, f"its format is not {quote(format)}")
    if values.get("version") != version:
        raise _files.FileError(
            path,
            "was written by another version of rankgrad (format version "
            f"{quote(values.get('version'))}, this one reads {version}): {remedy}",
        )
    check(path, values, schema)
    return values


def fields_of(kind: type, /, **more: Any) -> Any:
    """A ``TypedDict`` schema with the fields of a dataclass and ``more``, and no other keys.

    All fields are required, even those that have defaults. Each call makes a new type.

    Args:
        kind: the dataclass.
        more: the types of additional keys, or types that replace the annotation of a field. A
            tuple needs a list here: JSON has no tuples, and :func:`check` is strict.
    """
    from pydantic import ConfigDict, with_config
    from typing_extensions import TypedDict

    schema = TypedDict(kind.__name__, get_type_hints(kind) | more)  # type: ignore[misc]
    return with_config(ConfigDict(extra="forbid"))(schema)


def write_arrays(
    folder: Path, name: str, metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write a folder of ``.npy`` files and their metadata; a former folder is replaced atomically.

    Args:
        folder: the folder.
        name: the name of the JSON file for the metadata; the checksums of the arrays are added.
        metadata: the metadata.
        arrays: the arrays, by the name of their file without ``.npy``.
    """
    with _files.atomic_folder(folder) as unfinished:
        for key, array in arrays.items():
            with _files.atomic_write(unfinished / f"{key}.npy") as file:
                np.save(file, array, allow_pickle=False)
        _files.write_json(unfinished / name, metadata, [f"{key}.npy" for key in arrays])


def read_array(path: Path, metadata: Mapping[str, Any], kinds: str, dims: int) -> np.ndarray:
    """Read an array that :func:`write_arrays` wrote.

    Args:
        path: the ``.npy`` file.
        metadata: the contents of the JSON file beside it, with its checksum.
        kinds: the allowed values of ``dtype.kind``, such as ``"if"`` for integers and floats.
        dims: the expected number of dimensions.

    Raises:
        ValueError: the file is damaged.
    """
    content = io.BytesIO(_files.read_part(path, metadata))
    try:
        # np.load would also accept a zip archive, and return something other than an array.
        array = np.lib.format.read_array(content, allow_pickle=False)
    except Exception as error:  # a damaged header makes NumPy raise errors of many types
        raise _files.damaged(path, message_of(error)) from None
    if array.dtype.kind not in kinds or array.ndim != dims:
        problem = f"it holds {array.dtype} of {array.ndim} dimensions"
        expected = f"a dtype of kind {' or '.join(kinds)} and {dims} dimensions"
        raise _files.damaged(path, f"{problem}, expected {expected}")
    return array


def check(path: Path, values: Any, schema: Any) -> None:
    """Raise if values do not fit a schema.

    Validation is strict: ``"3"`` is no integer, and a list is no tuple.

    Args:
        path: the file, for the error.
        values: the contents of the file.
        schema: the expected type.

    Raises:
        ValueError: the values do not fit; the message names the file and the first invalid key.
    """
    from pydantic import ValidationError

    try:
        _adapter(schema).validate_python(values, strict=True)
    except ValidationError as error:
        errors = error.errors()
        first, keys = errors[0], _keys_of(errors[0], values)
        # A union gives an error for each of its types, all for the same key.
        messages = [each["msg"] for each in errors if _keys_of(each, values) == keys]
        problem = " or ".join(message.removeprefix("Input ") for message in messages)
        problem = problem[0].lower() + problem[1:].replace(" or should be ", " or ")
        actual = "" if first["type"] == "missing" else f", found {quote(first['input'])}"
        name = quote(".".join(map(str, keys))) if keys else "it"
        raise _files.damaged(path, f"{name}: {problem}{actual}") from None


def _keys_of(error: Mapping[str, Any], values: Any) -> list[str | int]:
    """The keys and indices in ``values`` that lead to an error of pydantic.

    Its location also names the types of a union, which are left out: ``("labels", "seed", "str")``
    becomes ``["labels", "seed"]``. A missing key is not in ``values``, and is appended.
    """
    location, keys = error["loc"], []
    for part in location:
        is_key = isinstance(values, dict) and part in values
        is_index = isinstance(values, list) and isinstance(part, int)
        if is_key or is_index:
            keys.append(part)
            values = values[part]
    return [*keys, location[-1]] if error["type"] == "missing" else keys


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    """The validator of a schema; cached, since pydantic compiles it."""
    from pydantic import TypeAdapter

    return TypeAdapter(schema)
