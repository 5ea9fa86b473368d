"""Progress bar and loggers: the epochs of a run on the terminal, in TensorBoard, MLflow or W&B.

A logger is an ``on_epoch`` callback of :func:`rankgrad.training.fit` that is also called when the
run starts and ends; the training loops do so through :func:`callbacks`. All loggers use the same
tags: ``train/loss``, ``train/learning_rate``, ``train/seconds``, ``val/ndcg@10`` and
``NAME/ndcg@10`` for further data sets, with the epoch as the step.
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
from typing import TYPE_CHECKING, Any, Literal, get_args

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
    """The progress bar of a run, on a terminal.

    It shows nothing if the run is quiet, or in processes other than the first.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._enabled = trainer.rank == 0 and not trainer.job.quiet
        self._bar = self._task = None  # a bar of rich, and the id of its only task
        if self._enabled and sys.stderr.isatty():
            self._bar = _new_bar()
            epochs, done = trainer.settings.epochs, trainer.state.epoch
            self._task = self._bar.add_task("", total=epochs, completed=done, loss="", metric="")
        self._totals: AsyncScalars | None = None  # summed loss and lists on their way to the host
        self._shown_at = 0.0  # when the loss was last shown, by time.monotonic()
        self._steps = 1  # in an epoch

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, epoch: int, steps: int) -> None:
        """Call when an epoch of this many steps begins, or is resumed."""
        self._totals, self._steps = None, steps
        self._show(description=f"epoch {epoch + 1}/{self._trainer.settings.epochs}")

    def step(self, totals: Tensor) -> None:
        """Call after each step, with the epoch's summed loss and number of lists, ``[2]``."""
        if self._bar is None:
            return
        if self._totals is None and time.monotonic() - self._shown_at >= _REFRESH:
            self._totals = AsyncScalars(totals)
        if self._totals is None or not self._totals.ready():
            return
        (loss, lists), self._totals = self._totals.wait(), None
        self._shown_at = time.monotonic()
        state = self._trainer.state
        completed = state.epoch + state.step / self._steps
        self._show(completed=completed, loss=f"loss {loss / max(lists, 1e-12):.4f}")

    def end(self, line: Mapping[str, float]) -> None:
        """Call when an epoch is finished, with its entry of the history."""
        metric, best = self._trainer.settings.metric, self._trainer.state.best_value
        if metric in line and best is not None:
            self._show(metric=f"{metric} {line[metric]:.4f} (best {best:.4f})")
        self._show(completed=line["epoch"], loss=f"loss {line['loss']:.4f}")

    def _show(self, **fields: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, **fields)

    def interrupted(self) -> None:
        """Print after how many epochs training was interrupted, and whether it can be resumed."""
        folder = self._trainer.job.folder
        hint = f"; {folder} holds all that is needed to resume."
        if folder is None:
            hint = ". There is no run folder to resume."
        if self._enabled:
            print(f"Stopped after epoch {self._trainer.state.epoch}{hint}", file=sys.stderr)


def _new_bar() -> Any:
    """A progress bar of rich: epoch, bar, loss, metric, remaining time."""
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

_RUNS = "loggers.json"  # in the run folder: the ids of its runs on tracking servers
_TRAINING_VALUES = ("loss", "learning_rate", "seconds")  # in an entry of the history
_INVALID_IN_MLFLOW = re.compile(r"[^\w\-.:/]+")  # in the name of a metric


class _Runs(TypedDict):
    """The contents of ``loggers.json``: the id of the run, by the name of the logger."""

    runs: dict[str, str]


class Logger(HasSpec):
    """Logs the epochs of one run.

    A subclass implements :meth:`start`, :meth:`log` and :meth:`finish`. Before :meth:`start` it has
    only its options, so that it can be pickled and sent to another process.
    """

    _settings: Settings | None = None

    def begin(self, settings: Settings, folder: Path | None) -> None:
        """Call when a run starts or is resumed, in the process that logs.

        Args:
            settings: of the run.
            folder: the run folder; None without one.
        """
        self._settings = settings
        self.start(settings, folder)

    def __call__(self, line: Mapping[str, float]) -> None:
        """Log an epoch; ``line`` is its entry of the history."""
        if self._settings is None:
            raise ValueError(f"{self.name} was not started: pass it as on_epoch= of fit")
        self.log(tags(line, self._settings.logged), int(line["epoch"]))

    def start(self, settings: Settings, folder: Path | None) -> None:
        """Open the log; if the run folder was logged before, continue that log.

        Args:
            settings: of the run.
            folder: the run folder; None without one.
        """
        raise TypeError(f"{type(self).__name__} does not say how it starts")

    def log(self, values: dict[str, float], epoch: int) -> None:
        """Log the values of an epoch by their tags.

        Args:
            values: by tag, such as ``val/ndcg@10``.
            epoch: its number.
        """
        raise TypeError(f"{type(self).__name__} does not say how it logs")

    def finish(self, failed: bool) -> None:
        """Close the log; ``failed`` says whether the run ended with an error.

        Args:
            failed: whether the run ended with an error.
        """


loggers.base_class = Logger


def tags(line: Mapping[str, float], metrics: Sequence[str]) -> dict[str, float]:
    """The values of an epoch, by their tags in a log.

    Args:
        line: an entry of the history.
        metrics: the specs of the metrics in it.

    >>> from rankgrad.training._loggers import tags
    >>> line = {"epoch": 1, "loss": 0.7, "ndcg@10": 0.4, "train ndcg@10": 0.5}
    >>> tags(line, ["ndcg@10"])
    {'train/loss': 0.7, 'val/ndcg@10': 0.4, 'train/ndcg@10': 0.5}
    """
    values = {f"train/{name}": line[name] for name in _TRAINING_VALUES if name in line}
    for name, value in line.items():
        for metric in metrics:
            if name == metric:
                values[f"val/{metric}"] = value
            elif name.endswith(f" {metric}"):  # of a further data set
                values[f"{name.removesuffix(metric).strip()}/{metric}"] = value
    return values


@contextmanager
def callbacks(job: Job, enabled: bool = True) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """A context that gives a function to call after each epoch; it starts and finishes loggers.

    Args:
        job: the function calls ``job.on_epoch``, after TensorBoard's logger if
            ``job.settings.tensorboard`` is set.
        enabled: False for a function that does nothing, in processes other than the first.
    """
    functions = job.on_epoch if enabled else ()
    if enabled and job.settings.tensorboard:
        functions = (TensorBoard(), *functions)

    def call_all(line: Mapping[str, float]) -> None:
        for function in functions:
            function(dict(line))

    with ExitStack() as started:
        for function in functions:
            if isinstance(function, Logger):
                function.begin(job.settings, job.folder)
                started.push(partial(_finish, function))
        yield call_all


def _finish(logger: Logger, error: type[BaseException] | None, *_: object) -> None:
    """Call :meth:`Logger.finish`; the arguments after the logger are those of ``__exit__``."""
    logger.finish(failed=error is not None)


@loggers.register("tensorboard")
@dataclass(kw_only=True)
class TensorBoard(Logger):
    """Event files for TensorBoard.

    Args:
        folder: where to write them; None for the run folder.
    """

    folder: str | None = None
    _writer: Any = field(default=None, init=False, repr=False)

    @override
    def start(self, settings: Settings, folder: Path | None) -> None:
        path = self.folder or folder
        if path is None:
            raise ValueError(
                "tensorboard needs a folder to log into: give folder=, or a run folder"
            )
        with requires("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(path))

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

    MLflow allows no ``@`` and no parentheses in names: ``val/ndcg@10`` becomes ``val/ndcg-at-10``.
    A resumed run folder continues its run of MLflow.

    Args:
        experiment: its name; it is created if it does not exist.
        run: the name of the run; None for one that MLflow chooses.
        uri: of the tracking server or store; None for the one MLflow is configured with.
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
        run_id = _read_run_ids(folder).get(self.name)
        if run_id is not None:
            self._id = run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self.experiment)
        if experiment is None:
            experiment_id = self._client.create_experiment(self.experiment)
        else:
            experiment_id = experiment.experiment_id
        self._id = self._client.create_run(experiment_id, run_name=self.run).info.run_id
        parameters = [Param(name, str(getattr(settings, name))) for name in settings.applicable()]
        self._client.log_batch(self._id, params=parameters)
        _save_run_id(folder, self.name, self._id)

    @override
    def log(self, values: dict[str, float], epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = []
        for tag, value in values.items():
            name = _INVALID_IN_MLFLOW.sub("_", tag.replace("@", "-at-")).strip("_")
            metrics.append(Metric(name, value, now, epoch))
        self._client.log_batch(self._id, metrics=metrics)

    @override
    def finish(self, failed: bool) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


@loggers.register("wandb")
@dataclass(kw_only=True)
class WandB(Logger):
    """A run of Weights & Biases: settings as its config, epochs as its history.

    A resumed run folder continues its run of Weights & Biases.

    Args:
        project: its name.
        run: the name of the run; None for one that W&B chooses.
        mode: ``online``, ``offline`` (``wandb sync`` uploads it later) or ``disabled``; None for
            the mode that the environment sets.
        folder: where to write files; None for the run folder, or the working folder without one.
    """

    project: str = "rankgrad"
    run: str | None = None
    mode: Mode | None = None
    folder: str | None = None
    _run: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mode is not None:
            check_choice("mode", self.mode, get_args(Mode))

    @override
    def start(self, settings: Settings, folder: Path | None) -> None:
        with requires("wandb"):
            import wandb
        path = self.folder or folder
        run_id = _read_run_ids(folder).get(self.name)
        self._run = wandb.init(
            project=self.project,
            name=self.run,
            mode=self.mode,
            dir=None if path is None else str(path),
            config=settings.applicable(),
            id=run_id,
            resume=None if run_id is None else "allow",
            reinit="create_new",  # an open run of the user stays open
            settings=wandb.Settings(silent=True, console="off"),
        )
        _save_run_id(folder, self.name, str(self._run.id))

    @override
    def log(self, values: dict[str, float], epoch: int) -> None:
        self._run.log(values, step=epoch)

    @override
    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _read_run_ids(folder: Path | None) -> dict[str, str]:
    """The ids of the runs on tracking servers in which a run folder was logged, by logger."""
    if folder is None or not (folder / _RUNS).is_file():
        return {}
    runs: dict[str, str] = _schemas.read_json(folder / _RUNS, _Runs)["runs"]
    return runs


def _save_run_id(folder: Path | None, logger: str, run_id: str) -> None:
    if folder is not None:
        _files.write_json(folder / _RUNS, {"runs": _read_run_ids(folder) | {logger: run_id}})
