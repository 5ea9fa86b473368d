"""fit: train a model on data as the settings say, in one process or several."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from rankgrad.losses import Loss
from rankgrad.losses._base import randomness_of
from rankgrad.models._dropout import draw_from
from rankgrad.training import _processes
from rankgrad.training._fitted import FitResult, FittedRanker
from rankgrad.training._settings import Settings
from rankgrad.training._tree_fitting import fit_trees, is_tree
from rankgrad.training.run import Job, OnEpoch, RunFolder
from rankgrad.training.trainer import Trainer

_CHECKED_VALUES = 1 << 22  # values of features checked at a time


def check_data(
    train: Dataset, vali: Dataset | None, others: Mapping[str, Dataset] | None = None
) -> None:
    """Raise if the data cannot be trained on."""
    taken = {"train", "vali"} & set(others or {})
    if taken:
        raise ValueError(f"others must have names of their own, found {taken.pop()!r}")
    named = {"training": train, "validation": vali, **(others or {})}
    sets = {name: data for name, data in named.items() if data is not None}
    for name, data in sets.items():
        if data.n_items == 0:
            raise ValueError(f"there are no items in the {name} data")
    for name, data in sets.items():
        _check_same_features(train, name, data)
    for name, data in sets.items():
        _check_infinite(name, data)


def _check_same_features(train: Dataset, name: str, data: Dataset) -> None:
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
        for at, (one, other) in enumerate(pairs):
            if one != other:
                raise ValueError(
                    f"feature {at} (counting from 0) is {one!r} in the training data and {other!r} "
                    f"in the {name} data: they must be the same ones in the same order"
                )


def _check_infinite(name: str, data: Dataset) -> None:
    height = max(1, _CHECKED_VALUES // max(1, data.n_features))
    for start in range(0, data.n_items, height):
        infinite = np.isinf(data.features[start : start + height])
        if not infinite.any():
            continue
        row, column = np.argwhere(infinite)[0].tolist()
        item = start + row
        at = int(np.searchsorted(data.offsets, item, side="right")) - 1
        named = f" {data.feature_names[column]!r}" if data.feature_names else ""
        raise ValueError(
            f"the {name} data have an infinite feature: feature{named} at index {column} "
            f"(counting from 0) of item {item} (list {at}, qid {str(data.qids[at])!r}) is "
            f"{data.features[item, column]}. Give a finite value, or NaN for a missing one"
        )


def check_run(settings: Settings, folder: Path, resume: bool) -> None:
    """Raise if a run cannot start or be resumed, before its data are read."""
    _processes.check_devices(settings)
    if _processes.launched():
        return  # another of the processes may have made the folder already
    if resume:
        run = RunFolder.open(folder)
        run.check_free()
        run.check_settings(settings)
    else:
        RunFolder.check_new(folder)


_OPERATIONS_PER_VALUE = 30  # operations for each value that is sorted


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

    Same settings and data on the same machine: the same bytes out, resumed or not, also of fits in
    several threads at once. PyTorch's own random numbers are left as they were; a ``network`` of
    your own and dropout on GPUs draw from them, so such fits wait for each other. Small networks
    are trained on one thread; the sums of large ones are split among the threads PyTorch has
    (``torch.set_num_threads``), the number of which may change the last bits.

    Where the model is one of boosted trees, as ``lightgbm(num_leaves=31)``, epochs are trees. Those
    of a resumed run are others where their library draws random numbers, as for a fraction of the
    items.

    With ``settings.devices`` above 1, processes are started for it (then ``on_epoch`` and
    ``network`` must be things that can be sent to them); under ``torchrun``, every process calls
    this function.

    Args:
        settings: how.
        train: what to learn from.
        vali: what chooses the best epoch; without it, ``settings.holdout`` of the training lists
            do, or the last epoch is taken.
        folder: a run folder to make; it must not be there, unless it is resumed.
        resume: go on where the run in ``folder`` ended or was killed.
        network: a module of your own in place of ``settings.model``: ``network(features, mask)``
            gives scores, for features ``[b, n, f]`` and a boolean mask ``[b, n]``.
        others: further data sets by name, on which the metrics are logged each epoch, as
            ``"name metric"`` in the history; they choose nothing.
        on_epoch: called with each new entry of the history; or several such functions, in this
            order. Loggers, such as :class:`rankgrad.training.TensorBoard`, are some.
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
        settings = settings.model_copy(update={"holdout": 0.0})  # nothing is held out
    elif settings.holdout > 0:
        train, vali = hold_out(train, settings.holdout, settings.seed)
    if resume and folder is None:
        raise ValueError("resume needs the folder of the run to go on with")
    path = None if folder is None else Path(folder)
    called = (on_epoch,) if callable(on_epoch) else tuple(on_epoch or ())
    job = Job(settings, train, vali, dict(others or {}), path, resume, network, called, quiet)
    if network is None and is_tree(settings):
        return fit_trees(job)
    if settings.devices > 1 and not _processes.launched():
        return _fit_in_processes(job)
    return fit_in_process(_processes.connect(settings), job)


def hold_out(lists: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split lists at random into those to train on and those to validate on.

    Args:
        lists: at least two.
        fraction: of the lists, held out for validation; at least one is.
        seed: which lists they are depends on it and on their number alone.

    >>> from rankgrad.data import Dataset
    >>> from rankgrad.training._fitting import hold_out
    >>> lists = Dataset(np.eye(4), [1, 0, 1, 0], [0, 1, 2, 3, 4], ["a", "b", "c", "d"])
    >>> [part.qids.tolist() for part in hold_out(lists, 0.25, seed=0)]
    [['a', 'b', 'd'], ['c']]
    """
    if len(lists) < 2:
        raise ValueError("there is one list to train on, and none to hold out: set holdout to 0")
    count = min(max(1, round(fraction * len(lists))), len(lists) - 1)
    chosen = np.zeros(len(lists), bool)
    chosen[np.random.default_rng(seed).permutation(len(lists))[:count]] = True
    return lists.select(~chosen), lists.select(chosen)


def fit_in_process(fabric: Any, job: Job) -> FitResult:
    """:func:`fit` in this process, one of those that ``fabric`` connects."""
    run, checkpoint, problem = None, None, None
    with ExitStack() as lock:  # held by the process that writes
        if fabric.global_rank == 0 and job.folder is not None:
            try:
                run = RunFolder.of_job(job, lock)
                if job.resume:
                    run.extend(job.settings)
                    checkpoint = run.checkpoint()
            except (OSError, ValueError) as error:
                problem = error
        problem = fabric.broadcast(problem)  # so that no process waits for one that has failed
        if problem is not None:
            raise problem
        checkpoint = fabric.broadcast(checkpoint)
        with isolated(fabric.device, custom=job.network is not None) as random:
            try:
                # Transforms are fitted.
                with for_work(_OPERATIONS_PER_VALUE * job.train.features.size):
                    trainer = Trainer(fabric, job, run, checkpoint, random)
                return trainer.run()
            except BaseException:
                # A run without a checkpoint cannot be resumed, so its folder is removed.
                if run is not None and not job.resume and not run.started:
                    shutil.rmtree(run.path, ignore_errors=True)
                raise


def _fit_in_processes(job: Job) -> FitResult:
    """:func:`fit` in new processes. The model comes back through files, all else as it is."""
    if job.folder is not None:  # errors that need no processes
        check_run(job.settings, job.folder, job.resume)
    with tempfile.TemporaryDirectory() as place:
        done = _processes.start(job.settings, _work_on_sent, job, Path(place) / "model")
        model = FittedRanker.load(Path(place) / "model", job.network)
    return FitResult(model=model, **done)


def _work_on_sent(job: Job, place: Path, fabric: Any) -> dict[str, Any]:
    # A network that was sent shares its memory with all processes, so each takes a copy.
    done = fit_in_process(fabric, replace(job, network=copy.deepcopy(job.network)))
    if fabric.global_rank == 0:
        done.model.save(place)
    return {f.name: getattr(done, f.name) for f in fields(done) if f.name != "model"}


#: For trainings that draw from the generators that all threads share.
_shared_generator_lock = threading.RLock()


class RandomState:
    """Where a training draws its random numbers from: initial weights, dropout, noise of the loss.

    On a CPU, that is a generator of its own, so that trainings in several threads do not affect
    each other. A module of the user's and the dropout of GPUs draw from PyTorch's shared
    generators: such trainings take turns (see :func:`isolated`).

    Args:
        device: that is trained on.
        custom: whether the network is a module of the user's.
    """

    def __init__(self, device: torch.device, custom: bool = False) -> None:
        self.shared = custom or device.type != "cpu"
        self.generator = torch.default_generator if self.shared else torch.Generator()

    def seed(self, number: int) -> None:
        """Set the seed."""
        if self.shared:
            torch.manual_seed(number)  # of GPUs too
        else:
            self.generator.manual_seed(number)

    def building(self) -> AbstractContextManager[Any]:
        """While open, what this thread builds draws its initial weights from here."""
        return nullcontext() if self.shared else _DrawFrom(self.generator)

    @contextmanager
    def training(self, network: nn.Module, loss: Loss) -> Iterator[None]:
        """While open, the dropout of a network and a loss without a seed draw from here."""
        if self.shared:
            yield
            return
        for randomness in randomness_of(loss).values():
            randomness.fallback = self.generator
        draw_from(network, self.generator)
        try:
            yield
        finally:
            draw_from(network, None)  # a network that is copied or saved later carries none


@contextmanager
def isolated(device: torch.device, custom: bool) -> Iterator[RandomState]:
    """The random numbers of a training; PyTorch's own are left as they were."""
    state = RandomState(device, custom)
    if not state.shared:
        yield state
        return
    with _shared_generator_lock, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield state


_DRAWING: set[Callable[..., Any]] = {
    *(getattr(Tensor, name) for name in ("bernoulli_", "exponential_", "normal_", "random_")),
    *(Tensor.uniform_, Tensor.bernoulli, Tensor.multinomial),
    *(torch.bernoulli, torch.multinomial, torch.normal, torch.rand, torch.randint, torch.randn),
    *(torch.randperm, nn.init.uniform_, nn.init.normal_, nn.init.trunc_normal_),
    *(nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.xavier_uniform_),
    *(nn.init.xavier_normal_, nn.init.orthogonal_, nn.init.sparse_),
}


class _DrawFrom(TorchFunctionMode):
    """While open, functions of PyTorch draw from a generator, in this thread."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWING and kwargs.get("generator") is None:
            kwargs = kwargs | {"generator": self.generator}
        return func(*args, **kwargs)
