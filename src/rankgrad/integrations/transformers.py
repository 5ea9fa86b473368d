"""Any loss of the library in the Hugging Face ``Trainer``, with and without gradient caching.

- :class:`ListLoss` is a ``compute_loss_func``, a loss of the model's logits. The graphs of all
  documents exist until the backward pass.
- :class:`CachedTrainer` is a ``Trainer`` that runs the model in mini-batches with gradient caching,
  so that memory does not grow with the lists. A ``compute_loss_func`` alone cannot do that, because
  it is called after the model has run.
- :class:`ListCollator` makes batches for both, and :class:`ScheduleCallback` advances temperature
  schedules.

>>> from types import SimpleNamespace
>>> loss = ListLoss("softmax")
>>> outputs = SimpleNamespace(logits=torch.zeros(4, 1))  # of two lists, with 3 and 1 documents
>>> # The loss is log 3: a list of one document has none, and is left out of the mean.
>>> loss(outputs, torch.tensor([[1, 0, 0], [1, -100, -100]]))
tensor(1.0986)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

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
from rankgrad.text._tokens import min_length

__all__ = ["CachedTrainer", "ListCollator", "ListLoss", "ScheduleCallback"]

_PADDING_LABEL = -100  # Trainer leaves these labels out of num_items_in_batch


class ListLoss:
    """A ranking loss as ``Trainer(compute_loss_func=...)``.

    The model's logits are ``[N, 1]`` or ``[N]``, one per document. Labels are ``[lists, items]``,
    -100 on padding. N is either the number of real documents, list by list, or ``lists * items``
    with logits for padding, too.

    With gradient accumulation or several processes, the loss is the mean over batches, weighted by
    their numbers of documents: Trainer leaves that to ``compute_loss_func``.

    Args:
        loss: the spec of a loss, or a loss.
        teacher: if given, labels are a teacher's scores, and this is their transform in
            :func:`rankgrad.text.teacher_labels`.
        teacher_weight: the weight of the loss of the teacher's labels, from 0 to 1. Below 1, labels
            are ``[lists, items, 2]``: a label and a teacher's score (see :class:`ListCollator`).
        teacher_loss: the loss of the teacher's labels; by default the same as that of the labels.

    Raises:
        ValueError: the loss or the transform is unknown.
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
            outputs: the outputs of the model, with ``logits``.
            labels: ``[lists, items]``, -100 on padding; ``[lists, items, 2]`` with a teacher beside
                the labels.
            num_items_in_batch: how many labels are not -100 in all batches of the step and in all
                processes; with a teacher beside the labels, two per document.

        Raises:
            ValueError: labels are missing, their number is not that of the logits, or the model
                gives several logits per document.
        """
        mixed = isinstance(self.loss, MixedLoss)
        if labels is None or labels.ndim != 2 + mixed or (mixed and labels.shape[2] != 2):
            shape = "none" if labels is None else list(labels.shape)
            expected = "[lists, items, 2]" if mixed else "[lists, items]"
            raise ValueError(f"labels must have shape {expected}, found {shape}")
        mask = (labels[..., 0] if mixed else labels) != _PADDING_LABEL
        scores = _as_lists(outputs["logits"] if isinstance(outputs, dict) else outputs.logits, mask)
        value: Tensor = self.loss(scores, self._labels(labels, mask), mask)
        if num_items_in_batch is None:
            return value
        # num_items_in_batch counts both columns of labels, so they are counted here, too.
        return value * ((labels != _PADDING_LABEL).sum() / max(1, num_items_in_batch))

    def _labels(self, labels: Tensor, mask: Tensor) -> Tensor:
        """The labels for the loss, with 0 on padding; shapes as in :meth:`__call__`."""
        if isinstance(self.loss, MixedLoss):
            grades, teacher_scores = labels.unbind(-1)
            from_teacher = self._teacher_labels(teacher_scores, mask)
            return torch.stack([grades.masked_fill(~mask, 0).to(from_teacher), from_teacher], -1)
        if self.teacher is None:
            return labels.masked_fill(~mask, 0)
        return self._teacher_labels(labels, mask)

    def _teacher_labels(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Labels ``[lists, items]`` from a teacher's scores ``[lists, items]``, 0 on padding."""
        assert self.teacher is not None
        labels = torch.zeros(scores.shape, device=scores.device)
        for list_labels, list_scores, is_real in zip(labels, scores, mask, strict=True):
            transformed = teacher_labels(list_scores[is_real], self.teacher)
            list_labels[is_real] = transformed.to(list_labels)
        return labels


class CachedTrainer(Trainer):
    """A ``Trainer`` with gradient caching: the gradient of whole lists in a mini-batch's memory.

    It splits the token tensors ``[N, length]`` of all lists into mini-batches of similar length,
    scores them, and passes all logits to ``compute_loss_func``. The backward pass runs the
    mini-batches again. Evaluation runs in mini-batches, too.

    Args:
        mini_batch_size: how many documents have a graph at the same time.
        compute_loss_func: a :class:`ListLoss`, or any function of the logits.
        arguments: other arguments of ``Trainer``, by name.

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
        """The loss of a batch, attached to the graph; arguments as in ``Trainer``.

        Args:
            model: the network.
            inputs: token tensors ``[N, length]`` by name, and the labels.
            return_outputs: whether to return the logits, too.
            num_items_in_batch: as in ``Trainer``.

        Returns:
            A scalar; with ``return_outputs``, the loss and the model's outputs.
        """

        def cached(**tokens: Any) -> Any:
            logits: Any = self._cached_logits(model, tokens)
            return SequenceClassifierOutput(logits=logits)

        cached_model: Any = cached  # a function will do, as Trainer only calls the model
        return super().compute_loss(cached_model, inputs, return_outputs, num_items_in_batch)

    def _cached_logits(self, model: Any, tokens: dict[str, Any]) -> Tensor:
        """The logits ``[N, 1]`` of all documents, in their order."""
        ids: Tensor = tokens["input_ids"]
        attention_mask: Tensor = tokens.get("attention_mask", torch.ones_like(ids))
        order = attention_mask.sum(1).argsort(descending=True, stable=True)  # longest first
        mini_batches = [
            _select_rows(tokens, attention_mask, rows) for rows in order.split(self.mini_batch_size)
        ]
        scores = cached_scores(
            lambda batch: _flat_logits(model(**batch).logits),
            mini_batches,
            # Under DDP, gradients are synchronized once, and not after each mini-batch.
            no_sync=getattr(model, "no_sync", None),
        )
        return scores[order.argsort()][:, None]


@dataclass
class ListCollator:
    """Batches of lists for :class:`ListLoss`: tokens of queries with documents, and labels.

    Labels are padded with -100. Each example has a query, documents and labels.
    ``TrainingArguments`` needs the option ``remove_unused_columns=False``, because these columns
    are not arguments of the model.

    Args:
        tokenizer: the tokenizer of the model.
        max_length: tokens of a query with a document; by default the tokenizer's limit.
        columns: the names of the columns of queries, documents and labels.
        teacher: the name of a column of a teacher's scores, with which labels are ``[lists, items,
            2]``; None without a teacher.

    Raises:
        ValueError: ``max_length`` is too small for the special tokens and one token of each text.
    """

    tokenizer: PreTrainedTokenizerBase
    _: KW_ONLY
    max_length: int | None = None
    columns: tuple[str, str, str] = ("query", "documents", "labels")
    teacher: str | None = None

    def __post_init__(self) -> None:
        if self.max_length is not None:
            check_whole("max_length", self.max_length, least=min_length(self.tokenizer))

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Tokens ``[N, length]`` and ``labels`` ``[lists, items]``; with a teacher ``[..., 2]``.

        Raises:
            ValueError: the numbers of an example's documents, labels and teacher's scores differ.
        """
        query, documents, _ = self.columns
        pairs = [(example[query], text) for example in examples for text in example[documents]]
        list_labels = [self._labels_of(example) for example in examples]
        if not pairs:
            # All lists are empty. The model must still run, so that processes can synchronize
            # gradients: each list gets one document of padding.
            pairs = [(example[query], "") for example in examples]
            list_labels = [
                labels.new_full((1, *labels.shape[1:]), _PADDING_LABEL) for labels in list_labels
            ]
        queries, texts = zip(*pairs, strict=True)
        encoded = self.tokenizer(
            list(queries),
            list(texts),
            padding=True,
            truncation="longest_first",
            max_length=self.max_length,
            return_tensors="pt",
        )
        labels = pad_sequence(list_labels, batch_first=True, padding_value=_PADDING_LABEL)
        return {**encoded, "labels": labels}

    def _labels_of(self, example: dict[str, Any]) -> Tensor:
        """The labels of an example, ``[n]``; with a teacher's scores beside them, ``[n, 2]``."""
        query, documents, labels = self.columns
        names = [labels] if self.teacher is None else [labels, self.teacher]
        columns = []
        for name in names:
            if len(example[documents]) != len(example[name]):
                raise ValueError(
                    f"the query {example[query]!r} has {len(example[documents])} documents and "
                    f"{len(example[name])} {name}: they must agree"
                )
            columns.append(torch.tensor(example[name], dtype=torch.float32))
        return columns[0] if self.teacher is None else torch.stack(columns, -1)


class ScheduleCallback(TrainerCallback):
    """Sets the progress of a loss, which its temperature schedules follow.

    Without it, schedules stay at their start. It also works in ``CrossEncoderTrainer``.

    Args:
        loss: the library's loss, such as ``ListLoss(...).loss`` or ``RankingLoss(...).loss``
            (:mod:`rankgrad.integrations.sentence_transformers`).
    """

    def __init__(self, loss: Loss | MixedLoss) -> None:
        self.loss = loss

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the loss's progress.

        Args:
            args: not used.
            state: of the training, with the present step and the number of steps.
            control: not used.
            kwargs: not used.
        """
        self.loss.progress = state.global_step / max(1, state.max_steps)


def _as_lists(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits ``[N]`` or ``[N, 1]`` as ``[lists, items]``; 0 on padding that has no logits."""
    flat = _flat_logits(logits)
    if flat.numel() == mask.numel():
        return flat.reshape(mask.shape)
    real = int(mask.sum())
    if flat.numel() != real:
        raise ValueError(
            f"the model gave {flat.numel()} logits for labels of shape {list(mask.shape)} with "
            f"{real} documents: expected one logit per document"
        )
    return flat.new_zeros(mask.shape).masked_scatter(mask, flat)


def _flat_logits(logits: Tensor) -> Tensor:
    """Logits ``[N]`` or ``[N, 1]`` as ``[N]``; raises for other shapes."""
    if logits.ndim != 1 and logits.shape[1:] != (1,):
        raise ValueError(
            f"the model's logits must have shape [documents, 1], one score per document, found "
            f"{list(logits.shape)}: load the model with num_labels=1"
        )
    return logits.reshape(-1)


def _select_rows(tokens: dict[str, Any], attention_mask: Tensor, rows: Tensor) -> dict[str, Any]:
    """Some rows of all token tensors, without the last columns if they are padding in these rows.

    Padding before a token stays: without it, the token would have another position. Other inputs
    stay as they are.
    """
    shape = attention_mask.shape
    columns = torch.arange(shape[1], device=attention_mask.device)
    length = int(torch.where(attention_mask[rows].any(0), columns + 1, 0).max())
    return {
        name: value[rows, :length] if getattr(value, "shape", None) == shape else value
        for name, value in tokens.items()
    }
