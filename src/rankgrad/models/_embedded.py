"""A network after embeddings of categorical features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rankgrad._shapes import Features, Float, Int
from rankgrad.models._base import Model, Scorer

_WIDEST = 32  # columns of an embedding, at most


def embedding_width(categories: int) -> int:
    """How many columns a feature of this many categories gets: ``min(32, 1.6 c^0.56)``.

    The rule is fastai's, with a lower bound of the widest.

    >>> [embedding_width(count) for count in (1, 2, 10, 1000)]
    [2, 2, 6, 32]
    """
    return max(2, min(_WIDEST, round(1.6 * math.pow(categories, 0.56))))


class EmbeddedScorer(Scorer):
    """A network whose last input columns are categories: each becomes a row of a learned table.

    Row 0 of a table is for missing and unknown categories, row c + 1 for category c. In training it
    is learned from missing ones; without any it stays at 0.

    Args:
        model: of the network after the embeddings.
        n_features: the number of input columns.
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
        """The columns of numbers, then those of the embeddings."""
        codes = features[..., self.n_numbers :].long()
        columns = [
            table(codes[..., at].clamp(0, self.sizes[at]))  # padding may hold anything
            for at, table in enumerate(self.tables)
        ]
        numbers = features[..., : self.n_numbers].to(columns[0].dtype)
        return torch.cat([numbers, *columns], -1)

    def expand_sources(self, sources: Int[Tensor, " f"]) -> Int[Tensor, " w"]:
        """Which raw feature each column of :meth:`embed` is made of, by that of each input."""
        widths = [1] * self.n_numbers + list(map(embedding_width, self.sizes))
        return sources.repeat_interleave(torch.tensor(widths))

    def score(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The scores of real items, and 0 for padding."""
        return self.network.score(self.embed(features), mask)

    def inputs(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """What the layers take in: the embedded features, then columns derived of them."""
        return self.network.inputs(self.embed(features), mask)

    def score_inputs(self, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """The scores of what :meth:`inputs` gives."""
        return self.network.score_inputs(inputs, mask)
