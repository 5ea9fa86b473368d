"""Any loss of the library in the Hugging Face ``Trainer``, with and without gradient caching.

- :class:`ListLoss` is a ``compute_loss_func``: a loss of the logits that the model has given. The
  graph of every document exists until the backward pass.
- :class:`CachedTrainer` is a ``Trainer`` that runs the model in mini-batches with gradient caching:
  memory does not grow with the lists. ``compute_loss_func`` alone cannot, since it is called when
  the model has run.
- :class:`ListCollator` makes batches of both, and :class:`ScheduleCallback` moves temperature
  schedules along.

>>> from types import SimpleNamespace
>>> loss = ListLoss("softmax")
>>> outputs = SimpleNamespace(logits=torch.zeros(4, 1))  # of two lists, with 3 and 1 documents
>>> loss(outputs, torch.tensor([[1, 0, 0], [1, -100, -100]]))
tensor(1.0986)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from rankgrad.extras import requires

with requires("text"):
    from transformers import (
        PreTrainedTokenizerBase,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.modeling_outputs import SequenceClassifierOutput

from rankgrad._validation import check_whole
from rankgrad.losses import Loss
from rankgrad.text._cached import cached_scores
from rankgrad.text._teachers import MixedLoss, Transform, taught_loss, teacher_labels

__all__ = ["CachedTrainer", "ListCollator", "ListLoss", "ScheduleCallback"]

_PADDING_LABEL = -100  # what Trainer does not count


class ListLoss:
    """A ranking loss as ``Trainer(compute_loss_func=...)``.

    The model gives one logit per document: ``[N, 1]`` or ``[N]``. Labels are ``[lists, items]``,
    -100 where a list has no more documents. Padded places either have logits, too (``N = lists *
    items``), or not (N is the number of real documents, list by list).

    With gradient accumulation or several processes, the loss is the mean over the batches, weighted
    by their documents: Trainer leaves that to ``compute_loss_func``.

    Args:
        loss: the spec of a loss, or a loss.
        teacher: labels are a teacher's scores, transformed by
            :func:`rankgrad.text.teacher_labels` in this way.
        teacher_weight: of the loss by the teacher's labels. Below 1, labels are ``[lists, items,
            2]``: a label and a teacher's score (see :class:`ListCollator`).
        teacher_loss: the loss by the teacher's labels; by default that by the labels.

    Raises:
        ValueError: an unknown loss or transform.
    """

    def __init__(
        self,
        loss: str | Loss,
        *,
        teacher: Transform | None = None,
        teacher_weight: float = 1.0,
        teacher_loss: str | Loss | None = None,
    ) -> None:
        self.loss = taught_loss(loss, teacher, teacher_weight, teacher_loss)
        self.teacher: Transform | None = teacher

    def __call__(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            outputs: the model's, with ``logits``.
            labels: ``[lists, items]``, -100 on padding; with a teacher beside them ``[lists, items,
                2]``.
            num_items_in_batch: real documents in all batches of the step, and of all processes.

        Raises:
            ValueError: labels are missing, or do not fit the logits.
        """
        mixed = isinstance(self.loss, MixedLoss)
        if labels is None or labels.ndim != 2 + mixed or (mixed and labels.shape[2] != 2):
            shape = "none" if labels is None else list(labels.shape)
            wanted = "[lists, items, 2]" if mixed else "[lists, items]"
            raise ValueError(f"labels must have shape {wanted}, found {shape}")
        mask = (labels[..., 0] if mixed else labels) != _PADDING_LABEL
        scores = _as_lists(outputs["logits"] if isinstance(outputs, dict) else outputs.logits, mask)
        value: Tensor = self.loss(scores, self._labels(labels, mask), mask)
        if num_items_in_batch is None:
            return value
        # Trainer has counted both columns.
        return value * ((labels != _PADDING_LABEL).sum() / max(1, num_items_in_batch))

    def _labels(self, labels: Tensor, mask: Tensor) -> Tensor:
        if isinstance(self.loss, MixedLoss):
            grades, scores = labels.unbind(-1)
            from_teacher = self._teacher_labels(scores, mask)
            return torch.stack([grades.masked_fill(~mask, 0).to(from_teacher), from_teacher], -1)
        if self.teacher is None:
            return labels.masked_fill(~mask, 0)
        return self._teacher_labels(labels, mask)

    def _teacher_labels(self, labels: Tensor, mask: Tensor) -> Tensor:
        assert self.teacher is not None
        transformed = torch.zeros(labels.shape, device=labels.device)
        for row_labels, row, real in zip(transformed, labels, mask, strict=True):
            row_labels[real] = teacher_labels(row[real], self.teacher).to(row_labels)
        return transformed


class CachedTrainer(Trainer):
    """A ``Trainer`` with gradient caching: the gradient of whole lists in a mini-batch's memory.

    It takes the model's inputs ``[N, ...]`` of all lists apart, scores the documents in
    mini-batches of like length, and gives all logits to ``compute_loss_func``. Its backward pass
    runs the mini-batches again. Evaluation runs in mini-batches, too.

    Args:
        mini_batch_size: documents that have a graph at the same time.
        compute_loss_func: a :class:`ListLoss`, or any function of the logits.
        arguments: of ``Trainer``, by name.

    Raises:
        ValueError: there is no ``compute_loss_func``.
    """

    def __init__(
        self, *, mini_batch_size: int = 32, compute_loss_func: Any = None, **arguments: Any
    ) -> None:
        if compute_loss_func is None:
            raise ValueError("CachedTrainer needs compute_loss_func, such as ListLoss('softmax')")
        self.mini_batch_size = check_whole("mini_batch_size", mini_batch_size)
        super().__init__(compute_loss_func=compute_loss_func, **arguments)

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of a batch, attached to the graph; arguments are Trainer's."""

        def cached(**tokens: Any) -> Any:
            logits: Any = self._cached_logits(model, tokens)
            return SequenceClassifierOutput(logits=logits)

        run: Any = cached  # in the place of the model, which Trainer only calls
        return super().compute_loss(run, inputs, return_outputs, num_items_in_batch)

    def _cached_logits(self, model: Any, tokens: dict[str, Any]) -> Tensor:
        ids: Tensor = tokens["input_ids"]
        mask: Tensor = tokens.get("attention_mask", torch.ones_like(ids))
        order = mask.sum(1).argsort(descending=True, stable=True)  # longest first
        scores = cached_scores(
            lambda batch: model(**batch).logits.reshape(-1),
            [_rows(tokens, mask, rows) for rows in order.split(self.mini_batch_size)],
            no_sync=getattr(model, "no_sync", None),
        )
        return scores[order.argsort()][:, None]


@dataclass
class ListCollator:
    """Batches of lists for :class:`ListLoss`: tokens of all pairs, and labels padded with -100.

    Each example has a query, documents and labels. Give ``TrainingArguments`` the option
    ``remove_unused_columns=False``, since these are no arguments of the model.

    Args:
        tokenizer: encodes pairs of query and document.
        max_length: tokens per pair; by default the tokenizer's limit.
        columns: the names of the three columns.
        teacher: the name of a column of a teacher's scores; labels are ``[lists, items, 2]`` then.
    """

    tokenizer: PreTrainedTokenizerBase
    _: KW_ONLY
    max_length: int | None = None
    columns: tuple[str, str, str] = ("query", "documents", "labels")
    teacher: str | None = None

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Tokens ``[N, length]`` and labels ``[lists, items]`` of some examples.

        Raises:
            ValueError: an example has other numbers of documents, labels and a teacher's scores.
        """
        query, documents, _ = self.columns
        pairs = [(example[query], text) for example in examples for text in example[documents]]
        rows = [self._row(example) for example in examples]
        if not pairs:  # the model still runs, for processes to synchronize gradients
            pairs = [(example[query], "") for example in examples]
            rows = [row.new_full((1, *row.shape[1:]), _PADDING_LABEL) for row in rows]
        queries, texts = zip(*pairs, strict=True)
        encoded = self.tokenizer(
            list(queries),
            list(texts),
            padding=True,
            truncation="longest_first",
            max_length=self.max_length,
            return_tensors="pt",
        )
        padded = torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=_PADDING_LABEL
        )
        return {**encoded, "labels": padded}

    def _row(self, example: dict[str, Any]) -> Tensor:
        """The labels of an example, ``[n]``, or with a teacher ``[n, 2]``."""
        query, documents, labels = self.columns
        columns = []
        for name in [labels] if self.teacher is None else [labels, self.teacher]:
            if len(example[documents]) != len(example[name]):
                raise ValueError(
                    f"the query {example[query]!r} has {len(example[documents])} documents and "
                    f"{len(example[name])} {name}: they must agree"
                )
            columns.append(torch.tensor(example[name], dtype=torch.float32))
        return columns[0] if self.teacher is None else torch.stack(columns, -1)


class ScheduleCallback(TrainerCallback):
    """Sets the progress of a loss, which its temperature schedules follow.

    Without it they stay at their start. It serves ``CrossEncoderTrainer``, too.

    Args:
        loss: the library's loss, such as ``ListLoss(...).loss`` or ``RankingLoss(...).loss``.
    """

    def __init__(self, loss: Loss | MixedLoss) -> None:
        self.loss = loss

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the loss's progress."""
        self.loss.progress = state.global_step / max(1, state.max_steps)


def _as_lists(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits ``[N]`` or ``[N, 1]`` as ``[lists, items]``."""
    flat = logits.reshape(-1)
    if flat.numel() == mask.numel():
        return flat.reshape(mask.shape)
    real = int(mask.sum())
    if flat.numel() != real:
        raise ValueError(
            f"the model gave {flat.numel()} logits for labels of shape {list(mask.shape)} with "
            f"{real} documents: expected one logit per document"
        )
    return flat.new_zeros(mask.shape).masked_scatter(mask, flat)


def _rows(tokens: dict[str, Any], mask: Tensor, rows: Tensor) -> dict[str, Any]:
    """Some rows of all token tensors, without the columns that are padding in all of them."""
    columns = mask[rows].any(0)
    return {
        name: value[rows][:, columns] if getattr(value, "shape", None) == mask.shape else value
        for name, value in tokens.items()
    }
