"""EmbeddedScorer: any network, with an embedding in front for each categorical feature.

:class:`rankgrad.training.FittedRanker` builds it where the training data have categorical features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rankgrad._shapes import Features, Float, Int
from rankgrad.models._base import Model, Scorer

_MAX_WIDTH = 32  # columns of an embedding


def embedding_width(categories: int) -> int:
    """The width of the embedding for c categories: ``1.6 c^0.56``, at least 2 and at most 32.

    The rule is fastai's, whose largest width is 600.

    >>> [embedding_width(count) for count in (1, 2, 10, 1000)]
    [2, 2, 6, 32]
    """
    return max(2, min(_MAX_WIDTH, round(1.6 * math.pow(categories, 0.56))))


class EmbeddedScorer(Scorer):
    """A network whose last input columns are codes of categories, each with a learned embedding.

    A code is 0 for a missing or unknown category, and c + 1 for category c: it is a row of the
    feature's table of embeddings. Row 0 is initialized with zeros, and is learned from missing
    values in the training data.

    Args:
        model: the network after the embeddings.
        n_features: the number of input columns, those of codes included.
        sizes: the number of categories of each of the last columns.
    """

    def __init__(self, model: Model, n_features: int, sizes: Sequence[int]) -> None:
        super().__init__(n_features)
        self.n_numbers, self.sizes = n_features - len(sizes), tuple(sizes)
        tables = [nn.Embedding(size + 1, embedding_width(size)) for size in sizes]
        for table in tables:
            nn.init.normal_(table.weight, std=0.1)
            nn.init.zeros_(table.weight[0])
        self.tables = nn.ModuleList(tables)
        width = self.n_numbers + sum(table.embedding_dim for table in tables)
        self.network = model.build(width)
        self.per_item, self.members = self.network.per_item, self.network.members

    def embed(self, features: Features) -> Float[Tensor, "*b n w"]:
        """The numeric columns, then the columns of all embeddings, w in all.

        Args:
            features: ``[..., n, f]``: numbers, then codes.

        Returns:
            ``[..., n, w]``.
        """
        codes = features[..., self.n_numbers :].long()
        columns = [
            table(codes[..., column].clamp(0, self.sizes[column]))  # padding may hold anything
            for column, table in enumerate(self.tables)
        ]
        numbers = features[..., : self.n_numbers].to(columns[0].dtype)
        return torch.cat([numbers, *columns], -1)

    def expand_sources(self, sources: Int[Tensor, " f"]) -> Int[Tensor, " w"]:
        """The raw feature behind each column of :meth:`embed`.

        Args:
            sources: the raw feature behind each input column.

        Returns:
            ``[w]`` indices of raw features.
        """
        widths = [1] * self.n_numbers + list(map(embedding_width, self.sizes))
        return sources.repeat_interleave(torch.tensor(widths))

    def score(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The scores of real items, and 0 for padding."""
        return self.network.score(self.embed(features), mask)

    def inputs(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The inputs of the layers: the embedded features, then columns derived from them."""
        return self.network.inputs(self.embed(features), mask)

    def score_inputs(self, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """The scores of inputs that :meth:`inputs` returned."""
        return self.network.score_inputs(inputs, mask)
