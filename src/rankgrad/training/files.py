"""Writing so that nothing half-written is ever seen: a temporary name, fsync, rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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
