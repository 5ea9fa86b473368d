"""fit for boosted trees: the same arguments, run folder and result as for networks."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch

from rankgrad import files
from rankgrad.boosting.boosters import BoostedTrees, BoostingConfig, boost
from rankgrad.data.dataset import Dataset
from rankgrad.data.transforms import Pipeline
from rankgrad.metrics import evaluate, metrics
from rankgrad.models import models
from rankgrad.models.trees import TreeModel
from rankgrad.threads import available
from rankgrad.training.fitted import FitResult, FittedRanker, TreeScorer
from rankgrad.training.loggers import Callbacks, TensorBoard
from rankgrad.training.run import BEST, METRICS, Job, RunFolder
from rankgrad.training.settings import Settings

#: Settings that do not apply to trees.
_OF_NETWORKS = (
    *("optimizer", "learning_rate", "weight_decay", "schedule", "batching", "batch_size"),
    *("documents", "list_size", "clip", "average", "accumulate", "precision", "graphs", "memory"),
)


def is_tree(settings: Settings) -> bool:
    """Whether the model is one of boosted trees.

    >>> from rankgrad.training.tree_fitting import is_tree
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

    Of the settings count loss, model, metric and metrics, transforms, epochs (trees), patience and
    seed. A run that was interrupted is made again from the start, to the same bytes.
    """
    _check(job.settings)
    with ExitStack() as lock:
        run = _folder(job, lock)
        if run is not None and job.resume and (run.path / BEST).exists():
            return _finished(run)
        try:
            with _callbacks(job) as called:
                return _Trees(job, run, called).fit()
        except Exception:  # an interrupted run stays, to be resumed
            if run is not None and not job.resume:
                shutil.rmtree(run.path, ignore_errors=True)
            raise


@dataclass
class _Trees:
    """A training: the job, its folder, and what was logged so far."""

    job: Job
    run: RunFolder | None
    called: Callbacks
    history: list[dict[str, float]] = field(default_factory=list)

    def fit(self) -> FitResult:
        job, settings, began = self.job, self.job.settings, time.perf_counter()
        model = models.get(settings.model)
        assert isinstance(model, TreeModel)
        if job.train.categories is not None and settings.transforms:
            raise ValueError(
                f"{model.name} takes categorical features as they are: leave out the transforms"
            )
        transform = Pipeline(settings.transforms).fit(job.train.features, job.train.offsets)

        def log(tree: int, scores: np.ndarray | None) -> None:
            seconds = time.perf_counter() - began
            values = {} if scores is None else self._values(scores)
            self._log({"epoch": tree, "seconds": seconds, **values})

        train = _transformed(job.train, transform)
        vali = None if job.vali is None else _transformed(job.vali, transform)
        done = boost(train, vali, _boosting(settings, model), log)
        ranker = FittedRanker(
            settings,
            transform,
            TreeScorer(model, done.saved).eval(),
            feature_names=job.train.feature_names,
            zero_based=job.train.zero_based,
            categories=job.train.categories,
        )
        if self.run is not None:
            self.run.save_best(ranker)
        return self._result(ranker, done, time.perf_counter() - began)

    def _values(self, scores: np.ndarray) -> dict[str, float]:
        vali, specs = self.job.vali, self.job.settings.logged
        assert vali is not None
        found = evaluate(
            scores, vali.labels, offsets=vali.offsets, weights=vali.weights, metrics=list(specs)
        )
        return dict(found.mean)

    def _log(self, line: dict[str, float]) -> None:
        self.history.append(line)
        if self.run is not None:
            self.run.log(line)
        self.called(line)

    def _result(self, ranker: FittedRanker, done: BoostedTrees, seconds: float) -> FitResult:
        settings = self.job.settings
        return FitResult(
            model=ranker,
            history=self.history,
            best_epoch=done.best_round,
            best_value=done.curve[done.best_round - 1] if done.curve else None,
            settings=settings,
            seconds=seconds,
            stopped=_stopped(done.curve, settings),
        )


def _callbacks(job: Job) -> Callbacks:
    called = job.on_epoch
    if job.settings.tensorboard:
        called = (TensorBoard(), *called)
    return Callbacks(called, job.settings, job.folder)


def _boosting(settings: Settings, model: TreeModel) -> BoostingConfig:
    return BoostingConfig(
        model.name,  # type: ignore[arg-type]  # a library
        settings.loss,
        settings.metric,
        model.options(),
        settings.epochs,
        settings.patience,
        settings.seed,
        available(),
    )


def _check(settings: Settings) -> None:
    if settings.devices > 1 or settings.device == "cuda":
        raise ValueError(
            f"{settings.model} is trained on the CPU, in one process: leave out device and "
            "devices. For XGBoost on a GPU, see rankgrad.integrations.xgboost.objective"
        )
    kind, wrong = settings.model.partition("(")[0], []
    for name in _OF_NETWORKS:
        value = getattr(settings, name)
        if value != Settings.model_fields[name].default:
            remedy = f"write {kind}({name}={value})" if name == "learning_rate" else "leave it out"
            wrong.append(f"{name}={value} is a setting of networks: {remedy}")
    if wrong:
        raise ValueError(f"{kind} is trained without an optimizer and batches. {'; '.join(wrong)}")


def _folder(job: Job, lock: ExitStack) -> RunFolder | None:
    if job.folder is None:
        return None
    if not job.resume:
        run = RunFolder.create(job.folder, job.settings, job.data)
        lock.enter_context(run.locked())
        return run
    run = RunFolder.open(job.folder)
    lock.enter_context(run.locked())
    run.check(job.settings, job.data)
    if (run.path / BEST).exists() and job.settings.extension(run.settings):
        raise ValueError(f"{run.path} is finished, and more trees need a new run: name another")
    run.extend(job.settings)
    if not (run.path / BEST).exists():
        files.write(run.path / METRICS, "")
    return run


def _finished(run: RunFolder) -> FitResult:
    """The result of a run that is there."""
    history, settings = run.history, run.settings
    values = [line[settings.metric] for line in history if settings.metric in line]
    ranker = run.best()
    best = _best_epoch(values, settings) if values else len(history) or settings.epochs
    return FitResult(
        model=ranker,
        history=history,
        best_epoch=best,
        best_value=values[best - 1] if values else None,
        settings=settings,
        seconds=history[-1]["seconds"] if history else 0.0,
        stopped=_stopped(values, settings),
    )


def _stopped(values: list[float], settings: Settings) -> str:
    """Why boosting ended. Without values of a validation metric, patience has nothing to judge."""
    return "patience" if 0 < len(values) < settings.epochs else "epochs"


def _best_epoch(values: list[float], settings: Settings) -> int:
    lower = metrics.get(settings.metric).lower_is_better
    return int(np.argmin(values) if lower else np.argmax(values)) + 1


def _transformed(lists: Dataset, transform: Pipeline) -> Dataset:
    """The lists with transformed features; trees need none, so usually themselves."""
    if not transform.steps:
        return lists
    features = transform.transform(torch.from_numpy(np.array(lists.features))).numpy()
    return Dataset(features, lists.labels, lists.offsets, lists.qids, weights=lists.weights)
