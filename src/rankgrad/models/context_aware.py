"""ContextAware: self-attention over a list, so an item's score depends on the other items.

The NeuralNDCG paper trains it; its configurations are in :mod:`rankgrad.models.presets`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from rankgrad._shapes import Float, Int, ItemMask, ItemValues
from rankgrad._validation import check_rate, check_whole
from rankgrad.models._base import (
    OUTPUTS,
    Model,
    Output,
    Scorer,
    check_optional,
    check_sizes,
    models,
    output_layer,
)
from rankgrad.models._dropout import Dropout

__all__ = ["ContextAware", "ContextAwareNet"]

_Positional = Literal["fixed", "learned"]


@models.register("context_aware")
@dataclass(frozen=True, kw_only=True)
class ContextAware(Model):
    """Self-attention over the items of a list (Pobrotyn et al. 2020).

    Linear layers bring each item's features to the model's width; encoder blocks let the items of a
    list attend to each other; a linear layer gives the score. A block is, with the normalization
    first::

        x = x + dropout(attention(norm(x)))
        x = x + dropout(linear(dropout(relu(linear(norm(x))))))

    and the last block's output is normalized once more. Without positions the network is
    equivariant: permuting a list permutes its scores.

    Args:
        fc: the sizes of the linear layers in front; the last is the width of the model.
        blocks: the number of encoder blocks.
        heads: the number of attention heads; they share the width.
        ff: the size of the hidden layer in a block.
        dropout: the fraction of values, attention weights included, set to 0 in training.
        positional: add a vector for the item's position in the list, if the order of the lists is
            an earlier ranking: ``fixed`` sinusoids (Vaswani et al. 2017) or ``learned`` vectors.
        positions: how many positions are learned; all later items share the last one.
        output: what the score passes through: ``none``, ``tanh`` or ``sigmoid``.

    >>> model = models.get("context_aware(fc=[8], ff=16)")
    >>> print(model)
    context_aware(fc=[8], ff=16)
    >>> net = model.build(n_features=3).eval()
    >>> features = torch.randn(1, 4, 3)
    >>> torch.allclose(net(features).flip(-1), net(features.flip(-2)), atol=1e-5)
    True
    """

    fc: Sequence[int] = (96,)
    blocks: int = 2
    heads: int = 1
    ff: int = 384
    dropout: float = 0.1
    positional: _Positional | None = None
    positions: int = 240
    output: Output | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fc", check_sizes("fc", self.fc))
        positional = check_optional("positional", self.positional, ("fixed", "learned"))
        object.__setattr__(self, "positional", positional)
        object.__setattr__(self, "output", check_optional("output", self.output, OUTPUTS))
        for option in ("blocks", "heads", "ff", "positions"):
            object.__setattr__(self, option, check_whole(option, getattr(self, option)))
        check_rate("dropout", self.dropout)
        if not self.fc:
            raise ValueError("fc must have at least one layer: its last size is the model's width")
        if self.fc[-1] % self.heads:
            raise ValueError(
                "heads must divide the model's width, the last size in fc; found "
                f"{self.heads} heads and width {self.fc[-1]}"
            )

    @override
    def build(self, n_features: int) -> ContextAwareNet:
        return ContextAwareNet(self, n_features)


class ContextAwareNet(Scorer):
    """The network of a :class:`ContextAware` model."""

    per_item = False
    capturable = True

    def __init__(self, model: ContextAware, n_features: int) -> None:
        super().__init__(n_features)
        sizes, width = [n_features, *model.fc], model.fc[-1]
        self.fc = nn.Sequential(*map(nn.Linear, sizes[:-1], sizes[1:]))
        self.positional = model.positional
        if model.positional == "learned":
            self.position = nn.Embedding(model.positions, width)
        self.blocks = nn.ModuleList(_Block(model) for _ in range(model.blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, 1), output_layer(model.output))
        for linear in self.modules():
            if isinstance(linear, nn.Linear):
                nn.init.xavier_uniform_(linear.weight)

    @override
    def score(self, features: Tensor, mask: Tensor | None) -> Tensor:
        shape = features.shape[:-1]
        if features.numel() == 0:
            return features.sum(-1)
        items = features
        # Exported programs have 3 dimensions, and so no reshape: -1 is ambiguous for empty lists.
        if features.dim() != 3:
            items = features.reshape(-1, *features.shape[-2:])
        if mask is None:
            return self._encode(items, None).reshape(shape)
        mask = mask.reshape(items.shape[:-1])
        scores = self._encode(items.masked_fill(~mask[..., None], 0.0), mask)
        return scores.masked_fill(~mask, 0.0).reshape(shape)

    def _encode(self, items: Float[Tensor, "b n f"], mask: ItemMask | None) -> ItemValues:
        """The scores of lists, whose padding holds zeros; the scores of padding are arbitrary."""
        hidden = self.fc(items)
        if self.positional is not None:
            hidden = hidden + self._positions(hidden, mask)
        attended = None  # the items that are attended to, [b, 1, 1, n]: real ones; None for all
        if mask is not None:
            # A list of padding only attends to all its items: a softmax of nothing is NaN.
            attended = (mask | ~mask.any(-1, keepdim=True))[:, None, None]
        for block in self.blocks:
            hidden = block(hidden, attended)
        scores: Tensor = self.head(self.norm(hidden)).squeeze(-1)
        return scores

    def _positions(
        self, hidden: Float[Tensor, "b n w"], mask: ItemMask | None
    ) -> Float[Tensor, "*b n w"]:
        """The vectors of the items' positions; only real items are counted."""
        if mask is None:
            positions = torch.arange(hidden.shape[-2], device=hidden.device)
        else:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
        if self.positional == "fixed":
            return _sinusoids(positions, hidden.shape[-1]).to(hidden.dtype)
        vectors: Tensor = self.position(positions.clamp(max=self.position.num_embeddings - 1))
        return vectors


class _Block(nn.Module):
    """One encoder block: attention over the list, then a feed-forward layer on each item.

    It is called with items ``[b, n, w]`` and an attention mask ``[b, 1, 1, n]``, or None.
    """

    def __init__(self, model: ContextAware) -> None:
        super().__init__()
        width = model.fc[-1]
        self.heads = model.heads
        self.attention_norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, model.ff),
            nn.ReLU(),
            Dropout(model.dropout),
            nn.Linear(model.ff, width),
        )
        self.dropout = Dropout(model.dropout)

    def forward(self, items: Tensor, attention_mask: Tensor | None) -> Tensor:
        items = items + self.dropout(self._attention(self.attention_norm(items), attention_mask))
        outputs: Tensor = items + self.dropout(self.feed_forward(items))
        return outputs

    def _attention(self, items: Tensor, mask: Tensor | None) -> Tensor:
        """Multi-head attention among items ``[b, n, w]``; the mask is ``[b, 1, 1, n]`` or None."""
        projections = (self.query, self.key, self.value)
        query, key, value = (self._split_heads(linear(items)) for linear in projections)
        rate = self.dropout.p if self.training else 0.0
        if rate and self.dropout.generator is not None:  # PyTorch's function takes no generator
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask, float("-inf"))
            mixed = self.dropout(scores.softmax(-1)) @ value
        else:
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=rate
            )
        attention: Tensor = self.mix(mixed.transpose(1, 2).flatten(-2))
        return attention

    def _split_heads(self, items: Float[Tensor, "b n w"]) -> Float[Tensor, "b h n d"]:
        split: Tensor = items.unflatten(-1, (self.heads, -1))
        return split.transpose(1, 2)


def _sinusoids(positions: Int[Tensor, "*b n"], width: int) -> Float[Tensor, "*b n w"]:
    """``sin(p / 10000^{2i/w})`` in the first half of the columns, and cosines in the second."""
    i = torch.arange((width + 1) // 2, device=positions.device)
    angles = positions[..., None] * torch.exp(-math.log(10000.0) * 2 * i / width)
    return torch.cat([angles.sin(), angles.cos()], -1)[..., :width]
