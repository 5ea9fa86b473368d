"""Job: what a training is given, and Fit, what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from rankgrad.data.dataset import Dataset
from rankgrad.training import processes
from rankgrad.training.fitted import FittedRanker
from rankgrad.training.settings import Settings

OnEpoch = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Fit:
    """What training gives.

    ``stopped`` says why it ended: ``"epochs"``, ``"patience"`` or ``"interrupted"``. ``history``
    has one entry per epoch: epoch, loss, learning_rate, seconds, and the validation metrics.
    """

    model: FittedRanker  # of the best epoch; of the last without validation data
    history: list[dict[str, float]]
    best_epoch: int
    best_value: float | None
    settings: Settings
    seconds: float
    stopped: str


@dataclass(frozen=True)
class Job:
    """The arguments of :func:`rankgrad.training.fit`."""

    settings: Settings
    train: Dataset
    vali: Dataset | None
    others: dict[str, Dataset]
    folder: Path | None
    resume: bool
    network: nn.Module | None
    on_epoch: tuple[OnEpoch, ...]
    quiet: bool

    @property
    def data(self) -> dict[str, Dataset]:
        """The data sets by name."""
        chosen = {"train": self.train, "vali": self.vali}
        return {name: data for name, data in chosen.items() if data is not None} | self.others

    def __getstate__(self) -> dict[str, Any]:
        sent = {name: processes.Sent.of(dataset) for name, dataset in self.data.items()}
        train, vali = sent.pop("train"), sent.pop("vali", None)
        return vars(self) | {"train": train, "vali": vali, "others": sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        others = {name: sent.receive() for name, sent in state["others"].items()}
        for name, value in (state | {"others": others}).items():
            vars(self)[name] = value.receive() if isinstance(value, processes.Sent) else value
