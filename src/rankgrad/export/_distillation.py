"""distill: train a student that search engines can run on the scores of a ranker they cannot."""

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
from rankgrad.training import FittedRanker, Settings, fit
from rankgrad.training._evaluations import evaluate_scores
from rankgrad.training._tree_fitting import is_tree

#: The transforms of a student that is a network: every format takes them.
STUDENT_TRANSFORMS = (ZERO_FILL, "drop_constant", "standardize")


def student_settings(**options: Any) -> Settings:
    """The settings of a student: a perceptron on the loss ``listnet``, unless options say other.

    A network takes missing values for 0, as engines do, and scales features; trees take features
    as they are.

    Args:
        options: of :class:`~rankgrad.training.Settings`.

    Returns:
        The settings, for :func:`distill`.

    Raises:
        ValueError: an option is none of the settings, or has a wrong value.

    >>> student_settings().model, student_settings(model="lightgbm").transforms
    ('mlp(hidden=[64, 32])', ())
    """
    chosen = Settings(**{"loss": "listnet", "model": "mlp(hidden=[64, 32])"} | options)
    if "transforms" in options:
        return chosen
    transforms = () if is_tree(chosen) else STUDENT_TRANSFORMS
    return Settings(**chosen.model_dump() | {"transforms": transforms})


def with_teacher_labels(
    data: Dataset, teacher: FittedRanker, how: Transform = "shift", *, temperature: float = 1.0
) -> Dataset:
    """A data set whose labels are made from a teacher's scores.

    Args:
        data: what the teacher scores.
        teacher: a ranker.
        how: a transform of :func:`rankgrad.text.teacher_labels`, list by list.
        temperature: as there.
    """
    scores = torch.from_numpy(teacher.predict(data.features, data.offsets))
    parts = [
        teacher_labels(scores[start:stop], how, temperature=temperature).numpy()
        for start, stop in pairwise(data.offsets.tolist())
    ]
    return replace(data, labels=np.concatenate([np.empty(0, np.float32), *parts]), check=True)


@dataclass(frozen=True)
class QualityLoss:
    """The quality that a student loses to its teacher, in one metric.

    Attributes:
        metric: its spec.
        teacher, student: the means over lists.
        difference: student less teacher.
        interval: of the difference, 95%.
        p: of the two-sided paired randomization test.
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
        student: the one that was trained on its scores.
        data: with labels; neither has been trained on it.
        metrics: specs.
    """
    before, after = (
        evaluate_scores(ranker.predict(data.features, data.offsets), data, list(metrics))
        for ranker in (teacher, student)
    )
    losses = []
    for metric in before.mean:
        per_list = {"teacher": before.per_list[metric], "student": after.per_list[metric]}
        (tested,) = differences(per_list, "teacher", metric, Significance("randomization", "none"))
        means = before.mean[metric], after.mean[metric]  # weighted
        change = means[1] - means[0]
        losses.append(QualityLoss(metric, *means, change, tested.interval, tested.p_value))
    return losses


@dataclass(frozen=True)
class Distilled:
    """A student, and the quality that it loses to its teacher.

    Attributes:
        student: the trained ranker.
        losses: of quality, one for each metric of its settings.
        measured_on: the split they were measured on: ``"test"``, or ``"vali"`` without one.
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
    """Train a student on the scores of a teacher, and measure what it loses.

    The student learns from the teacher's scores of the training lists. The labels of validation
    data choose its best epoch. It is compared with its teacher list by list on test data.

    Args:
        teacher: a ranker of any kind: an ensemble, trees, a model that looks at the whole list.
        splits: lists of the teacher's features: ``"train"``, and ``"vali"`` or ``"test"`` or both.
        settings: of the student; by default those of :func:`student_settings`.
        labels: how the teacher's scores become labels, as in :func:`rankgrad.text.teacher_labels`.
        temperature: as there.
        folder: a run folder to write, if any.
        quiet: without a progress bar.

    Returns:
        The student, and what it loses against its teacher by metric.

    Raises:
        ValueError: there are no training lists, or none to measure the loss on.
        KeyboardInterrupt: training was interrupted; then there is no run folder.

    >>> from rankgrad.data import synthetic
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
    chosen = student_settings() if settings is None else settings
    # What counts as missing and as a category in files is what it was for the teacher.
    read = {name: getattr(teacher.settings, name) for name in ("missing", "categorical")}
    chosen = chosen.model_copy(update=read)
    relabeled = with_teacher_labels(splits["train"], teacher, labels, temperature=temperature)
    new = folder is not None and not os.path.lexists(folder)
    try:
        result = fit(chosen, relabeled, splits.get("vali"), folder=folder, quiet=quiet)
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        if folder is not None and new:  # a run that was interrupted waits there to be resumed
            shutil.rmtree(folder, ignore_errors=True)
        raise
    losses = quality_losses(teacher, result.model, splits[held_out], chosen.logged)
    return Distilled(result.model, losses, held_out)
