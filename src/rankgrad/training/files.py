"""Writing so that nothing half-written is ever seen: a temporary name, fsync, rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_OLD, _NEW = ".replaced", ".unfinished"


def write(path: Path, content: str | bytes) -> None:
    """Write a file through to the disk; it is there whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    unfinished = path.with_name(f".{path.name}{_NEW}")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    sync(path.parent)


@contextmanager
def folder(path: Path) -> Iterator[Path]:
    """A folder to fill that takes the place of ``path``, and of what is there, once it is full.

    A folder cannot be renamed over another in one go: :func:`recover` undoes the halves of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    unfinished, old = path.with_name(f".{path.name}{_NEW}"), path.with_name(f".{path.name}{_OLD}")
    unfinished.mkdir()
    try:
        yield unfinished
        sync(unfinished)
        if path.exists():
            os.rename(path, old)
        os.rename(unfinished, path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        recover(path)
        raise
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(path: Path) -> None:
    """Bring a folder that was being replaced when the process died back to a whole state."""
    unfinished, old = path.with_name(f".{path.name}{_NEW}"), path.with_name(f".{path.name}{_OLD}")
    if old.exists() and not path.exists():
        os.rename(old, path)
    for leftover in (unfinished, old):
        shutil.rmtree(leftover, ignore_errors=True)


def standing(path: Path) -> Path:
    """Where to read what :func:`folder` writes at ``path`` while it may be at it: no change made.

    For a moment the folder has its old contents under another name only.
    """
    old = path.with_name(f".{path.name}{_OLD}")
    return old if old.exists() and not path.exists() else path


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(damaged(path, str(error))) from None


def damaged(path: Path, what: str) -> str:
    """What to say of a file that is not as it was written."""
    return f"{path} is damaged ({what}): put back a copy of it, or train anew in another folder"


def sync(path: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors as safetensors."""
    from safetensors.torch import save

    # Each tensor is copied: some share memory, which the format does not allow.
    own = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    write(path, save(own))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What :func:`write_tensors` wrote."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Tensor] = load(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or is not safetensors: {error}") from None
    return tensors


def as_tensor(values: bytes) -> Tensor:
    """Bytes as a tensor of them."""
    return torch.frombuffer(bytearray(values), dtype=torch.uint8)
