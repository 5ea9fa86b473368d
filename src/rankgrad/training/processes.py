"""Processes: the devices a run trains on, connected by Lightning Fabric."""

from __future__ import annotations

import os
from typing import Any

import torch

from rankgrad.training.settings import Settings


def launched() -> bool:
    """Whether this is one of several processes already, started by ``torchrun`` or the like."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def connect(settings: Settings) -> Any:
    """This process's Fabric, connected with the others where there are others."""
    from lightning_fabric import Fabric

    options: dict[str, Any] = {"devices": 1}
    if launched():
        here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        nodes = int(os.environ["WORLD_SIZE"]) // here
        options = {"devices": here, "num_nodes": nodes, "strategy": "ddp"}
    fabric = Fabric(accelerator=accelerator(settings), precision=settings.precision, **options)
    fabric.launch()
    return fabric


def accelerator(settings: Settings) -> str:
    """``"cpu"`` or ``"cuda"``."""
    there = torch.cuda.is_available()
    if settings.device == "cuda" and not there:
        raise ValueError("device is cuda, but no GPU is found: take device=cpu or auto")
    return "cuda" if there and settings.device != "cpu" else "cpu"
