"""Any loss of the library as a loss of sentence-transformers' ``CrossEncoderTrainer``.

The documents of all lists are scored in mini-batches with gradient caching: memory does not grow
with the length of a list, and the gradient is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankgrad import losses
from rankgrad.integrations.citations import citation
from rankgrad.losses import Loss
from rankgrad.options import check_choice, check_whole
from rankgrad.text.cached import cached_scores
from rankgrad.text.distillation import TRANSFORMS, Transform, teacher_labels

if TYPE_CHECKING:
    from sentence_transformers.cross_encoder import CrossEncoder

Pair = tuple[str, str]


class RankingLoss(nn.Module):
    """A ranking loss over lists of documents of any length, for ``CrossEncoderTrainer``.

    The dataset has a column of queries, one of lists of documents, and one of lists of labels. The
    loss is the mean over the queries on which it is defined; a query whose labels all tie, or that
    has no document, adds nothing. Documents are scored sorted by their length, so that mini-batches
    have little padding.

    Args:
        model: the ``CrossEncoder`` to train, with ``num_labels=1``.
        loss: the spec of a loss, as ``"neural_ndcg@10"``, or a loss. Raw logits are its scores.
        mini_batch_size: documents that have a graph at the same time. It bounds the memory and
            does not change the gradient, but for the random numbers of dropout. None: all of them.
        teacher: labels are a teacher's scores, to be transformed by
            :func:`rankgrad.text.teacher_labels` in this way, as ``"shift"`` for ``margin_mse``.

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
    """

    uses_gradient_cache = True  # what sentence-transformers asks of losses that wrap others

    def __init__(
        self,
        model: CrossEncoder,
        loss: str | Loss = "neural_ndcg@10",
        *,
        mini_batch_size: int | None = 32,
        teacher: Transform | None = None,
    ) -> None:
        super().__init__()
        if model.num_labels != 1:
            raise ValueError(f"the model must have num_labels=1, found {model.num_labels}")
        if mini_batch_size is not None:
            check_whole("mini_batch_size", mini_batch_size)
        if teacher is not None:
            check_choice("teacher", teacher, TRANSFORMS)
        self.model = model
        self.loss = losses.get(loss) if isinstance(loss, str) else loss
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
            inputs: the queries, and the list of documents of each.
            labels: of each query, one label per document, none negative (but for a teacher's).
            prompt: given to the model's preprocessing.
            task: given to the model's preprocessing.

        Raises:
            ValueError: inputs and labels do not fit together, or a label is wrong.
        """
        queries, documents = _checked(inputs, labels)
        pairs = [(q, d) for q, own in zip(queries, documents, strict=True) for d in own]
        offsets = torch.tensor([0, *accumulate(len(own) for own in documents)])
        scores = self._scores(pairs, prompt, task)
        value: Tensor = self.loss(scores, self._labels(labels).to(scores.device), offsets=offsets)
        return value

    def get_config_dict(self) -> dict[str, Any]:
        """What a model card says about this loss."""
        return {
            "loss": str(self.loss),
            "mini_batch_size": self.mini_batch_size,
            "teacher": self.teacher,
        }

    @property
    def citation(self) -> str:
        """BibTeX entries for a model card."""
        return citation(self.loss)

    def _scores(self, pairs: list[Pair], prompt: str | None, task: str | None) -> Tensor:
        """The scores ``[N]`` of the pairs, in their order."""
        order = sorted(range(len(pairs)), key=lambda i: _text_length(pairs[i]), reverse=True)
        # Without any document the model still runs, for processes to synchronize gradients.
        sorted_pairs = [pairs[i] for i in order] or [("", "")]
        size = self.mini_batch_size or len(sorted_pairs)
        scores = cached_scores(
            # A new dictionary: the model adds its outputs to the one it is given.
            lambda tokens: self.model(dict(tokens))["scores"].reshape(-1),
            [
                self._tokens(sorted_pairs[start : start + size], prompt, task)
                for start in range(0, len(sorted_pairs), size)
            ],
            no_sync=getattr(self.model, "no_sync", None),
        )
        back = torch.tensor(order, dtype=torch.long, device=scores.device).argsort()
        return scores[back]

    def _tokens(self, pairs: list[Pair], prompt: str | None, task: str | None) -> dict[str, Any]:
        # Also the wrapper of a distributed or compiled model has this method: the trainer binds it.
        tokens = self.model.preprocess(pairs, prompt=prompt, task=task)
        device = self.model.device
        return {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in tokens.items()
        }

    def _labels(self, labels: Sequence[Tensor]) -> Tensor:
        if self.teacher is not None:
            labels = [teacher_labels(own, self.teacher) for own in labels]
        return torch.cat([torch.as_tensor(own).float() for own in labels])


def _checked(
    inputs: Sequence[Sequence[Any]], labels: Sequence[Tensor]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    if len(inputs) != 2:
        raise ValueError(
            "RankingLoss needs two input columns, the queries and their lists of documents, found "
            f"{len(inputs)}"
        )
    if labels is None or isinstance(labels, Tensor):
        raise ValueError("RankingLoss needs a column of labels, with a list for each query")
    queries, documents = inputs
    found, wanted = [len(own) for own in labels], [len(own) for own in documents]
    if found != wanted:
        raise ValueError(f"queries have {wanted} documents and {found} labels: they must agree")
    return queries, documents


def _text_length(pair: Pair) -> int:
    return sum(len(text) for text in pair if isinstance(text, str))
