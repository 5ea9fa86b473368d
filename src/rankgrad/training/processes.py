"""Processes: the devices a run trains on, connected by Lightning Fabric.

One process needs nothing. Several are started here, or by ``torchrun``, which also spans machines.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankgrad import checksums
from rankgrad.data.checked import CheckedArray, CheckedFile
from rankgrad.data.dataset import Dataset
from rankgrad.training.interrupts import Interrupts
from rankgrad.training.settings import Settings

_SMALL = 1 << 26  # bytes up to which a map is compared: its file may be replaced on the way
_ARRAYS = ("features", "labels", "offsets", "qids", "weights", "ids")


def launched() -> bool:
    """Whether this is one of several processes already, started by ``torchrun`` or the like."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def connect(settings: Settings) -> Any:
    """The Fabric of this process, connected with the others where there are others."""
    from lightning_fabric import Fabric

    _hush()
    options: dict[str, Any] = {"devices": 1}
    if launched():
        here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        nodes = int(os.environ["WORLD_SIZE"]) // here
        options = {"devices": here, "num_nodes": nodes, "strategy": "ddp"}
    fabric = Fabric(accelerator=accelerator(settings), precision=settings.precision, **options)
    fabric.launch()
    return fabric


def start(settings: Settings, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``function(*arguments, fabric)`` in as many new processes; what the first one gives.

    An error that all of them raise, as they do on bad input, is raised here.
    """
    from lightning_fabric import Fabric

    kind = accelerator(settings)
    check_devices(settings)
    before = dict(os.environ)
    fabric = Fabric(
        accelerator=kind,
        devices=settings.devices,
        strategy="ddp_spawn",
        precision=settings.precision,
    )
    try:
        launch: Any = fabric.launch
        # Ctrl-C reaches the processes too: they stop and save, and what they say is waited for.
        with Interrupts():
            result = launch(_guarded, partial(function, *arguments))
    finally:  # the launcher leaves the address of this run there, and the next would take it
        os.environ.clear()
        os.environ.update(before)
    if isinstance(result, Exception):
        raise result
    return result


def check_devices(settings: Settings) -> None:
    """An error if there are not the devices that the settings ask for."""
    there = torch.cuda.device_count()
    if accelerator(settings) == "cuda" and settings.devices > there and not launched():
        raise ValueError(f"devices is {settings.devices}, but there are {there} GPUs")


def _guarded(fabric: Any, function: Callable[..., Any]) -> Any:
    _hush()
    try:
        return function(fabric)
    except (ValueError, OSError) as error:
        return error


def _hush() -> None:
    """No lines about how the processes found each other: warnings still come through."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)


def accelerator(settings: Settings) -> str:
    """``"cpu"`` or ``"cuda"``."""
    there = torch.cuda.is_available()
    if settings.device == "cuda" and not there:
        raise ValueError("device is cuda, but no GPU is found: take device=cpu or auto")
    return "cuda" if there and settings.device != "cpu" else "cpu"


@dataclass(frozen=True)
class Sent:
    """A data set on its way to another process: what is mapped from a file is mapped again there.

    Without this, a memory map larger than memory would be copied into each process.
    """

    arrays: dict[str, Any]
    feature_names: tuple[str, ...] | None
    zero_based: bool | None

    @classmethod
    def of(cls, dataset: Dataset) -> Sent:
        """What to send."""
        arrays = {name: _pack(getattr(dataset, name)) for name in _ARRAYS}
        return cls(arrays, dataset.feature_names, dataset.zero_based)

    def receive(self) -> Dataset:
        """The data set again."""
        arrays = {name: _unpack(array) for name, array in self.arrays.items()}
        return Dataset(
            **arrays,
            feature_names=self.feature_names,
            zero_based=self.zero_based,
            check=False,
        )


@dataclass(frozen=True)
class _File:
    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    checksum: str | None


@dataclass(frozen=True)
class _Checked:
    """A part of a file that is compared with its checksums as it is read, there as here."""

    path: str
    sums: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


def _pack(array: Any) -> Any:
    if isinstance(array, CheckedArray):
        file = array.file
        path = str(file.path.resolve())
        return _Checked(path, file.sums, array.dtype.str, array.shape, array.offset)
    # A part of a map says its offset wrong, so only a whole one goes by name.
    if isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap) and array.filename:
        mark = checksums.of_bytes(array) if array.nbytes <= _SMALL else None
        return _File(os.fspath(array.filename), array.dtype.str, array.shape, array.offset, mark)
    return array


def _unpack(array: Any) -> Any:
    if isinstance(array, _Checked):
        file = CheckedFile(Path(array.path), array.sums)
        return CheckedArray(file, np.dtype(array.dtype), array.shape, array.offset)
    if isinstance(array, _File):
        there = np.memmap(array.path, array.dtype, "r", array.offset, array.shape)
        if array.checksum not in (None, checksums.of_bytes(there)):
            raise ValueError(f"{array.path} was replaced while processes were started: start again")
        return there
    return array
