"""fit for boosted trees: the same arguments, run folder and result as for networks.

:func:`rankgrad.training.fit` calls :func:`fit_trees` if the model is ``lightgbm`` or ``xgboost``. A
round of boosting, which grows one tree, is an epoch. The trees are grown by
:func:`rankgrad.boosting.boosters.boost`; this module transforms features, logs, and saves
checkpoints.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad._threads import available
from rankgrad.boosting.boosters import (
    VALI,
    BoostingConfig,
    BoostingState,
    Round,
    boost,
    seeded_loss,
)
from rankgrad.data._dataset import Dataset
from rankgrad.data.transforms import Pipeline
from rankgrad.losses._base import generators_of
from rankgrad.metrics import metrics
from rankgrad.models import models
from rankgrad.models.trees import TreeModel
from rankgrad.training._evaluations import evaluate_scores
from rankgrad.training._fitted import FitResult, FittedRanker, TreeScorer, describe
from rankgrad.training._loggers import callbacks
from rankgrad.training._processes import Interrupts
from rankgrad.training._settings import AUTO_PATIENCE, NETWORK_ONLY, Settings
from rankgrad.training.run import BEST, LAST, STATE, Job, RunFolder

#: Files in ``last/``: the random state of the loss; for DART, the trees after the best round.
RANDOM, DART = "random.safetensors", "best-trees"
_SAVE_EVERY = 60.0  # seconds between two checkpoints


def is_tree(settings: Settings) -> bool:
    """Whether the model is boosted trees, and not a network.

    >>> from rankgrad.training._tree_fitting import is_tree
    >>> is_tree(Settings(model="lightgbm")), is_tree(Settings())
    (True, False)
    """
    return isinstance(models.get(settings.model), TreeModel)


def for_trees(settings: Settings) -> Settings:
    """Settings without transforms if the model is boosted trees, which do not need them.

    So the saved trees, in their library's own format, take raw features.
    """
    return settings.model_copy(update={"transforms": ()}) if is_tree(settings) else settings


def without_device(settings: Settings) -> Settings:
    """Settings of trees as a run folder has them: it saves no device, so that is ``auto``."""
    return settings.model_copy(update={"device": "auto"})


def fit_trees(job: Job) -> FitResult:
    """Boost trees as :func:`rankgrad.training.fit` trains networks.

    The settings that apply are loss, model, metric, metrics, transforms, epochs (the number of
    trees), patience and seed. All trees are saved every minute, and after Ctrl-C once the current
    tree is grown. A resumed run continues from them; :func:`rankgrad.boosting.boosters.boost` says
    when it grows the same trees as a run without a break.
    """
    check_tree_settings(job.settings)
    job = replace(job, settings=without_device(job.settings))
    with ExitStack() as lock:
        run = _open_folder(job, lock)
        if run is not None and _has_best_only(run):
            history = run.history
            seconds = history[-1]["seconds"] if history else 0.0
            return _result(run.best(), history, run.settings, seconds)
        checkpoint = _Checkpoint() if run is None or not job.resume else _read_checkpoint(run)
        try:
            with callbacks(job) as callback, Interrupts() as interrupts:
                return _TreeTrainer(job, run, callback, interrupts, checkpoint).fit()
        except Exception:  # remove the folder, unless it has a checkpoint to resume from
            if run is not None and not job.resume and not run.started:
                shutil.rmtree(run.path, ignore_errors=True)
            raise


class _TreeState(TypedDict):
    """The contents of ``state.json`` in ``last/``."""

    history: list[dict[str, float]]
    trees: list[int]  # the number of trees after each round
    seconds: float


@dataclass(frozen=True)
class _Checkpoint:
    """The state that a run resumes from; the default is that of a new run.

    Attributes:
        state: the trees so far; None for a new run.
        history: the entries so far.
        seconds: how long the run has taken so far.
        random: the state of each of the loss's generators, by name.
    """

    state: BoostingState | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    random: Mapping[str, Tensor] = field(default_factory=dict)


class _TreeTrainer:
    """One training run of trees.

    Args:
        job: the arguments of ``fit``.
        run: the run folder, if the run is saved.
        callback: called with each new entry of the history.
        interrupts: says whether Ctrl-C was pressed.
        checkpoint: what to resume from.
    """

    def __init__(
        self,
        job: Job,
        run: RunFolder | None,
        callback: Callable[[Mapping[str, float]], None],
        interrupts: Interrupts,
        checkpoint: _Checkpoint,
    ) -> None:
        self.job, self.run, self.callback, self.interrupts = job, run, callback, interrupts
        self.checkpoint, self.history = checkpoint, list(checkpoint.history)
        self.began = self.saved_at = time.perf_counter()
        model = models.get(job.settings.model)
        assert isinstance(model, TreeModel)
        if job.train.categories is not None and job.settings.transforms:
            raise ValueError(
                f"{model.name} takes categorical features as they are: leave out the transforms"
            )
        self.model = model
        self.description = describe(job.train)
        self.loss = seeded_loss(job.settings.loss, job.settings.seed)
        if checkpoint.state is not None:
            for name, generator in self._generators().items():
                state = checkpoint.random[name]
                # An earlier version saved the CPU's generator for losses on a GPU, too. Its state
                # has another size; noise then starts again from the seed, as it did there.
                if state.shape == generator.get_state().shape:
                    generator.set_state(state)

    def fit(self) -> FitResult:
        """Fit the transforms, boost the trees, and save."""
        job = self.job
        transform = Pipeline(job.settings.transforms)
        self.transform = transform.fit(job.train.features, job.train.offsets)
        train = _apply_transform(transform, job.train)
        vali = None if job.vali is None else _apply_transform(transform, job.vali)
        others = {name: _apply_transform(transform, lists) for name, lists in job.others.items()}
        settings, model = job.settings, self.model
        config = BoostingConfig(
            kind=model.name,  # type: ignore[arg-type]  # models are named as their libraries
            loss=self.loss,
            metric=settings.metric,
            options=model.options(),
            rounds=settings.epochs,
            patience=_patience(settings),
            seed=settings.seed,
            threads=available(),
            label_gain=model.label_gain,
            device=model.loss_device,
        )
        boosted = boost(train, vali, config, self._end_round, self.checkpoint.state, others)
        ranker = self._ranker(boosted.saved)
        if len(self.history) > len(self.checkpoint.history):
            self._save(boosted.state)
        if self.run is not None:
            # After last/, since a run that has best/ alone counts as finished. If the process was
            # killed between the two, best/ is missing, or of an earlier round.
            best = self.run.path / BEST / self.model.file
            if not best.is_file() or best.read_bytes() != boosted.saved:
                self.run.save_best(ranker)
        return _result(ranker, self.history, job.settings, self._seconds())

    def _end_round(self, done: Round) -> bool:
        """Log a finished round, and save once a minute; returns whether Ctrl-C was pressed."""
        line = {"epoch": done.number, "seconds": self._seconds()}
        for name, scores in done.scores.items():
            means = evaluate_scores(scores, self.job.data[name], self.job.settings.logged).mean
            prefix = "" if name == VALI else f"{name} "
            line |= {prefix + metric: value for metric, value in means.items()}
        line = {name: value for name, value in line.items() if not math.isnan(value)}
        self.history.append(line)
        if self.run is not None:
            self.run.log(line)
        self.callback(line)
        if time.perf_counter() - self.saved_at > _SAVE_EVERY:
            self._save(done.state())
        return self.interrupts.stop_requested

    def _save(self, state: BoostingState) -> None:
        """Replace ``last/``, which has all trees and the rest of the checkpoint."""
        if self.run is None:
            return
        seconds = self._seconds()
        saved: _TreeState = {"history": self.history, "trees": state.trees, "seconds": seconds}
        random = {name: each.get_state() for name, each in self._generators().items()}
        with _files.atomic_folder(self.run.path / LAST) as folder:
            self._ranker(state.saved).write(folder)
            _files.write_tensors(folder / RANDOM, random)
            files = [RANDOM]
            if state.best is not None:
                _files.write(folder / DART, state.best)
                files.append(DART)
            _files.write_json(folder / STATE, saved, files)
        self.saved_at = time.perf_counter()

    def _generators(self) -> dict[str, torch.Generator]:
        """The generators of the loss on the device where it is computed, by name."""
        device = torch.device(self.model.loss_device)
        if device.type == "cuda":  # with its index, as a tensor's device has it
            device = torch.device("cuda", torch.cuda.current_device())
        return generators_of(self.loss, device)

    def _ranker(self, saved: bytes) -> FittedRanker:
        """A ranker with these trees, in their library's own format."""
        scorer = TreeScorer(self.model, saved).eval()
        return FittedRanker(self.job.settings, self.transform, scorer, **self.description)

    def _seconds(self) -> float:
        return self.checkpoint.seconds + time.perf_counter() - self.began


def check_tree_settings(settings: Settings) -> None:
    """Raise if the model is trees and settings of networks have other values than their defaults.

    Args:
        settings: of a training run; those of a network are not checked.

    Raises:
        ValueError: the message names the settings.
    """
    if not is_tree(settings):
        return
    kind, errors = settings.model.partition("(")[0], []
    if settings.devices > 1 or settings.device == "cuda":
        raise ValueError(
            f"{kind} is trained on the CPU, in one process: leave out device and devices. Where "
            f"{kind} is built for GPUs, write {kind}(device=cuda)"
        )
    for name in NETWORK_ONLY:
        value = getattr(settings, name)
        if value != Settings.model_fields[name].default:
            remedy = f"write {kind}({name}={value})" if name == "learning_rate" else "leave it out"
            errors.append(f"{name}={value} is a setting of networks: {remedy}")
    if errors:
        raise ValueError(f"{kind} is trained without an optimizer and batches. {'; '.join(errors)}")


def _open_folder(job: Job, lock: ExitStack) -> RunFolder | None:
    """The run folder of a job, new or resumed, locked until ``lock`` is closed; None without."""
    if job.folder is None:
        return None
    run = RunFolder.of_job(job, lock)
    if job.resume:
        if _has_best_only(run) and job.settings.extension(run.settings):
            raise ValueError(f"{run.path} is finished, and more trees need a new run: name another")
        run.extend(job.settings)
    return run


def _has_best_only(run: RunFolder) -> bool:
    """Whether an earlier version wrote the run, one that saved only the best trees."""
    return (run.path / BEST).exists() and not run.started


def _read_checkpoint(run: RunFolder) -> _Checkpoint:
    """The checkpoint in a run folder, or that of a new run; ``metrics.jsonl`` is cut back to it."""
    last, saved = run.path / LAST, run.saved_state()
    if saved is None:
        return _Checkpoint()
    _schemas.check(last / STATE, saved, _TreeState)
    ranker = FittedRanker.load(last)
    assert isinstance(ranker.network, TreeScorer)
    history, settings = saved["history"], run.settings
    curve = [line[settings.metric] for line in history if settings.metric in line]
    if len(saved["trees"]) != len(history) or len(curve) not in (0, len(history)):
        raise _files.damaged(last / STATE, "its counts are wrong")
    run.write_history(history)
    best = _files.read_part(last / DART, saved) if (last / DART).exists() else None
    return _Checkpoint(
        BoostingState(ranker.network.saved, curve, saved["trees"], best),
        history,
        saved["seconds"],
        _files.read_tensors(last / RANDOM, saved),
    )


def _result(
    ranker: FittedRanker, history: list[dict[str, float]], settings: Settings, seconds: float
) -> FitResult:
    """The result of training. Without validation values, the last round is the best."""
    values = [line[settings.metric] for line in history if settings.metric in line]
    rounds = len(history)
    best = rounds or settings.epochs
    stopped = "interrupted"  # unless one of the rules below applies
    if values:
        lower = metrics.get(settings.metric).lower_is_better
        best = int(np.argmin(values) if lower else np.argmax(values)) + 1
    if rounds >= settings.epochs:
        stopped = "epochs"
    elif values and rounds - best >= (_patience(settings) or math.inf):
        stopped = "patience"
    value = values[best - 1] if values else None
    return FitResult(ranker, history, best, value, settings, seconds, stopped)


def _patience(settings: Settings) -> int | None:
    """How many trees to wait for a better value; None to never stop early."""
    return AUTO_PATIENCE if settings.patience == "auto" else settings.patience


def _apply_transform(transform: Pipeline, lists: Dataset) -> Dataset:
    """The lists with transformed features; the lists themselves if there are no transforms."""
    if not transform.steps:
        return lists
    features = transform.transform(torch.from_numpy(np.array(lists.features))).numpy()
    return Dataset(features, lists.labels, lists.offsets, lists.qids, weights=lists.weights)
