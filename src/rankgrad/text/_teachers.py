"""Labels from a teacher: its scores, or its order alone, as labels that any loss takes.

They stand in the place of the grades, or beside them as one more column (:class:`MixedLoss`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rankgrad._validation import check_choice, check_positive
from rankgrad.data.trec import RankedList
from rankgrad.losses import Loss, losses

Transform = Literal["shift", "minmax", "softmax", "rank"]
TRANSFORMS = ("shift", "minmax", "softmax", "rank")


class MixedLoss(nn.Module):
    """``(1 - weight) loss(scores, grades) + weight teacher_loss(scores, teacher's labels)``.

    Each of the two is the mean over the lists on which it is defined.

    Args:
        loss: of the grades: a spec, or a loss.
        weight: of the teacher, from 0 to 1.
        teacher_loss: of the teacher's labels; by default that of the grades.

    Raises:
        ValueError: an unknown loss, or a weight that is not from 0 to 1.

    >>> loss = MixedLoss("softmax", 0.25, "margin_mse")
    >>> scores, grades = torch.tensor([0.0, 2.0, 1.0]), torch.tensor([0.0, 1.0, 0.0])
    >>> teacher = torch.tensor([0.0, 3.0, 2.0])
    >>> loss(scores, torch.stack([grades, teacher], -1))
    tensor(0.4724)
    """

    def __init__(
        self, loss: str | Loss, weight: float = 0.5, teacher_loss: str | Loss | None = None
    ) -> None:
        super().__init__()
        self.weight = check_weight(weight)
        # Two objects also where both are alike: a loss with noise has its own generator.
        self.loss = losses.get(str(loss)) if isinstance(loss, str) else loss
        self.teacher_loss = losses.get(str(self.loss if teacher_loss is None else teacher_loss))

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """The mixed loss, a scalar.

        Args:
            scores: ``[..., n]`` or ``[N]``.
            labels: ``[..., n, 2]`` or ``[N, 2]``: the grade and the teacher's label.
            mask: as losses take it.
            offsets: as losses take them.
        """
        if labels.shape != (*scores.shape, 2):
            raise ValueError(
                f"labels must have shape {[*scores.shape, 2]}, a grade and a teacher's label each, "
                f"found {list(labels.shape)}"
            )
        from_grades = self.loss(scores, labels[..., 0], mask, offsets=offsets)
        from_teacher = self.teacher_loss(scores, labels[..., 1], mask, offsets=offsets)
        mixed: Tensor = (1 - self.weight) * from_grades + self.weight * from_teacher
        return mixed

    @property
    def progress(self) -> float:
        """Of training, from 0 to 1: what temperature schedules follow."""
        return self.loss.progress

    @progress.setter
    def progress(self, value: float) -> None:
        self.loss.progress = self.teacher_loss.progress = value


def taught_loss(
    loss: str | Loss,
    teacher: Transform | None,
    weight: float = 1.0,
    teacher_loss: str | Loss | None = None,
) -> Loss | MixedLoss:
    """The loss of labels, of a teacher's labels, or of both.

    Args:
        loss: by the labels.
        teacher: the transform of a teacher's scores, or None.
        weight: of the loss by the teacher's labels, from 0 to 1.
        teacher_loss: by the teacher's labels; None for the same.

    Raises:
        ValueError: an unknown transform or loss, or a weight or a loss without a teacher.
    """
    if teacher is not None:
        check_choice("teacher", teacher, TRANSFORMS)
    check_weight(weight)
    if teacher is None and (weight < 1 or teacher_loss is not None):
        raise ValueError("teacher_weight and teacher_loss need a teacher, such as teacher='shift'")
    if weight < 1:
        return MixedLoss(loss, weight, teacher_loss)
    alone = loss if teacher_loss is None else teacher_loss
    return losses.get(alone) if isinstance(alone, str) else alone


def check_weight(weight: float) -> float:
    """The weight of a teacher, from 0 to 1; an error if it is another number."""
    if not 0 <= weight <= 1:
        raise ValueError(f"teacher_weight must be from 0 to 1, found {weight}")
    return weight


def teacher_labels(
    scores: Tensor | Sequence[float], transform: Transform = "shift", *, temperature: float = 1.0
) -> Tensor:
    """Labels, which are never negative, of one list from a teacher's scores, which may be.

    - ``"shift"``: ``(t - min t) / temperature``. Margins stay, as ``margin_mse`` needs them;
      ``listnet`` has the target ``softmax(t / temperature)`` then; ``ranknet`` and ``listmle`` see
      only the order.
    - ``"minmax"``: ``(t - min t) / (max t - min t)``, from 0 to 1: for ``lambdaloss`` and losses of
      metrics, whose gain ``2^y - 1`` grows fast. All equal scores give 0.
    - ``"softmax"``: ``softmax(t / temperature)``, soft targets for ``softmax``.
    - ``"rank"``: ``1 / rank``, the mean rank where scores tie: only the order counts.

    Args:
        scores: ``[n]``, higher is better. ``-inf`` is a document that the teacher does not have:
            it gets 0.
        transform: the transform.
        temperature: divides the scores in ``"shift"`` and ``"softmax"``.

    Returns:
        Labels ``[n]``: float64 for a float64 tensor, else float32.

    Raises:
        ValueError: scores are not ``[n]``, or one is NaN or infinite.

    >>> teacher_labels([-3.0, 1.0, -1.0])
    tensor([0., 4., 2.])
    >>> teacher_labels([-3.0, 1.0, -1.0], "rank")
    tensor([0.3333, 1.0000, 0.5000])
    """
    check_choice("transform", transform, TRANSFORMS)
    check_positive("temperature", temperature)
    values = torch.as_tensor(scores)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if values.ndim != 1:
        raise ValueError(f"a teacher's scores must have shape [n], found {list(values.shape)}")
    bad = values.isnan() | (values == float("inf"))
    if bool(bad.any()):
        index = int(bad.nonzero()[0])
        raise ValueError(f"a teacher's scores must be numbers; item {index} is {values[index]:g}")
    has_score = values > float("-inf")
    labels = torch.zeros_like(values)
    if bool(has_score.any()):
        labels[has_score] = _transformed(values[has_score], transform, temperature)
    return labels


def labels_from_run(
    teacher: RankedList | Mapping[str, float] | Sequence[str],
    documents: Sequence[str],
    transform: Transform | None = None,
    *,
    temperature: float = 1.0,
) -> Tensor:
    """Labels of a query's documents from what a teacher's run says about that query.

    Args:
        teacher: the teacher's ranked list, as :func:`rankgrad.data.trec.read_run` gives it; its
            score of each document identifier; or identifiers in its order, best first, where it
            gave no scores.
        documents: identifiers of the documents to label. One that the teacher does not have gets 0.
        transform: as in :func:`teacher_labels`, over those of the documents that the teacher has;
            by default ``"shift"`` for scores. An order has ``"rank"`` only.
        temperature: as in :func:`teacher_labels`.

    Returns:
        Labels ``[n]`` in the order of ``documents``.

    Raises:
        ValueError: an order with another transform, or with a document twice.

    >>> labels_from_run(["d7", "d2", "d9"], ["d2", "d1", "d7"])
    tensor([0.5000, 0.0000, 1.0000])
    >>> labels_from_run({"d7": -0.5, "d2": -2.5}, ["d2", "d1", "d7"])
    tensor([0., 0., 2.])
    """
    if isinstance(teacher, RankedList):
        teacher = dict(zip(teacher.documents, teacher.scores.tolist(), strict=True))
    if isinstance(teacher, Mapping):
        scores = teacher
    else:
        if transform not in (None, "rank"):
            raise ValueError(
                f"an order has no scores: transform must be 'rank', found {transform!r}"
            )
        scores = {name: -float(rank) for rank, name in enumerate(teacher)}
        if len(scores) < len(teacher):
            raise ValueError("the teacher's order has a document twice")
        transform = "rank"
    teacher_scores = [float(scores.get(name, float("-inf"))) for name in documents]
    return teacher_labels(teacher_scores, transform or "shift", temperature=temperature)


def _transformed(scores: Tensor, transform: Transform, temperature: float) -> Tensor:
    if transform == "softmax":
        return (scores / temperature).softmax(0)
    if transform == "rank":
        _, score_index, ties = scores.unique(return_inverse=True, return_counts=True)
        above = len(scores) - ties.cumsum(0)  # for each score, from the lowest
        ranks: Tensor = above + (ties + 1) / 2
        return ranks[score_index].to(scores).reciprocal()
    above_lowest = scores - scores.min()
    if transform == "shift":
        return above_lowest / temperature
    highest = above_lowest.max()
    return above_lowest / torch.where(highest > 0, highest, 1.0)
