"""Networks of the studies that are not in the library; registered, so that specs name them.

``direct_study`` and ``default_study`` train them on inputs that ``data.py`` has computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankgrad.models import models
from rankgrad.models._encoding import (
    FREQUENCY_DEVIATION,
    PeriodicEncoding,
    PiecewiseLinearEncoding,
)
from rankgrad.models._perceptrons import AdaptedLinear
from rankgrad.models._similar_items import SimilarItems
from rankgrad.models.tabm import TabM, TabMNet


class PreparedNet(TabMNet):
    """A network of the library on inputs that were computed before.

    With ``in_list`` the inputs are those that the library would compute, features first; without
    it all inputs count as features. On a GPU it takes lists as a whole although it scores item by
    item: training captures such networks in CUDA graphs.
    """

    capturable = True

    def __init__(self, model: TabM, n_inputs: int) -> None:
        super().__init__(model, n_inputs // (1 + len(model.in_list)))
        self.n_features = n_inputs
        self.per_item = self.inputs_score_alone and not torch.cuda.is_available()

    def inputs(self, features: Tensor, mask: Tensor | None) -> Tensor:
        return features


@models.register("decayed_tabm")
@dataclass(frozen=True, kw_only=True)
class DecayedTabM(TabM):
    """The library's network as it was trained before: weight decay applies to all parameters.

    That is, also to biases, encodings of features and the sharpness of attention.
    """

    name: ClassVar[str] = "decayed_tabm"

    def build(self, n_features: int) -> PreparedNet:
        network = PreparedNet(self, n_features)
        for module in network.modules():
            module.undecayed = ()
        return network


@models.register("noisy_tabm")
@dataclass(frozen=True, kw_only=True)
class NoisyTabM(TabM):
    """Perceptrons whose inputs have normal noise added in training (Qin et al. 2021).

    Args:
        noise: the standard deviation of the noise.
    """

    name: ClassVar[str] = "noisy_tabm"

    noise: float = 0.1

    def build(self, n_features: int) -> NoisyNet:
        return NoisyNet(self, n_features)


class NoisyNet(PreparedNet):
    """The network of a :class:`NoisyTabM`."""

    capturable = True
    inputs_score_alone = False

    def __init__(self, model: NoisyTabM, n_features: int) -> None:
        super().__init__(model, n_features)
        self.noise = model.noise

    def score_inputs(self, inputs: Tensor, mask: Tensor | None) -> Tensor:
        if self.training:
            inputs = inputs + self.noise * torch.randn_like(inputs)
        return super().score_inputs(inputs, mask)


@models.register("encoded_tabm")
@dataclass(frozen=True, kw_only=True)
class EncodedTabM(TabM):
    """Perceptrons that also take in a piecewise linear encoding of features.

    Gorishniy et al. 2022, "On embeddings for numerical features in tabular deep learning", §3.2: a
    feature becomes as many ramps as there are bins, so that the first layer is any piecewise linear
    function of it. All members share the weights of the encoding.

    Args:
        bins: the number of bins, of equal width; after a quantile transform they have about equal
            counts.
        blocks: how many blocks of inputs are encoded: first the features, then their columns in the
            list.
        of: how many blocks of inputs there are.
    """

    name: ClassVar[str] = "encoded_tabm"

    bins: int = 16
    blocks: int = 1
    of: int = 4

    def build(self, n_features: int) -> EncodedNet:
        return EncodedNet(self, n_features)


class EncodedNet(PreparedNet):
    """The network of an :class:`EncodedTabM`."""

    capturable = True
    inputs_score_alone = False

    def __init__(self, model: EncodedTabM, n_features: int) -> None:
        super().__init__(model, n_features)
        encoded = n_features // model.of * model.blocks
        self.layers[0] = _Encoded(self.layers[0], encoded, model.bins, model.hidden[0])


class _Encoded(nn.Module):
    """A first layer plus a linear function of encoded features."""

    def __init__(self, first: nn.Module, encoded: int, bins: int, size: int) -> None:
        super().__init__()
        self.first, self.encoded, self.bins = first, encoded, bins
        self.linear = nn.Linear(encoded * bins, size, bias=False)
        limit = 1.75  # standardized uniform values are within ±√3
        self.register_buffer("edges", torch.linspace(-limit, limit, bins + 1)[:-1])
        self.per_width = bins / (2 * limit)

    def forward(self, items: Tensor) -> Tensor:
        plain = items[0, :, : self.encoded]
        ramps = ((plain[..., None] - self.edges) * self.per_width).clamp(0.0, 1.0)
        outputs: Tensor = self.first(items) + self.linear(ramps.flatten(-2))
        return outputs


@models.register("attentive_tabm")
@dataclass(frozen=True, kw_only=True)
class AttentiveTabM(TabM):
    """Perceptrons whose inputs also have the output of attention over the list.

    Args:
        heads: the number of attention heads, which all members share.
        head_width: the width of queries, keys and values.
        similar: whether queries are also the keys, at unit length, and items attend only to others.
            The output is then how the most similar items differ from an item, and how similar they
            are. Otherwise it is plain attention.
        layers: the number of hidden layers of ``head_width * heads`` units before the attention.
        bins: the bins of a piecewise linear encoding of features, as in :class:`EncodedTabM`; 0 for
            no encoding.
        of: how many blocks of inputs there are; the first is encoded.
        seen_dropout: the dropout rate of the output of the attention.
        gated: whether the output of the attention is scaled by learned factors that start at 0.
    """

    name: ClassVar[str] = "attentive_tabm"

    heads: int = 4
    head_width: int = 24
    similar: bool = False
    layers: int = 0
    bins: int = 0
    of: int = 4
    seen_dropout: float = 0.0
    gated: bool = False

    def build(self, n_features: int) -> AttentiveNet:
        return AttentiveNet(self, n_features)


class AttentiveNet(TabMNet):
    """The network of an :class:`AttentiveTabM`."""

    inputs_score_alone = False

    capturable = True

    def __init__(self, model: AttentiveTabM, n_features: int) -> None:
        wide = model.heads * model.head_width
        seen = wide + (model.heads if model.similar else 0)
        # This class has the attention, so its base must not build the library's.
        super().__init__(replace(model, heads=0), n_features + seen)
        self.n_features, self.heads, self.similar = n_features, model.heads, model.similar
        self.per_item = False
        if model.bins:
            encoded = n_features // model.of
            self.layers[0] = _Encoded(self.layers[0], encoded, model.bins, model.hidden[0])
        before: list[nn.Module] = []
        width = n_features
        for _ in range(model.layers):
            before += [nn.Linear(width, wide), nn.ReLU()]
            width = wide
        self.before = nn.Sequential(*before, nn.LayerNorm(width))
        self.query, self.value = nn.Linear(width, wide), nn.Linear(width, wide)
        self.key = self.query if model.similar else nn.Linear(width, wide)
        self.sharpness = nn.Parameter(torch.full((model.heads, 1, 1), math.log(8.0)))
        self.dropout = nn.Dropout(model.seen_dropout)
        self.gate = nn.Parameter(torch.zeros(seen)) if model.gated else None

    def score(self, features: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            mask = torch.ones(features.shape[:-1], dtype=torch.bool, device=features.device)
        features = features.masked_fill(~mask[..., None], 0.0)
        seen = self.dropout(self._attend(features, mask))
        seen = seen if self.gate is None else seen * self.gate
        return self.score_inputs(torch.cat([features, seen], -1), mask)

    def _attend(self, items: Tensor, mask: Tensor) -> Tensor:
        """The output of the attention ``[..., n, width]`` for inputs ``[..., n, f]``."""
        hidden = self.before(items)
        query, key, value = (
            layer(hidden).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )
        real = mask[..., None, None, :]
        if not self.similar:
            real = real | ~mask.any(-1)[..., None, None, None]  # no NaN for lists without items
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=real)
            return attended.transpose(-3, -2).flatten(-2)
        query = F.normalize(query, dim=-1)
        similarity = query @ query.mT
        diagonal = torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
        similarity = similarity.masked_fill(~real | diagonal, -1.0)
        weights = (similarity * self.sharpness.exp()).softmax(-1)
        differences = (weights @ value - value).transpose(-3, -2).flatten(-2)
        return torch.cat([differences, similarity.amax(-1).transpose(-2, -1)], -1)


@models.register("variant_tabm")
@dataclass(frozen=True, kw_only=True)
class VariantTabM(TabM):
    """The library's network with other encodings or a gated layer, on inputs computed before.

    Args:
        encoding: what takes the place of the ``bins`` ramps of each feature: ``ramps``, nothing;
            ``embedded``, as many linear functions of 32 ramps; ``periodic``, the library's periodic
            encoding of that size.
        gated: whether the first hidden layer is silu(A x) * (B x), a gated linear unit.
        rate: the library's ``scale_rate``, by an earlier name.
        deviation: of the initial frequencies of the periodic encoding.
        frozen: whether these frequencies are not learned.
        attention_rate: the factor of the learning rate of factors that scale the inputs of the
            attention, which all heads share; 1 for none. The library's is ``rate``.
        gated_attention: whether the members' scales of the attention's outputs start at 0, as the
            library's do.
    """

    name: ClassVar[str] = "variant_tabm"

    encoding: str = "ramps"
    gated: bool = False
    rate: float = 1.0
    deviation: float = 0.3
    frozen: bool = False
    attention_rate: float = 1.0
    gated_attention: bool = False

    def build(self, n_features: int) -> VariantNet:
        return VariantNet(self, n_features)


class VariantNet(PreparedNet):
    """The network of a :class:`VariantTabM`."""

    def __init__(self, model: VariantTabM, n_inputs: int) -> None:
        super().__init__(replace(model, scale_rate=model.rate), n_inputs)
        n_features = n_inputs // (1 + len(model.in_list))
        if model.encoding == "embedded":
            self.encoding = _EmbeddedRamps(n_features, model.bins)
        elif model.encoding == "periodic":
            self.encoding = PeriodicEncoding(n_features, model.bins)
            frequency = self.encoding.frequency
            frequency.data *= model.deviation / FREQUENCY_DEVIATION
            frequency.requires_grad_(not model.frozen)
        if model.gated:
            width = self.layers[0].weight.shape[-1]
            self.layers[0] = AdaptedLinear(
                model.members, width, 2 * model.hidden[0], random_signs=True, rate=model.rate
            )
            self.layers[1] = _Gated()
        if model.heads:
            self.attention = SimilarItems(n_inputs, model.heads, model.attention_rate)
            if not model.gated_attention:
                attended = self.layers[0].scale_in.data[..., n_inputs:][..., : self.attention.width]
                attended.copy_((torch.randint(2, attended.shape) * 2.0 - 1) / model.rate)


class _Gated(nn.Module):
    def forward(self, items: Tensor) -> Tensor:
        gate, value = items.chunk(2, -1)
        return F.silu(gate) * value


class _EmbeddedRamps(nn.Module):
    """Linear functions of 32 ramps of each feature."""

    def __init__(self, n_features: int, size: int) -> None:
        super().__init__()
        self.n_features, self.width = n_features, n_features * size
        self.ramps = PiecewiseLinearEncoding(n_features, 32)
        self.weight = nn.Parameter(torch.randn(n_features, 32, size) / math.sqrt(32))
        self.bias = nn.Parameter(torch.zeros(n_features, 1, size))

    def forward(self, features: Tensor) -> Tensor:
        ramps = self.ramps(features).unflatten(-1, (self.n_features, -1)).transpose(0, 1)
        return torch.baddbmm(self.bias, ramps, self.weight).transpose(0, 1).flatten(-2)
