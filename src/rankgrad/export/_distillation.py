"""distill: train a student, which search engines can run, on the scores of a ranker.

It is for rankers that engines cannot run, such as ensembles and networks that read whole lists
(Hinton et al. 2015). ``rankgrad distill`` calls it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from rankgrad.data._dataset import Dataset
from rankgrad.export._engines import ZERO_FILL
from rankgrad.significance import Interval, Significance, differences
from rankgrad.text._teachers import Transform, teacher_labels
from rankgrad.training import FittedRanker, Settings
from rankgrad.training._evaluations import evaluate_scores
from rankgrad.training._fitting import fit_to_end
from rankgrad.training._tree_fitting import is_tree

#: The transforms of a student that is a network; every export format supports them.
STUDENT_TRANSFORMS = (ZERO_FILL, "drop_constant", "standardize")


def student_settings(**options: Any) -> Settings:
    """The settings of a student: by default a perceptron that is trained on the loss ``listnet``.

    A network reads missing values as 0, as engines do, and scales features; trees take features
    as they are.

    Args:
        options: settings that differ, of :class:`~rankgrad.training.Settings`.

    Returns:
        The settings, for :func:`distill`.

    Raises:
        ValueError: an option is not a setting, or has a wrong value.

    >>> student_settings().model, student_settings(model="lightgbm").transforms
    ('mlp(hidden=[64, 32])', ())
    """
    settings = Settings(**{"loss": "listnet", "model": "mlp(hidden=[64, 32])"} | options)
    if "transforms" in options:
        return settings
    transforms = () if is_tree(settings) else STUDENT_TRANSFORMS
    return Settings(**settings.model_dump() | {"transforms": transforms})


def metrics_of(teacher: FittedRanker) -> dict[str, Any]:
    """The settings of a student that its teacher has: the metrics of validation."""
    return {name: getattr(teacher.settings, name) for name in ("metric", "metrics")}


def with_teacher_labels(
    data: Dataset, teacher: FittedRanker, labels: Transform = "shift", *, temperature: float = 1.0
) -> Dataset:
    """The data with labels from a teacher's scores.

    Args:
        data: the lists.
        teacher: the ranker that scores them.
        labels: how the scores of a list become labels, by :func:`rankgrad.text.teacher_labels`.
        temperature: the temperature of that transform.
    """
    scores = torch.from_numpy(teacher.predict(data.features, data.offsets))
    parts = [
        teacher_labels(scores[start:stop], labels, temperature=temperature).numpy()
        for start, stop in pairwise(data.offsets.tolist())
    ]
    return replace(data, labels=np.concatenate([np.empty(0, np.float32), *parts]), check=True)


@dataclass(frozen=True)
class QualityLoss:
    """The quality that a student loses against its teacher, in one metric.

    Attributes:
        metric: the spec of the metric.
        teacher: the teacher's mean over lists.
        student: the student's mean over lists.
        difference: student minus teacher.
        interval: the 95% confidence interval of the difference.
        p: the p-value of the two-sided paired randomization test.
    """

    metric: str
    teacher: float
    student: float
    difference: float
    interval: Interval
    p: float


def quality_losses(
    teacher: FittedRanker, student: FittedRanker, data: Dataset, metrics: Sequence[str]
) -> list[QualityLoss]:
    """Compare teacher and student on the same lists, metric by metric.

    Args:
        teacher: the ranker that was distilled.
        student: the ranker that was trained on the teacher's scores.
        data: labeled lists that neither was trained on.
        metrics: specs of the metrics.
    """
    by_teacher, by_student = (
        evaluate_scores(ranker.predict(data.features, data.offsets), data, list(metrics))
        for ranker in (teacher, student)
    )
    losses = []
    for metric in by_teacher.mean:
        teacher_mean, student_mean = by_teacher.mean[metric], by_student.mean[metric]
        per_list = {"teacher": by_teacher.per_list[metric], "student": by_student.per_list[metric]}
        (test,) = differences(per_list, "teacher", metric, Significance("randomization", "none"))
        change = student_mean - teacher_mean
        losses.append(
            QualityLoss(metric, teacher_mean, student_mean, change, test.interval, test.p_value)
        )
    return losses


@dataclass(frozen=True)
class Distilled:
    """A student, and the quality that it loses against its teacher.

    Attributes:
        student: the trained ranker.
        losses: the loss of quality in each metric of the student's settings.
        measured_on: the split of the measurement: ``"test"``, or ``"vali"`` without test data.
    """

    student: FittedRanker
    losses: list[QualityLoss]
    measured_on: str


def distill(
    teacher: FittedRanker,
    splits: Mapping[str, Dataset],
    settings: Settings | None = None,
    *,
    labels: Transform = "shift",
    temperature: float = 1.0,
    folder: str | os.PathLike[str] | None = None,
    quiet: bool = True,
) -> Distilled:
    """Train a student on the scores of a teacher, and measure how much quality it loses.

    The student learns from the teacher's scores of the training lists. The labels of validation
    data choose its best epoch. It is compared with its teacher list by list on test data.

    Args:
        teacher: a ranker of any kind: an ensemble, trees, a model that reads whole lists.
        splits: lists with the teacher's features: ``"train"``, and ``"vali"`` or ``"test"`` or
            both.
        settings: the settings of the student; by default those of :func:`student_settings`, with
            the metrics of the teacher.
        labels: how the teacher's scores become labels, by :func:`rankgrad.text.teacher_labels`.
        temperature: the temperature of that transform.
        folder: a run folder to write, if any.
        quiet: show no progress bar.

    Returns:
        The student, and its loss of quality by metric.

    Raises:
        ValueError: there are no training lists, or none to measure the loss on.
        KeyboardInterrupt: training was interrupted; a new run folder is removed.

    >>> from rankgrad.data import synthetic
    >>> from rankgrad.training import fit
    >>> data = {name: synthetic.make(20, seed=at) for at, name in enumerate(("train", "test"))}
    >>> teacher = fit(Settings(epochs=2, device="cpu"), data["train"]).model
    >>> small = student_settings(model="mlp(hidden=[4])", epochs=2, device="cpu")
    >>> done = distill(teacher, data, small)
    >>> done.student.per_item, done.measured_on, done.losses[0].metric
    (True, 'test', 'ndcg@10')
    """
    if "train" not in splits:
        raise ValueError(f"there is no train to distill on, only {', '.join(splits)}")
    held_out = "test" if "test" in splits else "vali"
    if held_out not in splits:
        raise ValueError(
            "what the student loses is measured on data it was not trained on: give --test, or a "
            "folder that has test data"
        )
    settings = student_settings(**metrics_of(teacher)) if settings is None else settings
    # Files are read as for the teacher: the same values are missing, the same columns categorical.
    reading = {name: getattr(teacher.settings, name) for name in ("missing", "categorical")}
    settings = settings.model_copy(update=reading)
    relabeled = with_teacher_labels(splits["train"], teacher, labels, temperature=temperature)
    is_new = folder is not None and not os.path.lexists(folder)
    try:
        vali = splits.get("vali")
        student = fit_to_end(settings, relabeled, vali, folder=folder, quiet=quiet).model
    except KeyboardInterrupt:
        if folder is not None and is_new:  # a folder that existed may be resumed
            shutil.rmtree(folder, ignore_errors=True)
        raise
    losses = quality_losses(teacher, student, splits[held_out], settings.logged)
    return Distilled(student, losses, held_out)
