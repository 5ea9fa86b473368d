"""fit: train a model on data as the settings say, in one process or several.

:func:`fit` checks the data and passes a :class:`~rankgrad.training.run.Job` on: boosted trees to
:mod:`rankgrad.training._tree_fitting`; a network to :func:`fit_in_process`, which makes the run
folder and runs a :class:`~rankgrad.training.trainer.Trainer`, or to new processes that each do
that. :class:`RandomState` at the end gives each training its own random numbers.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankgrad._threads import for_work
from rankgrad.data._dataset import Dataset
from rankgrad.losses import Loss, losses
from rankgrad.losses._base import randomness_of
from rankgrad.metrics import metrics
from rankgrad.metrics.evaluate import check_labels, default_metrics
from rankgrad.models import models
from rankgrad.models._dropout import draw_from
from rankgrad.training import _processes
from rankgrad.training._fitted import FitResult, FittedRanker
from rankgrad.training._settings import Settings
from rankgrad.training._tree_fitting import check_tree_settings, fit_trees, is_tree, without_device
from rankgrad.training.run import Job, OnEpoch, RunFolder
from rankgrad.training.trainer import Trainer

_CHECKED_VALUES = 1 << 22  # values of features checked at a time
_OPERATIONS_PER_SORTED_VALUE = 30  # about what fitting a transform costs


def fit(
    settings: Settings,
    train: Dataset,
    vali: Dataset | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    network: nn.Module | None = None,
    others: Mapping[str, Dataset] | None = None,
    on_epoch: OnEpoch | Sequence[OnEpoch] | None = None,
    quiet: bool = True,
) -> FitResult:
    """Train a ranker.

    The same settings and data on the same machine give the same bytes, whether the run is resumed
    or not, and also if several threads fit at once. PyTorch's own generators are left as they were.
    A ``network`` of your own and dropout on GPUs draw from them, so such fits wait for each other.
    Small networks are trained on one thread. Sums of large ones are split among PyTorch's threads
    (``torch.set_num_threads``), the number of which may change the last bits.

    If the model is boosted trees, such as ``lightgbm(num_leaves=31)``, epochs are trees. If
    their library draws random numbers, for example for a fraction of the items, a resumed run grows
    different trees than one without a break.

    With ``settings.devices`` above 1, this function starts as many processes (then ``on_epoch`` and
    ``network`` must be picklable); under ``torchrun``, every process calls this function.

    Args:
        settings: how to train.
        train: the training lists.
        vali: the validation lists, which choose the best epoch. Without them, the fraction
            ``settings.holdout`` of the training lists does; if that is 0, the last epoch is taken.
        folder: the run folder to make. It must not exist, unless the run is resumed.
        resume: continue the run in ``folder`` where it ended or was killed.
        network: a module of your own in place of ``settings.model``: ``network(features, mask)``
            gives scores ``[b, n]``, for features ``[b, n, f]`` and a boolean mask ``[b, n]``.
        others: further data sets by name. Their metrics are logged each epoch, as ``"name metric"``
            in the history; they do not influence the training.
        on_epoch: called with each new entry of the history; or several such functions, called in
            this order. Loggers such as :class:`rankgrad.training.TensorBoard` are such functions.
        quiet: show no progress on the terminal.

    Returns:
        The ranker of the best epoch, with the history of the training.

    Raises:
        ValueError: the data cannot be trained on, or a resumed run has other settings or data.
        FileExistsError: ``folder`` exists and ``resume`` is False.

    >>> from rankgrad.data import Dataset
    >>> from rankgrad.training import Settings, fit
    >>> lists = Dataset(np.eye(4), [2, 0, 1, 0], [0, 2, 4], ["a", "b"])
    >>> done = fit(Settings(loss="softmax", epochs=2, device="cpu"), lists, lists)
    >>> done.stopped, len(done.history), sorted(done.history[0])
    ('epochs', 2, ['ap', 'epoch', 'learning_rate', 'loss', 'ndcg@10', 'ndcg@5', 'rr', 'seconds'])
    """
    check_data(train, vali, others)
    if vali is not None:
        settings = settings.model_copy(update={"holdout": 0.0})  # so nothing is held out
    elif settings.holdout > 0:
        train, vali = hold_out(train, settings.holdout, settings.seed)
    _check_labels(settings, train, [*([] if vali is None else [vali]), *(others or {}).values()])
    if resume and folder is None:
        raise ValueError("resume needs the folder of the run to go on with")
    path = None if folder is None else Path(folder)
    callbacks = (on_epoch,) if callable(on_epoch) else tuple(on_epoch or ())
    job = Job(settings, train, vali, dict(others or {}), path, resume, network, callbacks, quiet)
    if network is None and is_tree(settings):
        return fit_trees(job)
    if settings.devices > 1 and not _processes.launched():
        return _fit_in_processes(job)
    return fit_in_process(_processes.connect(settings), job)


def fit_to_end(
    settings: Settings, train: Dataset, vali: Dataset | None = None, **options: Any
) -> FitResult:
    """:func:`fit`, for callers that must not go on with a ranker that Ctrl-C left half-trained.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the run folder, if there is one, is saved.
    """
    result = fit(settings, train, vali, **options)
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    return result


def hold_out(lists: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split lists at random into those to train on and those to validate on.

    Args:
        lists: at least two.
        fraction: the fraction of the lists to hold out for validation; at least one list is.
        seed: the choice depends only on the seed and on the number of lists.

    Returns:
        The training lists and the validation lists.

    >>> from rankgrad.data import Dataset
    >>> from rankgrad.training._fitting import hold_out
    >>> lists = Dataset(np.eye(4), [1, 0, 1, 0], [0, 1, 2, 3, 4], ["a", "b", "c", "d"])
    >>> [part.qids.tolist() for part in hold_out(lists, 0.25, seed=0)]
    [['a', 'b', 'd'], ['c']]
    """
    if len(lists) < 2:
        raise ValueError("there is one list to train on, and none to hold out: set holdout to 0")
    count = min(max(1, round(fraction * len(lists))), len(lists) - 1)
    held_out = np.zeros(len(lists), bool)
    held_out[np.random.default_rng(seed).permutation(len(lists))[:count]] = True
    parts = lists.select(~held_out), lists.select(held_out)
    if not all(part.n_items for part in parts):
        raise ValueError(
            f"of {len(lists)} lists, some without items, holdout leaves no items to train or to "
            "validate on: set it to 0, leave out empty lists, or give validation data"
        )
    return parts


def check_data(
    train: Dataset, vali: Dataset | None, others: Mapping[str, Dataset] | None = None
) -> None:
    """Raise if the data cannot be trained on: cheap checks first, then the values of features."""
    reserved = {"train", "vali"} & set(others or {})
    if reserved:
        raise ValueError(f"others must have names of their own, found {reserved.pop()!r}")
    # Pairs and not a dictionary: one of the others may be named "training" or "validation".
    optional = [("training", train), ("validation", vali), *(others or {}).items()]
    datasets = [(name, data) for name, data in optional if data is not None]
    for name, data in datasets:
        if data.n_items == 0:
            raise ValueError(f"there are no items in the {name} data")
    for name, data in datasets:
        _check_same_features(train, name, data)
    for name, data in datasets:
        _check_not_infinite(name, data)


def _check_labels(settings: Settings, train: Dataset, evaluated: Iterable[Dataset]) -> None:
    """Raise if labels are too large for the loss, or for the metrics that are logged."""
    if getattr(models.get(settings.model), "label_gain", None) is None:
        # LightGBM's losses are in float64, but it keeps gradients in float32.
        check_labels([losses.get(settings.loss)], torch.tensor(train.labels), registry=losses)
    for data in evaluated:
        labels = torch.tensor(data.labels)
        check_labels([metrics.get(settings.metric)], labels)
        try:
            check_labels(map(metrics.get, settings.metrics), labels)
        except ValueError as error:
            if settings.metrics != default_metrics(settings.metric):
                raise
            raise ValueError(
                f"{error}. It is one of the default metrics: name those you want in their place "
                "(--metrics of rankgrad train, -m of rankgrad compare, metrics=[...] in Python)"
            ) from None


def _check_same_features(train: Dataset, name: str, data: Dataset) -> None:
    """Raise if a data set does not have the features and categories of the training data."""
    if data.n_features != train.n_features:
        raise ValueError(
            f"the training data have {train.n_features} features, the {name} data "
            f"{data.n_features}: they must be the same ones"
        )
    if data.categories != train.categories:
        raise ValueError(
            f"the categories of the {name} data are not those of the training data: read them "
            "together, or give the codes of the training data (rankgrad.data._categories.match)"
        )
    if train.feature_names and data.feature_names:
        pairs = zip(train.feature_names, data.feature_names, strict=True)
        for index, (train_feature, feature) in enumerate(pairs):
            if train_feature != feature:
                raise ValueError(
                    f"feature {index} (counting from 0) is {train_feature!r} in the training data "
                    f"and {feature!r} in the {name} data: they must be the same ones in "
                    "the same order"
                )


def _check_not_infinite(name: str, data: Dataset) -> None:
    """Raise at the first infinite feature, naming its item. Reads some rows at a time."""
    n_rows = max(1, _CHECKED_VALUES // max(1, data.n_features))
    for start in range(0, data.n_items, n_rows):
        is_infinite = np.isinf(data.features[start : start + n_rows])
        if not is_infinite.any():
            continue
        row, column = np.argwhere(is_infinite)[0].tolist()
        item = start + row
        b = int(np.searchsorted(data.offsets, item, side="right")) - 1  # the list
        feature = f" {data.feature_names[column]!r}" if data.feature_names else ""
        raise ValueError(
            f"the {name} data have an infinite feature: feature{feature} at index {column} "
            f"(counting from 0) of item {item} (list {b}, qid {str(data.qids[b])!r}) is "
            f"{data.features[item, column]}; one beyond float32's 3.4e38 counts as infinite. Give "
            "a finite value, or NaN for a missing one: on the command line --missing inf makes one"
        )


def check_run(settings: Settings, folder: Path, resume: bool) -> None:
    """Raise if a run cannot start or be resumed, before its data are read."""
    check_tree_settings(settings)
    _processes.check_devices(settings)
    if _processes.launched():
        return  # one of the other processes may already have made the folder
    if resume:
        run = RunFolder.open(folder)
        run.check_free()
        run.check_settings(without_device(settings) if is_tree(settings) else settings)
    else:
        RunFolder.check_new(folder)


def fit_in_process(fabric: Any, job: Job) -> FitResult:
    """Train in this process, which is one of those that ``fabric`` connects.

    The first process alone makes or opens the run folder, and locks it.
    """
    run, checkpoint, problem = None, None, None
    with ExitStack() as lock:
        if fabric.global_rank == 0 and job.folder is not None:
            try:
                run = RunFolder.of_job(job, lock)
                if job.resume:
                    run.extend(job.settings)
                    checkpoint = run.checkpoint()
            except (OSError, ValueError) as error:
                problem = error
        problem = fabric.broadcast(problem)  # if the first process fails, all of them must stop
        if problem is not None:
            raise problem
        checkpoint = fabric.broadcast(checkpoint)
        with isolated(fabric.device, custom=job.network is not None) as random:
            try:
                # The trainer fits the transforms, which sort the values of each feature.
                with for_work(_OPERATIONS_PER_SORTED_VALUE * job.train.features.size):
                    trainer = Trainer(fabric, job, run, checkpoint, random)
                return trainer.run()
            except BaseException:
                # A run without a checkpoint cannot be resumed, so its folder is removed.
                if run is not None and not job.resume and not run.started:
                    shutil.rmtree(run.path, ignore_errors=True)
                raise


def _fit_in_processes(job: Job) -> FitResult:
    """Train in new processes. They save the model to a file, and send the rest of the result."""
    if job.folder is not None:  # these errors need not wait for the processes to start
        check_run(job.settings, job.folder, job.resume)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model"
        result = _processes.start(job.settings, _fit_and_save, job, path)
        model = FittedRanker.load(path, job.network)
    return FitResult(model=model, **result)


def _fit_and_save(job: Job, path: Path, fabric: Any) -> dict[str, Any]:
    """Train in a new process and save the model; returns the other fields of the result."""
    # PyTorch unpickles a network into memory that all processes share, so each makes a copy.
    result = fit_in_process(fabric, replace(job, network=copy.deepcopy(job.network)))
    if fabric.global_rank == 0:
        result.model.save(path)
    return {f.name: getattr(result, f.name) for f in fields(result) if f.name != "model"}


#: Held by trainings that draw from PyTorch's generators, which all threads share.
_shared_generator_lock = threading.RLock()


class RandomState:
    """The generator of a training's random numbers: initial weights, dropout, noise of the loss.

    On a CPU each training has a generator of its own, so that trainings in several threads do not
    affect each other. A user's own module and dropout on GPUs draw from PyTorch's shared
    generators; such trainings take turns (see :func:`isolated`).

    Args:
        device: the device to train on.
        custom: whether the network is a user's own module.
    """

    def __init__(self, device: torch.device, custom: bool = False) -> None:
        self.shared = custom or device.type != "cpu"
        self.generator = torch.default_generator if self.shared else torch.Generator()

    def seed(self, number: int) -> None:
        """Set the seed."""
        if self.shared:
            torch.manual_seed(number)  # also seeds GPUs
        else:
            self.generator.manual_seed(number)

    def building(self) -> AbstractContextManager[Any]:
        """A context in which modules built by this thread draw their weights from the generator."""
        return nullcontext() if self.shared else _DrawFrom(self.generator)

    @contextmanager
    def training(self, network: nn.Module, loss: Loss) -> Iterator[None]:
        """A context in which dropout and a loss without a seed draw from the generator."""
        if self.shared:
            yield
            return
        for randomness in randomness_of(loss).values():
            randomness.fallback = self.generator
        draw_from(network, self.generator)
        try:
            yield
        finally:
            draw_from(network, None)  # so that copies of the network have no generator


@contextmanager
def isolated(device: torch.device, custom: bool) -> Iterator[RandomState]:
    """The random state for a training; PyTorch's own generators are restored afterwards.

    Args:
        device: the device to train on.
        custom: whether the network is a user's own module.
    """
    state = RandomState(device, custom)
    if not state.shared:
        yield state
        return
    with _shared_generator_lock, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield state


#: The functions of PyTorch that draw random numbers and take a ``generator``.
_RANDOM_FUNCTIONS: set[Callable[..., Any]] = {
    *(getattr(Tensor, name) for name in ("bernoulli_", "exponential_", "normal_", "random_")),
    *(Tensor.uniform_, Tensor.bernoulli, Tensor.multinomial),
    *(torch.bernoulli, torch.multinomial, torch.normal, torch.rand, torch.randint, torch.randn),
    *(torch.randperm, nn.init.uniform_, nn.init.normal_, nn.init.trunc_normal_),
    *(nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.xavier_uniform_),
    *(nn.init.xavier_normal_, nn.init.orthogonal_, nn.init.sparse_),
}


class _DrawFrom(TorchFunctionMode):
    """A context in which PyTorch's functions draw from a generator, in this thread."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _RANDOM_FUNCTIONS and kwargs.get("generator") is None:
            kwargs = kwargs | {"generator": self.generator}
        return func(*args, **kwargs)
