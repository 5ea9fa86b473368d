"""What a person sees of a run: a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rankgrad.training.arriving import Arriving

if TYPE_CHECKING:
    from rankgrad.training.trainer import Trainer

_REFRESH = 0.25  # seconds between two looks at the loss


class Progress:
    """Shows a run as it goes: nothing where it is quiet, in other processes than the first."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._shown = trainer, 0.0
        self._told = trainer.rank == 0 and not trainer.job.quiet
        self._bar = _bar() if self._told and sys.stderr.isatty() else None
        self._task: Any = None
        self._loss: Arriving | None = None
        self._steps = 1

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, epoch: int, step: int, steps: int) -> None:
        """An epoch begins, at this step."""
        self._loss = None
        if self._bar is None:
            return
        self._steps = steps
        epochs = self._trainer.settings.epochs
        if self._task is None:
            self._task = self._bar.add_task("", total=epochs, completed=epoch, loss="", metric="")
        self._bar.update(self._task, description=f"epoch {epoch + 1}/{epochs}")

    def step(self, totals: Tensor) -> None:
        """A step is done; ``totals`` are the epoch's summed loss and number of lists."""
        if self._bar is None:
            return
        if self._loss is None and time.monotonic() - self._shown >= _REFRESH:
            self._loss = Arriving(totals)
        if self._loss is None or not self._loss.here:
            return
        (loss, lists), self._loss = self._loss.numbers(), None
        self._shown = time.monotonic()
        position = self._trainer.position
        self._bar.update(
            self._task,
            completed=position.epoch + position.step / self._steps,
            loss=f"loss {loss / max(lists, 1e-12):.4f}",
        )

    def end(self, line: Mapping[str, float]) -> None:
        """An epoch is finished."""
        if self._bar is None:
            return
        metric = self._trainer.settings.metric
        best = self._trainer.position.best_value
        if metric in line and best is not None:
            self._bar.update(self._task, metric=f"{metric} {line[metric]:.4f} (best {best:.4f})")
        self._bar.update(self._task, completed=line["epoch"], loss=f"loss {line['loss']:.4f}")

    def interrupted(self) -> None:
        """Say how far it came."""
        folder = self._trainer.job.folder
        if not self._told:
            return
        epoch = self._trainer.position.epoch
        if folder is None:
            print(
                f"Stopped after epoch {epoch}. There is no run folder to resume.", file=sys.stderr
            )
        else:
            print(
                f"Stopped after epoch {epoch}; {folder} holds all that is needed to resume.",
                file=sys.stderr,
            )


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[loss]}  {task.fields[metric]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
