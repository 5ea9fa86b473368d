"""Progress bar and loggers: the epochs of a run on the terminal, in TensorBoard, MLflow or W&B.

A logger is an ``on_epoch`` callback of :func:`rankgrad.training.fit` that also knows when the run
starts and ends. All loggers use the same tags: ``train/loss``, ``train/learning_rate``,
``train/seconds``, ``val/ndcg@10`` and ``NAME/ndcg@10`` for further data sets, with the epoch as
the step.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor
from typing_extensions import TypedDict, override

from rankgrad import _files, _schemas
from rankgrad._validation import check_choice
from rankgrad.extras import requires
from rankgrad.specs import HasSpec, Registry
from rankgrad.training._gpu import AsyncScalars
from rankgrad.training._settings import Settings
from rankgrad.training.run import Job

if TYPE_CHECKING:
    from rankgrad.training.trainer import Trainer


_REFRESH = 0.25  # seconds between two reads of the loss


class Progress:
    """Shows a run as it goes: nothing where it is quiet, in other processes than the first."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._shown = trainer, 0.0
        self._enabled = trainer.rank == 0 and not trainer.job.quiet
        self._bar = _bar() if self._enabled and sys.stderr.isatty() else None
        self._task: Any = None
        self._loss: AsyncScalars | None = None
        self._steps = 1

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
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
            self._loss = AsyncScalars(totals)
        if self._loss is None or not self._loss.ready():
            return
        (loss, lists), self._loss = self._loss.wait(), None
        self._shown = time.monotonic()
        state = self._trainer.state
        self._bar.update(
            self._task,
            completed=state.epoch + state.step / self._steps,
            loss=f"loss {loss / max(lists, 1e-12):.4f}",
        )

    def end(self, line: Mapping[str, float]) -> None:
        """An epoch is finished."""
        if self._bar is None:
            return
        metric = self._trainer.settings.metric
        best = self._trainer.state.best_value
        if metric in line and best is not None:
            self._bar.update(self._task, metric=f"{metric} {line[metric]:.4f} (best {best:.4f})")
        self._bar.update(self._task, completed=line["epoch"], loss=f"loss {line['loss']:.4f}")

    def interrupted(self) -> None:
        """Print how far training came."""
        folder = self._trainer.job.folder
        if not self._enabled:
            return
        rest = f"; {folder} holds all that is needed to resume."
        if folder is None:
            rest = ". There is no run folder to resume."
        print(f"Stopped after epoch {self._trainer.state.epoch}{rest}", file=sys.stderr)


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


loggers: Registry[Logger] = Registry("logger")

Mode = Literal["online", "offline", "disabled"]

_RUNS = "loggers.json"  # in the run folder: which run of a tracking server it is
_OF_TRAINING = ("loss", "learning_rate", "seconds")
_NOT_ALLOWED = re.compile(r"[^\w\-.:/]+")  # in names of MLflow


class _Runs(TypedDict):
    """What ``loggers.json`` holds: the run of each tracking server."""

    runs: dict[str, str]


class Logger(HasSpec):
    """Logs the epochs of one run.

    A subclass implements :meth:`start`, :meth:`log` and :meth:`finish`. Until it is started it
    holds its options alone, so that it can be sent to another process.
    """

    _settings: Settings | None = None

    def begin(self, settings: Settings, folder: Path | None) -> None:
        """A run begins, or goes on, in the process that logs."""
        self._settings = settings
        self.start(settings, folder)

    def __call__(self, line: Mapping[str, float]) -> None:
        """An epoch is finished; ``line`` is its entry of the history."""
        if self._settings is None:
            raise ValueError(f"{self.name} was not started: pass it as on_epoch= of fit")
        self.log(tags(line, self._settings.logged), int(line["epoch"]))

    def start(self, settings: Settings, folder: Path | None) -> None:
        """Open the log. A run folder that is resumed has logged before."""
        raise TypeError(f"{type(self).__name__} does not say how it starts")

    def log(self, values: dict[str, float], epoch: int) -> None:
        """Log the values of an epoch by their tags."""
        raise TypeError(f"{type(self).__name__} does not say how it logs")

    def finish(self, failed: bool) -> None:
        """The run is over, or has ended with an error."""


loggers.base_class = Logger


def tags(line: Mapping[str, float], metrics: Sequence[str]) -> dict[str, float]:
    """The values of an epoch by their tags in a log.

    Args:
        line: an entry of the history.
        metrics: the specs of the metrics in it.

    >>> from rankgrad.training._loggers import tags
    >>> line = {"epoch": 1, "loss": 0.7, "ndcg@10": 0.4, "train ndcg@10": 0.5}
    >>> tags(line, ["ndcg@10"])
    {'train/loss': 0.7, 'val/ndcg@10': 0.4, 'train/ndcg@10': 0.5}
    """
    found = {f"train/{name}": line[name] for name in _OF_TRAINING if name in line}
    for name, value in line.items():
        for metric in metrics:
            if name == metric:
                found[f"val/{metric}"] = value
            elif name.endswith(f" {metric}"):
                found[f"{name.removesuffix(metric).strip()}/{metric}"] = value
    return found


@contextmanager
def callbacks(job: Job, enabled: bool = True) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """What is to be called after each epoch of a job; its loggers are started and finished.

    Args:
        job: its callbacks are called, and TensorBoard's logger where its settings ask for it.
        enabled: whether they are called in this process.
    """
    called = job.on_epoch if enabled else ()
    if enabled and job.settings.tensorboard:
        called = (TensorBoard(), *called)

    def call_all(line: Mapping[str, float]) -> None:
        for each in called:
            each(dict(line))

    with ExitStack() as started:
        for each in called:
            if isinstance(each, Logger):
                each.begin(job.settings, job.folder)
                started.push(partial(_finish, each))
        yield call_all


def _finish(logger: Logger, error: type[BaseException] | None, *_: object) -> None:
    logger.finish(failed=error is not None)


@loggers.register("tensorboard")
@dataclass(kw_only=True)
class TensorBoard(Logger):
    """Event files for TensorBoard.

    Args:
        folder: where they are written; None for the run folder.
    """

    folder: str | None = None
    _writer: Any = field(default=None, init=False, repr=False)

    @override
    def start(self, settings: Settings, folder: Path | None) -> None:
        place = self.folder or folder
        if place is None:
            raise ValueError(
                "tensorboard needs a folder to log into: give folder=, or a run folder"
            )
        with requires("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(place))

    @override
    def log(self, values: dict[str, float], epoch: int) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, epoch)

    @override
    def finish(self, failed: bool) -> None:
        self._writer.close()


@loggers.register("mlflow")
@dataclass(kw_only=True)
class MLflow(Logger):
    """A run of MLflow: settings as parameters, epochs as metrics.

    Names of MLflow have no ``@`` and no parentheses: ``val/ndcg@10`` is ``val/ndcg-at-10``. A run
    folder that is resumed goes on in the run of MLflow it began.

    Args:
        experiment: its name; it is made if it is not there.
        run: the name of the run; None for one that MLflow makes up.
        uri: of the tracking server or store; None for what MLflow is configured with.
    """

    experiment: str = "rankgrad"
    run: str | None = None
    uri: str | None = None
    _client: Any = field(default=None, init=False, repr=False)
    _id: str = field(default="", init=False, repr=False)

    @override
    def start(self, settings: Settings, folder: Path | None) -> None:
        with requires("mlflow"):
            from mlflow import MlflowClient
            from mlflow.entities import Param
        self._client = MlflowClient(tracking_uri=self.uri)
        before = _runs(folder).get(self.name)
        if before is not None:
            self._id = before
            self._client.update_run(self._id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self.experiment)
        create = self._client.create_experiment
        number = create(self.experiment) if experiment is None else experiment.experiment_id
        self._id = self._client.create_run(number, run_name=self.run).info.run_id
        parameters = [Param(name, str(getattr(settings, name))) for name in settings.applicable()]
        self._client.log_batch(self._id, params=parameters)
        _remember(folder, self.name, self._id)

    @override
    def log(self, values: dict[str, float], epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        named = {
            _NOT_ALLOWED.sub("_", k.replace("@", "-at-")).strip("_"): v for k, v in values.items()
        }
        self._client.log_batch(
            self._id, metrics=[Metric(k, v, now, epoch) for k, v in named.items()]
        )

    @override
    def finish(self, failed: bool) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


@loggers.register("wandb")
@dataclass(kw_only=True)
class WandB(Logger):
    """A run of Weights & Biases: settings as its config, epochs as its history.

    A run folder that is resumed goes on in the run it began.

    Args:
        project: its name.
        run: the name of the run; None for one that is made up.
        mode: ``online``, ``offline`` (``wandb sync`` sends it later) or ``disabled``; None for what
            the environment says.
        folder: where files are written; None for the run folder, or the working folder without one.
    """

    project: str = "rankgrad"
    run: str | None = None
    mode: Mode | None = None
    folder: str | None = None
    _run: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_choice("mode", self.mode, ("online", "offline", "disabled"))

    @override
    def start(self, settings: Settings, folder: Path | None) -> None:
        with requires("wandb"):
            import wandb
        place = self.folder or folder
        before = _runs(folder).get(self.name)
        self._run = wandb.init(
            project=self.project,
            name=self.run,
            mode=self.mode,
            dir=None if place is None else str(place),
            config=settings.applicable(),
            id=before,
            resume=None if before is None else "allow",
            reinit="create_new",  # a run of the user's own stays as it is
            settings=wandb.Settings(silent=True, console="off"),
        )
        _remember(folder, self.name, str(self._run.id))

    @override
    def log(self, values: dict[str, float], epoch: int) -> None:
        self._run.log(values, step=epoch)

    @override
    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _runs(folder: Path | None) -> dict[str, str]:
    """The runs of tracking servers in which a run folder has been logged, by logger."""
    if folder is None or not (folder / _RUNS).is_file():
        return {}
    runs: dict[str, str] = _schemas.read_json(folder / _RUNS, _Runs)["runs"]
    return runs


def _remember(folder: Path | None, logger: str, run: str) -> None:
    if folder is not None:
        _files.write_json(folder / _RUNS, {"runs": _runs(folder) | {logger: run}})
