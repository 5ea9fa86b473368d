"""Tensors in safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from rankgrad import files


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name; the file is there whole or not at all."""
    from safetensors.torch import save

    # Each tensor is copied: some share memory, which the format does not allow.
    own = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    files.write(path, save(own))


def read(path: Path, values: Mapping[str, Any]) -> dict[str, Tensor]:
    """What :func:`write` wrote, compared with the checksum in the JSON file that goes with it.

    Args:
        path: the file.
        values: what :func:`rankgrad.files.read_json` gave of that one.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Tensor] = load(files.read_part(path, values))
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or is not safetensors: {error}") from None
    return tensors
