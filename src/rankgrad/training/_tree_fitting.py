"""fit for boosted trees: the same arguments, run folder and result as for networks."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad._threads import available
from rankgrad.boosting.boosters import (
    BoostedTrees,
    BoostingConfig,
    BoostingState,
    Round,
    boost,
    seeded_loss,
)
from rankgrad.data._dataset import Dataset
from rankgrad.data.transforms import Pipeline
from rankgrad.losses import Loss
from rankgrad.losses._base import randomness_of
from rankgrad.metrics import metrics
from rankgrad.models import models
from rankgrad.models.trees import TreeModel
from rankgrad.training._evaluations import evaluate_scores
from rankgrad.training._fitted import FitResult, FittedRanker, TreeScorer
from rankgrad.training._loggers import callbacks
from rankgrad.training._processes import Interrupts
from rankgrad.training._settings import AUTO_PATIENCE, NETWORK_ONLY, Settings
from rankgrad.training.run import BEST, LAST, METRICS, STATE, Job, RunFolder, history_line

#: Files in ``last/``: the random state of the loss and, for DART, the trees after the best round.
RANDOM, DART = "random.safetensors", "best-trees"
_SAVE_EVERY = 60.0  # seconds between two checkpoints


def is_tree(settings: Settings) -> bool:
    """Whether the model is one of boosted trees.

    >>> from rankgrad.training._tree_fitting import is_tree
    >>> is_tree(Settings(model="lightgbm")), is_tree(Settings())
    (True, False)
    """
    return isinstance(models.get(settings.model), TreeModel)


def for_trees(settings: Settings) -> Settings:
    """Settings without transforms, where the model is one of trees: a split needs none.

    So the saved trees, in their library's own format, take features as they are.
    """
    return settings.model_copy(update={"transforms": ()}) if is_tree(settings) else settings


def fit_trees(job: Job) -> FitResult:
    """Boost trees as :func:`rankgrad.training.fit` trains networks.

    The settings that apply are loss, model, metric, metrics, transforms, epochs (the number of
    trees), patience and seed. All trees are saved every minute, and on Ctrl-C once the current tree
    is grown. A resumed run continues from them: see :func:`rankgrad.boosting.boosters.boost` for
    what is the same then.
    """
    _check(job.settings)
    with ExitStack() as lock:
        run = _folder(job, lock)
        checkpoint = None if run is None or not job.resume else _checkpoint(run)
        if run is not None and checkpoint is None and (run.path / BEST).exists():
            return _finished(run)  # of an earlier version
        try:
            with callbacks(job) as callback, Interrupts() as interrupts:
                return _Trees(job, run, callback, interrupts, checkpoint).fit()
        except Exception:  # a run with trees stays, to be resumed
            if run is not None and not job.resume and not run.started:
                shutil.rmtree(run.path, ignore_errors=True)
            raise


class _TreeState(TypedDict):
    """What the ``state.json`` of trees holds."""

    history: list[dict[str, float]]
    trees: list[int]  # after each round
    seconds: float


@dataclass(frozen=True)
class _Checkpoint:
    """What boosting goes on from."""

    state: BoostingState
    history: list[dict[str, float]]
    seconds: float
    random: dict[str, Tensor]


class _Trees:
    """A training: the job, its folder, and what was logged so far."""

    def __init__(
        self,
        job: Job,
        run: RunFolder | None,
        callback: Callable[[Mapping[str, float]], None],
        interrupts: Interrupts,
        checkpoint: _Checkpoint | None,
    ) -> None:
        self.job, self.run, self.callback, self.interrupts = job, run, callback, interrupts
        self.checkpoint = checkpoint
        self.history = [] if checkpoint is None else list(checkpoint.history)
        self.seconds_before = 0.0 if checkpoint is None else checkpoint.seconds
        self.began = self.saved_at = time.perf_counter()
        model = models.get(job.settings.model)
        assert isinstance(model, TreeModel)
        if job.train.categories is not None and job.settings.transforms:
            raise ValueError(
                f"{model.name} takes categorical features as they are: leave out the transforms"
            )
        self.model = model
        self.loss = seeded_loss(job.settings.loss, job.settings.seed)
        if checkpoint is not None:
            for name, generator in _generators(self.loss).items():
                generator.set_state(checkpoint.random[name])

    def fit(self) -> FitResult:
        job = self.job
        self.transform = Pipeline(job.settings.transforms).fit(
            job.train.features, job.train.offsets
        )
        train = _transformed(job.train, self.transform)
        vali = None if job.vali is None else _transformed(job.vali, self.transform)
        done = boost(
            train,
            vali,
            _boosting(job.settings, self.model, self.loss),
            self._end_round,
            None if self.checkpoint is None else self.checkpoint.state,
        )
        ranker = self._ranker(done.saved)
        if self.run is not None and len(self.history) > self._rounds_before:
            self.run.save_best(ranker)
            self._save(done.state)
        return self._result(ranker, done)

    @property
    def _rounds_before(self) -> int:
        return 0 if self.checkpoint is None else len(self.checkpoint.history)

    def _end_round(self, done: Round) -> bool:
        """Log a round, and save now and then; whether Ctrl-C asks to stop."""
        values = {} if done.scores is None else self._values(done.scores)
        line = {"epoch": done.number, "seconds": self._seconds(), **values}
        line = {name: value for name, value in line.items() if not math.isnan(value)}
        self.history.append(line)
        if self.run is not None:
            self.run.log(line)
        self.callback(line)
        if time.perf_counter() - self.saved_at > _SAVE_EVERY:
            self._save(done.state())
        return self.interrupts.stop_requested

    def _save(self, state: BoostingState) -> None:
        """Replace ``last/``, which has all trees and what boosting goes on from."""
        if self.run is None:
            return
        saved: _TreeState = {
            "history": self.history,
            "trees": state.trees,
            "seconds": self._seconds(),
        }
        random = {name: each.get_state() for name, each in _generators(self.loss).items()}
        with _files.atomic_folder(self.run.path / LAST) as place:
            self._ranker(state.saved).write(place)
            _files.write_tensors(place / RANDOM, random)
            parts = [RANDOM]
            if state.best is not None:
                _files.write(place / DART, state.best)
                parts.append(DART)
            _files.write_json(place / STATE, saved, parts)
        self.saved_at = time.perf_counter()

    def _ranker(self, saved: bytes) -> FittedRanker:
        train = self.job.train
        return FittedRanker(
            self.job.settings,
            self.transform,
            TreeScorer(self.model, saved).eval(),
            feature_names=train.feature_names,
            zero_based=train.zero_based,
            categories=train.categories,
        )

    def _values(self, scores: np.ndarray) -> dict[str, float]:
        assert self.job.vali is not None
        return dict(evaluate_scores(scores, self.job.vali, self.job.settings.logged).mean)

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def _result(self, ranker: FittedRanker, done: BoostedTrees) -> FitResult:
        settings = self.job.settings
        stopped = _stopped(done.curve, len(self.history), settings)
        return FitResult(
            model=ranker,
            history=self.history,
            best_epoch=done.best_round,
            best_value=done.curve[done.best_round - 1] if done.curve else None,
            settings=settings,
            seconds=self._seconds(),
            stopped=stopped,
        )


def _generators(loss: Loss) -> dict[str, torch.Generator]:
    """The random generators of the loss, by name."""
    cpu = torch.device("cpu")
    found = {name: one.generator(cpu) for name, one in randomness_of(loss).items()}
    return {name: generator for name, generator in found.items() if generator is not None}


def _boosting(settings: Settings, model: TreeModel, loss: Loss) -> BoostingConfig:
    return BoostingConfig(
        model.name,  # type: ignore[arg-type]  # a library
        loss,
        settings.metric,
        model.options(),
        settings.epochs,
        _patience(settings),
        settings.seed,
        available(),
        model.label_gain,
        model.loss_device,
    )


def _check(settings: Settings) -> None:
    kind, wrong = settings.model.partition("(")[0], []
    if settings.devices > 1 or settings.device == "cuda":
        raise ValueError(
            f"{kind} is trained on the CPU, in one process: leave out device and devices. Where "
            f"{kind} is built for GPUs, write {kind}(device=cuda)"
        )
    for name in NETWORK_ONLY:
        value = getattr(settings, name)
        if value != Settings.model_fields[name].default:
            remedy = f"write {kind}({name}={value})" if name == "learning_rate" else "leave it out"
            wrong.append(f"{name}={value} is a setting of networks: {remedy}")
    if wrong:
        raise ValueError(f"{kind} is trained without an optimizer and batches. {'; '.join(wrong)}")


def _folder(job: Job, lock: ExitStack) -> RunFolder | None:
    if job.folder is None:
        return None
    run = RunFolder.of_job(job, lock)
    if job.resume:
        # An earlier version saved its best trees only.
        older = (run.path / BEST).exists() and not run.started
        if older and job.settings.extension(run.settings):
            raise ValueError(f"{run.path} is finished, and more trees need a new run: name another")
        run.extend(job.settings)
    return run


def _checkpoint(run: RunFolder) -> _Checkpoint | None:
    """What a run goes on from; ``metrics.jsonl`` is cut back to it."""
    run.recover()
    last = run.path / LAST
    if not last.exists():
        if not (run.path / BEST).exists():
            _files.write(run.path / METRICS, "")
        return None
    saved = _files.read_json(last / STATE)
    _schemas.check(last / STATE, saved, _TreeState)
    ranker = FittedRanker.load(last)
    assert isinstance(ranker.network, TreeScorer)
    history, settings = saved["history"], run.settings
    curve = [line[settings.metric] for line in history if settings.metric in line]
    if len(saved["trees"]) != len(history) or len(curve) not in (0, len(history)):
        raise _files.damaged(last / STATE, "its counts are wrong")
    _files.write(run.path / METRICS, "".join(map(history_line, history)))
    best = _files.read_part(last / DART, saved) if (last / DART).exists() else None
    return _Checkpoint(
        BoostingState(ranker.network.saved, curve, saved["trees"], best),
        history,
        saved["seconds"],
        _files.read_tensors(last / RANDOM, saved),
    )


def _finished(run: RunFolder) -> FitResult:
    """The result of a run that an earlier version finished, from its folder."""
    history, settings = run.history, run.settings
    values = [line[settings.metric] for line in history if settings.metric in line]
    best = _best_epoch(values, settings) if values else len(history) or settings.epochs
    return FitResult(
        model=run.best(),
        history=history,
        best_epoch=best,
        best_value=values[best - 1] if values else None,
        settings=settings,
        seconds=history[-1]["seconds"] if history else 0.0,
        stopped=_stopped(values, len(history), settings),
    )


def _patience(settings: Settings) -> int | None:
    """How many trees to wait for a better value; None for all."""
    return AUTO_PATIENCE if settings.patience == "auto" else settings.patience


def _stopped(values: list[float], rounds: int, settings: Settings) -> str:
    """Why boosting ended. Without values of a validation metric, patience has nothing to judge."""
    if rounds >= settings.epochs:
        return "epochs"
    waited = rounds - _best_epoch(values, settings) if values else 0
    return "patience" if waited >= (_patience(settings) or math.inf) else "interrupted"


def _best_epoch(values: list[float], settings: Settings) -> int:
    lower = metrics.get(settings.metric).lower_is_better
    return int(np.argmin(values) if lower else np.argmax(values)) + 1


def _transformed(lists: Dataset, transform: Pipeline) -> Dataset:
    """The lists with transformed features; trees need none, so usually themselves."""
    if not transform.steps:
        return lists
    features = transform.transform(torch.from_numpy(np.array(lists.features))).numpy()
    return Dataset(features, lists.labels, lists.offsets, lists.qids, weights=lists.weights)
