"""TabM: an ensemble of perceptrons in one network, averaged in prediction. The default model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from typing_extensions import override

from rankgrad._shapes import Float
from rankgrad._validation import check_choice, check_positive, check_rate, check_whole
from rankgrad.models._base import ACTIVATIONS, Activation, Model, Scorer, check_sizes, models
from rankgrad.models._dropout import FastDropout
from rankgrad.models._encoding import PeriodicEncoding, PiecewiseLinearEncoding
from rankgrad.models._in_list import InList, check_in_list, in_list_columns
from rankgrad.models._perceptrons import AdaptedLinear, Perceptrons, bias_gradient
from rankgrad.models._similar_items import SimilarItems

__all__ = ["TabM", "TabMNet"]

_Sharing = Literal["adapters", "nothing"]
_MAX_HEADS = 64  # each has 24 hidden units
_MAX_BINS = 256  # each is another input for every feature
_MAX_RATE = 1000  # gradients of the scales are as much larger; Adam squares them


@models.register("tabm")
@dataclass(frozen=True, kw_only=True)
class TabM(Model):
    """An ensemble of perceptrons in one network (TabM, Gorishniy et al. 2025).

    The members share the weights W of their hidden layers. Each member m has vectors that scale the
    inputs and the outputs of a layer (BatchEnsemble, Wen et al. 2020), biases, and an output layer
    of its own::

        layer_m(x) = dropout(activation(s_m ∘ W (r_m ∘ x) + b_m))

    Each r_m of the first layer starts as random signs (for those of the attention see
    ``scale_rate``), all other r_m and s_m at 1. Training minimizes the mean of the members' losses;
    in prediction the score is the mean of the members' scores.

    Args:
        hidden: the sizes of the hidden layers.
        members: the number of perceptrons.
        share: ``adapters`` as above, or ``nothing``: members with weights of their own, which the
            paper calls TabM-packed.
        activation: the non-linearity of the hidden layers.
        dropout: the fraction of a hidden layer's values set to 0 in training.
        input_dropout: the fraction of the features set to 0 in training, drawn for each member.
        in_list: further inputs, derived from each feature within the list: the item's ``rank``, its
            ``score`` (how many standard deviations it is from the list's mean) and ``ties`` (how
            many other items have the same value): see :mod:`rankgrad.models._in_list`. A score then
            depends on the whole list.
        heads: the number of heads of attention to similar items of the list; 0 for none. How these
            differ from an item, and how similar they are, are further inputs, which all members
            share: see :mod:`rankgrad.models._similar_items`, and ``scale_rate``. A score then
            depends on the whole list, and time grows with the square of the list's length.
        bins: the number of bins of a piecewise linear encoding of the features, which all members
            take in beside them; 0 for none. It finds thresholds in features, as trees do, and
            overfits on few items: see :mod:`rankgrad.models._encoding`.
        periodic: the number of learned functions of each feature, over sines and cosines of it,
            which all members take in beside the features in place of ``bins``; 0 for none.
        scale_rate: the factor of the learning rate of the first layer's r_m, from 0.001 to 1000.
            Above 1 the network selects features sooner, as the scaling layer of RealMLP does
            (Holzmüller et al. 2024). With the optimizer ``sgd`` the factor is its square. If it is
            not 1 and there are ``heads``, these scale their inputs by factors of their own, which
            learn at the same rate, and the r_m of their outputs start at 0 in place of random
            signs: the network starts as one without attention, and takes in what helps.
        encoding_rate: the factor of the learning rate of the parameters of ``periodic``, likewise.

    >>> model = models.get("tabm(hidden=[64], members=4)")
    >>> net = model.build(n_features=46)
    >>> net(torch.zeros(2, 5, 46)).shape, net.eval()(torch.zeros(2, 5, 46)).shape
    (torch.Size([4, 2, 5]), torch.Size([2, 5]))
    """

    hidden: Sequence[int] = (128, 64)
    members: int = 16
    share: _Sharing = "adapters"
    activation: Activation = "relu"
    dropout: float = 0.0
    input_dropout: float = 0.0
    in_list: Sequence[InList] = ()
    heads: int = 0
    bins: int = 0
    periodic: int = 0
    scale_rate: float = 1.0
    encoding_rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", check_sizes("hidden", self.hidden))
        object.__setattr__(self, "members", check_whole("members", self.members))
        check_choice("share", self.share, get_args(_Sharing))
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_rate("dropout", self.dropout)
        check_rate("input_dropout", self.input_dropout)
        object.__setattr__(self, "in_list", check_in_list("in_list", self.in_list))
        heads = check_whole("heads", self.heads, least=0, most=_MAX_HEADS)
        object.__setattr__(self, "heads", heads)
        for option in ("bins", "periodic"):
            value = check_whole(option, getattr(self, option), least=0, most=_MAX_BINS)
            object.__setattr__(self, option, value)
        if self.bins and self.periodic:
            raise ValueError("bins and periodic are two encodings of the features: set one of them")
        for option in ("scale_rate", "encoding_rate"):
            rate = getattr(self, option)
            check_positive(option, rate)
            if not 1 / _MAX_RATE <= rate <= _MAX_RATE:
                raise ValueError(f"{option} must lie in 0.001 to 1000, found {rate:g}")
        if self.encoding_rate != 1 and not self.periodic:
            raise ValueError("encoding_rate is of the encoding periodic, which is 0")
        if self.scale_rate != 1 and self.share != "adapters":
            raise ValueError("scale_rate is of the members' scales, which only share=adapters has")
        if self.scale_rate != 1 and not self.hidden:
            raise ValueError("scale_rate is of the first hidden layer's scales, and hidden is []")

    @override
    def build(self, n_features: int) -> TabMNet:
        return TabMNet(self, n_features)


class TabMNet(Scorer):
    """The network of a :class:`TabM` model."""

    capturable = True  # by CUDA graphs
    inputs_score_alone = True  # an item's score depends on no other item's inputs

    def __init__(self, model: TabM, n_features: int) -> None:
        super().__init__(n_features)
        self.members, self.in_list = model.members, model.in_list
        self.per_item = not model.in_list and not model.heads
        width = n_features * (1 + len(model.in_list))
        self.attention: SimilarItems | None = None
        attention_columns = slice(width, width)  # among the inputs of the first layer
        if model.heads:
            self.attention = SimilarItems(width, model.heads, model.scale_rate)
            attention_columns = slice(width, width + self.attention.width)
            width = attention_columns.stop
            self.inputs_score_alone = False
        self.encoding: PiecewiseLinearEncoding | PeriodicEncoding | None = None
        if model.bins:
            self.encoding = PiecewiseLinearEncoding(n_features, model.bins)
        elif model.periodic:
            self.encoding = PeriodicEncoding(n_features, model.periodic, model.encoding_rate)
        if self.encoding is not None:
            width += self.encoding.width
        layers: list[nn.Module] = []
        if model.input_dropout:
            layers.append(FastDropout(model.input_dropout))
        for depth, size in enumerate(model.hidden):
            if model.share == "adapters":
                rate = model.scale_rate if depth == 0 else 1.0
                sizes = model.members, width, size
                layer = AdaptedLinear(*sizes, random_signs=depth == 0, rate=rate)
                if depth == 0:
                    layer.l1_parameters = ("scale_in",)
                if rate != 1:
                    layer.scale_in.detach()[..., attention_columns] = 0.0
                layers.append(layer)
            else:
                layers.append(_MemberLinear(model.members, width, size))
            layers.append(ACTIVATIONS[model.activation]())
            if model.dropout:
                layers.append(FastDropout(model.dropout))
            width = size
        output = _MemberLinear(model.members, width, 1)
        if model.share == "adapters":
            output.undecayed = ("bias",)
        self.layers = Perceptrons(*layers, output)

    @override
    def score(self, features: Tensor, mask: Tensor | None) -> Tensor:
        return self.score_inputs(self.inputs(features, mask), mask)

    @override
    def inputs(self, features: Tensor, mask: Tensor | None) -> Tensor:
        if not self.in_list:
            return features
        if mask is None:
            mask = torch.ones(features.shape[:-1], dtype=torch.bool, device=features.device)
        return torch.cat([features, *in_list_columns(features, mask, self.in_list)], -1)

    @override
    def score_inputs(self, inputs: Tensor, mask: Tensor | None) -> Tensor:
        parts = [inputs]
        if self.attention is not None:
            parts.append(self.attention(inputs, mask))
        # Selecting the real items would wait for a GPU: there, padding is scored like items.
        if mask is None or inputs.is_cuda or torch.compiler.is_exporting():
            if mask is not None:
                parts = [part.masked_fill(~mask[..., None], 0.0) for part in parts]
            scores = self._score_items(*(part.flatten(0, -2) for part in parts))
            scores = scores.reshape(len(scores), *inputs.shape[:-1])
            scores = scores if mask is None else scores.where(mask, 0.0)
        else:
            scores = self._score_items(*(part[mask] for part in parts))
            masks = mask.expand(len(scores), *mask.shape)
            scores = scores.new_zeros(masks.shape).masked_scatter(masks, scores)
        return scores if self._gives_members else scores[0]

    @property
    def _gives_members(self) -> bool:
        """Whether the scores of each member are returned, and not their mean."""
        return self.training and self.members > 1

    def _score_items(
        self, inputs: Float[Tensor, "N w"], *attended: Float[Tensor, "N a"]
    ) -> Float[Tensor, "m N"]:
        """The scores of each member, or their mean ``[1, N]``.

        Args:
            inputs: the features and the columns derived within lists.
            attended: the attention's outputs, if there are heads.
        """
        parts = [inputs, *attended]
        if self.encoding is not None:
            parts.append(self.encoding(inputs[:, : self.encoding.n_features]))
        scores: Tensor = self.layers(*parts).squeeze(-1)
        if self._gives_members:
            return scores
        # In float64: the rounding of a float32 sum depends on the item's position in the batch,
        # but equal items must get equal scores.
        return scores.mean(0, keepdim=True, dtype=torch.float64).to(scores.dtype)


class _MemberLinear(nn.Module):
    """A linear layer with weights of its own for each member."""

    undecayed: tuple[str, ...] = ()  # parameters without weight decay

    def __init__(self, members: int, width: int, size: int) -> None:
        super().__init__()
        limit = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(members, width, size).uniform_(-limit, limit))
        self.bias = nn.Parameter(torch.empty(members, 1, size).uniform_(-limit, limit))

    def forward(self, items: Float[Tensor, "m N w"]) -> Float[Tensor, "m N s"]:
        eager_cpu = items.device.type == "cpu" and not torch.compiler.is_compiling()
        if self.weight.shape[-1] == 1 and eager_cpu and not torch.compiler.is_exporting():
            outputs: Tensor = _Dot.apply(items, self.weight, self.bias)
            return outputs
        return torch.baddbmm(self.bias, items, self.weight)


class _Dot(torch.autograd.Function):
    """``baddbmm(bias, items, weight)`` for a single output: many times faster on a CPU.

    ``apply`` takes items ``[m, N, w]``, weight ``[m, w, 1]`` and bias ``[m, 1, 1]``.
    """

    @staticmethod
    def forward(ctx: Any, items: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(items, weight)
        return (items * weight.mT).sum(-1, keepdim=True) + bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        items, weight = ctx.saved_tensors
        (grad,) = grads
        items = items.to(grad.dtype)  # under autocast items are bfloat16, and weights float32
        return grad * weight.mT, torch.bmm(grad.mT, items).mT, bias_gradient(grad)
