"""RankingLoss: any loss of the library as a loss of sentence-transformers' ``CrossEncoderTrainer``.

The documents of all lists are scored in mini-batches with gradient caching
(:func:`rankgrad.text.cached_scores`): memory does not grow with the length of a list, and the
gradient is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankgrad._validation import check_whole
from rankgrad.integrations.citations import citation
from rankgrad.losses import Loss
from rankgrad.text._cached import cached_scores
from rankgrad.text._teachers import MixedLoss, Transform, taught_loss, teacher_labels

if TYPE_CHECKING:
    from sentence_transformers.cross_encoder import CrossEncoder

__all__ = ["RankingLoss"]

_Pair = tuple[str, str]


class RankingLoss(nn.Module):
    """A ranking loss over lists of documents of any length, for ``CrossEncoderTrainer``.

    The dataset has a column of queries, one of lists of documents, and one of lists of labels. The
    loss is the mean over the queries on which it is defined; a query whose labels all tie, or that
    has no document, adds nothing. Documents are scored sorted by their length, so that mini-batches
    have little padding.

    Args:
        model: the ``CrossEncoder`` to train, with ``num_labels=1``.
        loss: the spec of a loss, such as ``"neural_ndcg@10"``, or a loss. Its scores are the raw
            logits.
        mini_batch_size: the documents that have a graph at the same time; None for all. It bounds
            the memory. It does not change the gradient, except for the random numbers of dropout.
        teacher: how a teacher's scores become labels, a transform of
            :func:`rankgrad.text.teacher_labels`, such as ``"shift"`` for ``margin_mse``. The scores
            are a further column, after the documents. Without that column, the labels themselves
            are the teacher's scores.
        teacher_weight: the weight of the loss of the teacher's labels, from 0 to 1; the loss of the
            labels has the rest. 1 is the teacher alone.
        teacher_loss: the loss of the teacher's labels; by default the same as that of the labels.

    Raises:
        ValueError: the model has more than one output, or an option is wrong.

    Example::

        model = CrossEncoder("microsoft/MiniLM-L12-H384-uncased", num_labels=1)
        dataset = Dataset.from_dict({
            "query": ["what are pandas", "capital of france"],
            "docs": [["Pandas are bears.", "Pandas is a library.", "Fish."], ["Paris.", "Lyon."]],
            "labels": [[2, 1, 0], [1, 0]],
        })
        loss = RankingLoss(model, "neural_ndcg@10", mini_batch_size=32)
        CrossEncoderTrainer(model=model, train_dataset=dataset, loss=loss).train()

    The same with a teacher beside the labels::

        dataset = Dataset.from_dict({
            "query": ["what are pandas", "capital of france"],
            "docs": [["Pandas are bears.", "Pandas is a library.", "Fish."], ["Paris.", "Lyon."]],
            "teacher": [[8.1, 5.5, -3.0], [9.7, -0.2]],
            "labels": [[2, 1, 0], [1, 0]],
        })
        loss = RankingLoss(
            model, "neural_ndcg@10", teacher="shift", teacher_weight=0.5, teacher_loss="margin_mse"
        )
    """

    uses_gradient_cache = True  # read by losses of sentence-transformers that wrap others

    def __init__(
        self,
        model: CrossEncoder,
        loss: str | Loss = "neural_ndcg@10",
        *,
        mini_batch_size: int | None = 32,
        teacher: Transform | None = None,
        teacher_weight: float = 1.0,
        teacher_loss: str | Loss | None = None,
    ) -> None:
        super().__init__()
        if model.num_labels != 1:
            raise ValueError(f"the model must have num_labels=1, found {model.num_labels}")
        if mini_batch_size is not None:
            check_whole("mini_batch_size", mini_batch_size)
        self.model = model
        self.loss = taught_loss(loss, teacher, teacher_weight, teacher_loss)
        self.mini_batch_size = mini_batch_size
        self.teacher: Transform | None = teacher

    def forward(
        self,
        inputs: Sequence[Sequence[Any]],
        labels: Sequence[Tensor],
        prompt: str | None = None,
        task: str | None = None,
    ) -> Tensor:
        """The loss of a batch of queries, attached to the graph: a scalar.

        Args:
            inputs: the columns: queries, their lists of documents, and the lists of a teacher's
                scores if there is a teacher beside the labels.
            labels: for each query, one label per document. Only a teacher's scores may be negative.
            prompt: passed to the model's preprocessing.
            task: passed to the model's preprocessing.

        Returns:
            The loss.

        Raises:
            ValueError: the lengths of inputs and labels differ, or a label is wrong.
        """
        _check_columns(inputs, labels)
        queries, documents = inputs[:2]
        teacher_scores = self._teacher_scores(inputs)
        pairs = [(q, d) for q, texts in zip(queries, documents, strict=True) for d in texts]
        offsets = torch.tensor([0, *accumulate(len(texts) for texts in documents)])
        scores = self._scores(pairs, prompt, task)
        targets = self._labels(labels, teacher_scores).to(scores.device)
        value: Tensor = self.loss(scores, targets, offsets=offsets)
        return value

    def get_config_dict(self) -> dict[str, Any]:
        """The options of this loss in a model card.

        Returns:
            The options by name.
        """
        config: dict[str, Any] = {
            "loss": str(self.loss),
            "mini_batch_size": self.mini_batch_size,
            "teacher": self.teacher,
        }
        if isinstance(self.loss, MixedLoss):
            config |= {
                "loss": str(self.loss.loss),
                "teacher_loss": str(self.loss.teacher_loss),
                "teacher_weight": self.loss.weight,
            }
        return config

    @property
    def citation(self) -> str:
        """BibTeX entries for a model card."""
        if isinstance(self.loss, MixedLoss):
            return citation(self.loss.loss, self.loss.teacher_loss)
        return citation(self.loss)

    def _scores(self, pairs: list[_Pair], prompt: str | None, task: str | None) -> Tensor:
        """The scores ``[N]`` of the pairs, in their order."""
        order = sorted(range(len(pairs)), key=lambda i: _text_length(pairs[i]), reverse=True)
        # The model runs even without any document, so that processes can synchronize gradients.
        # The score of the empty pair is then left out of the result, which is [0].
        sorted_pairs = [pairs[i] for i in order] or [("", "")]
        size = self.mini_batch_size or len(sorted_pairs)
        scores = cached_scores(
            # A copy, because the model adds its outputs to the dictionary of its inputs.
            lambda tokens: self.model(dict(tokens))["scores"].reshape(-1),
            [
                self._tokenize(sorted_pairs[start : start + size], prompt, task)
                for start in range(0, len(sorted_pairs), size)
            ],
            no_sync=getattr(self.model, "no_sync", None),
        )
        # Back to the order of ``pairs``.
        inverse = torch.tensor(order, dtype=torch.long, device=scores.device).argsort()
        return scores[inverse]

    def _tokenize(self, pairs: list[_Pair], prompt: str | None, task: str | None) -> dict[str, Any]:
        """The tokens of pairs, on the model's device."""
        # The wrapper of a distributed or compiled model has this method too: the trainer binds it.
        tokens = self.model.preprocess(pairs, prompt=prompt, task=task)
        device = self.model.device
        return {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in tokens.items()
        }

    def _teacher_scores(self, inputs: Sequence[Sequence[Any]]) -> Sequence[Any] | None:
        """The column of a teacher's scores; None if there is none. Raises if columns do not fit."""
        max_columns = 2 if self.teacher is None else 3
        if len(inputs) > max_columns:
            needed = "queries and documents (with a teacher its scores, too: give teacher='shift')"
            if max_columns == 3:
                needed = "queries, documents and a teacher's scores"
            raise ValueError(f"RankingLoss has {len(inputs)} input columns; it needs {needed}")
        if len(inputs) == 3:
            _check_lengths(inputs[1], inputs[2], "scores of the teacher")
            return inputs[2]
        if isinstance(self.loss, MixedLoss):
            raise ValueError(
                "RankingLoss with teacher_weight below 1 needs a column of the teacher's scores "
                "after the documents"
            )
        return None

    def _labels(self, labels: Sequence[Tensor], teacher_scores: Sequence[Any] | None) -> Tensor:
        """The labels of all documents in the form that ``self.loss`` takes.

        Args:
            labels: for each query, one label per document.
            teacher_scores: for each query, the teacher's score of each document. With a teacher and
                without this column, ``labels`` are the teacher's scores.

        Returns:
            ``[N]``: the given labels, or with a teacher its labels; for a :class:`MixedLoss`
            ``[N, 2]``: both, the teacher's second.
        """
        grades = torch.cat([torch.as_tensor(values).float() for values in labels])
        if self.teacher is None:
            return grades
        lists = [
            teacher_labels(values, self.teacher).to(grades)
            for values in (labels if teacher_scores is None else teacher_scores)
        ]
        from_teacher = torch.cat(lists)
        is_mixed = isinstance(self.loss, MixedLoss)
        return torch.stack([grades, from_teacher], -1) if is_mixed else from_teacher


def _check_columns(inputs: Sequence[Sequence[Any]], labels: Sequence[Tensor]) -> None:
    """Raise if there are no queries and lists of documents, or if the labels do not fit."""
    if len(inputs) < 2:
        raise ValueError(
            "RankingLoss needs two input columns, the queries and their lists of documents, found "
            f"{len(inputs)}"
        )
    if labels is None or isinstance(labels, Tensor):
        raise ValueError("RankingLoss needs a column of labels, with a list for each query")
    _check_lengths(inputs[1], labels, "labels")


def _check_lengths(documents: Sequence[Any], column: Sequence[Any], name: str) -> None:
    """Raise if a list of a column has another length than the list of documents."""
    lengths, counts = [len(values) for values in column], [len(values) for values in documents]
    if lengths != counts:
        raise ValueError(f"queries have {counts} documents and {lengths} {name}: they must agree")


def _text_length(pair: _Pair) -> int:
    """The number of characters of a pair, by which pairs are sorted."""
    return sum(len(text) for text in pair if isinstance(text, str))
