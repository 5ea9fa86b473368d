"""distill: a student that engines can score, trained on the scores of a ranker they cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from rankgrad.data.dataset import Dataset
from rankgrad.metrics import evaluate
from rankgrad.significance import Interval, bootstrap_interval, randomization_test
from rankgrad.text.distillation import Transform, teacher_labels
from rankgrad.training import FittedRanker


def taught(
    data: Dataset, teacher: FittedRanker, how: Transform = "shift", *, temperature: float = 1.0
) -> Dataset:
    """The lists with a teacher's labels in the place of their own.

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
    """What a student loses to its teacher in one metric.

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
    """Teacher and student on the same lists, metric by metric.

    Args:
        teacher: the ranker that was distilled.
        student: the one that was trained on its scores.
        data: with labels; neither has been trained on it.
        metrics: specs.
    """
    values = [
        evaluate(
            ranker.predict(data.features, data.offsets),
            np.array(data.labels),
            offsets=np.array(data.offsets),
            weights=None if data.weights is None else np.array(data.weights),
            metrics=list(metrics),
        )
        for ranker in (teacher, student)
    ]
    found = []
    for name in values[0].mean:
        before, after = (one.per_list[name] for one in values)
        differences = np.asarray(after) - np.asarray(before)
        found.append(
            QualityLoss(
                name,
                values[0].mean[name],
                values[1].mean[name],
                values[1].mean[name] - values[0].mean[name],
                bootstrap_interval(differences),
                randomization_test(after, before),
            )
        )
    return found
