"""Distillation: a teacher's scores, or its order alone, as labels that any loss takes.

Text rankers, the integrations with Hugging Face trainers and distilled students
(``rankgrad.export``) are trained on them. The labels replace the grades, or are a second column
beside them (:class:`MixedLoss`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from rankgrad._validation import check_choice, check_positive
from rankgrad.data.trec import RankedList
from rankgrad.losses import Loss, losses

Transform = Literal["shift", "minmax", "softmax", "rank"]
TRANSFORMS: tuple[Transform, ...] = get_args(Transform)


class MixedLoss(nn.Module):
    """``(1 - weight) loss(scores, grades) + weight teacher_loss(scores, teacher's labels)``.

    Each of the two losses is the mean over the lists on which it is defined.

    Args:
        loss: the loss of the grades: a spec, or a loss.
        weight: the weight of the teacher, from 0 to 1.
        teacher_loss: the loss of the teacher's labels; by default the same as that of the grades.

    Raises:
        ValueError: a loss is unknown, or the weight is not from 0 to 1.

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
        if teacher_loss is None:  # two objects, because a loss with noise has its own generator
            teacher_loss = copy.deepcopy(loss)
        self.loss = losses.get(loss) if isinstance(loss, str) else loss
        self.teacher_loss = losses.get(teacher_loss)

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
            mask: ``[..., n]``, True on real items.
            offsets: ``[B + 1]``, of flat lists.

        Returns:
            The weighted sum of both losses.

        Raises:
            ValueError: the labels are not two for each score.
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
        """The progress of training, from 0 to 1, which temperature schedules follow."""
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
    """The loss of the grades, of a teacher's labels, or of both.

    Args:
        loss: the loss of the grades.
        teacher: the transform of a teacher's scores, or None without a teacher.
        weight: the weight of the loss of the teacher's labels, from 0 to 1.
        teacher_loss: the loss of the teacher's labels; None for the same as that of the grades.

    Raises:
        ValueError: a transform or loss is unknown, or there is a weight or a loss for a teacher but
            no teacher.
    """
    if teacher is not None:
        check_choice("teacher", teacher, TRANSFORMS)
    check_weight(weight)
    if teacher is None and (weight < 1 or teacher_loss is not None):
        raise ValueError("teacher_weight and teacher_loss need a teacher, such as teacher='shift'")
    if weight < 1:
        return MixedLoss(loss, weight, teacher_loss)
    only_loss = loss if teacher_loss is None else teacher_loss
    return losses.get(only_loss) if isinstance(only_loss, str) else only_loss


def check_weight(weight: float) -> float:
    """``weight``, if it is from 0 to 1; otherwise an error."""
    if not 0 <= weight <= 1:
        raise ValueError(f"teacher_weight must be from 0 to 1, found {weight}")
    return weight


def teacher_labels(
    scores: Tensor | Sequence[float], transform: Transform = "shift", *, temperature: float = 1.0
) -> Tensor:
    """Non-negative labels of one list from a teacher's scores t, which may be negative.

    - ``"shift"``: ``(t - min t) / temperature``. It preserves margins, which ``margin_mse`` needs.
      With it the target of ``listnet`` is ``softmax(t / temperature)``; ``ranknet`` and ``listmle``
      use the order only.
    - ``"minmax"``: ``(t - min t) / (max t - min t)``, from 0 to 1, for ``lambdaloss`` and losses of
      metrics, whose gain ``2^y - 1`` grows fast. If all scores are equal, labels are 0.
    - ``"softmax"``: ``softmax(t / temperature)``, soft targets for ``softmax``.
    - ``"rank"``: ``1 / rank``, so that only the order counts. Equal scores have their mean rank.

    Args:
        scores: ``[n]``, higher is better. ``-inf`` is a document that the teacher does not have;
            its label is 0.
        transform: one of the above.
        temperature: divides the scores in ``"shift"`` and ``"softmax"``.

    Returns:
        Labels ``[n]``: float64 for a float64 tensor, else float32.

    Raises:
        ValueError: scores are not ``[n]``, or one is NaN or ``inf``.

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
    is_invalid = values.isnan() | (values == float("inf"))
    if bool(is_invalid.any()):
        index = int(is_invalid.nonzero()[0])
        raise ValueError(f"a teacher's scores must be numbers; item {index} is {values[index]:g}")
    has_score = values > float("-inf")
    labels = torch.zeros_like(values)
    if bool(has_score.any()):
        labels[has_score] = _transform_scores(values[has_score], transform, temperature)
    return labels


def labels_from_run(
    teacher: RankedList | Mapping[str, float] | Sequence[str],
    documents: Sequence[str],
    transform: Transform | None = None,
    *,
    temperature: float = 1.0,
) -> Tensor:
    """Labels of a query's documents from a teacher's run.

    Args:
        teacher: the teacher's results for that query: a ranked list, as
            :func:`rankgrad.data.trec.read_run` reads it; scores by document id; or document ids
            without scores, best first.
        documents: ids of the documents to label. One that the teacher does not have gets 0.
        transform: as in :func:`teacher_labels`, over those of the documents that the teacher has;
            by default ``"shift"`` for scores. Ids without scores allow ``"rank"`` only.
        temperature: as in :func:`teacher_labels`.

    Returns:
        Labels ``[n]`` in the order of ``documents``, in float32.

    Raises:
        ValueError: ids without scores have a transform other than ``"rank"``, or an id twice.

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
        scores = {document: -float(rank) for rank, document in enumerate(teacher)}
        if len(scores) < len(teacher):
            raise ValueError("the teacher's order has a document twice")
        transform = "rank"
    # In float64, in which runs are read: scores that differ may tie in float32.
    teacher_scores = torch.tensor(
        [float(scores.get(document, float("-inf"))) for document in documents], dtype=torch.float64
    )
    labels = teacher_labels(teacher_scores, transform or "shift", temperature=temperature)
    return labels.float()


def _transform_scores(scores: Tensor, transform: Transform, temperature: float) -> Tensor:
    """The labels ``[n]`` of finite scores ``[n]``."""
    if transform == "softmax":
        return (scores / temperature).softmax(0)
    if transform == "rank":
        # By distinct score, ascending: how many items have it, and how many have a higher one
        _, score_index, ties = scores.unique(return_inverse=True, return_counts=True)
        above = len(scores) - ties.cumsum(0)
        mean_ranks: Tensor = above + (ties + 1) / 2
        return mean_ranks[score_index].to(scores).reciprocal()
    shifted = scores - scores.min()
    if transform == "shift":
        return shifted / temperature
    highest = shifted.max()
    return shifted / torch.where(highest > 0, highest, 1.0)
