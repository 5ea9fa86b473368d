"""MLP: a multi-layer perceptron, which scores every item by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from rankgrad._shapes import Bool, Features, Float, Mask, Scores
from rankgrad._validation import check_choice, check_rate
from rankgrad.models._base import (
    ACTIVATIONS,
    OUTPUTS,
    Activation,
    Model,
    Output,
    Scorer,
    check_optional,
    check_sizes,
    models,
    output_layer,
)
from rankgrad.models._dropout import Dropout
from rankgrad.models.batch_norm import BatchNorm

__all__ = ["MLP", "MLPNet"]


@models.register("mlp")
@dataclass(frozen=True, kw_only=True)
class MLP(Model):
    """Fully connected layers, then one score: each layer is linear, activation, dropout.

    Args:
        hidden: the sizes of the hidden layers; ``[]`` is a linear model.
        activation: the non-linearity of the hidden layers.
        dropout: the fraction of a hidden layer's values set to 0 in training: one number, or one
            per layer.
        batch_norm: normalize each hidden layer: ``true`` before its activation, ``"after"`` after
            it. See :class:`~rankgrad.models.batch_norm.BatchNorm`.
        input_norm: batch normalization of the features.
        norm_decay: the weight of the old statistics when batch normalization updates them, which
            TensorFlow and papers call momentum; PyTorch's momentum is ``1 - norm_decay``.
        output: what the score passes through: ``none``, ``tanh`` or ``sigmoid``.

    >>> model = models.get("mlp(hidden=[64, 32], dropout=0.1)")
    >>> model, str(models.get("mlp(hidden=[], output=none)"))
    (MLP(hidden=(64, 32), activation='relu', dropout=0.1, batch_norm=False, input_norm=False, \
norm_decay=0.9, output=None), 'mlp(hidden=[])')
    >>> model.build(n_features=136)(torch.zeros(2, 5, 136)).shape
    torch.Size([2, 5])
    """

    hidden: Sequence[int] = (128, 64)
    activation: Activation = "relu"
    dropout: float | Sequence[float] = 0.0
    batch_norm: bool | Literal["after"] = False
    input_norm: bool = False
    norm_decay: float = 0.9
    output: Output | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", check_sizes("hidden", self.hidden))
        object.__setattr__(self, "dropout", _check_dropout(self.dropout, len(self.hidden)))
        object.__setattr__(self, "output", check_optional("output", self.output, OUTPUTS))
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("batch_norm", self.batch_norm, (False, True, "after"))
        check_choice("input_norm", self.input_norm, (False, True))
        check_rate("norm_decay", self.norm_decay)

    @override
    def build(self, n_features: int) -> MLPNet:
        return MLPNet(self, n_features)


class MLPNet(Scorer):
    """The network of an :class:`MLP`."""

    per_item = True
    capturable = True

    def __init__(self, model: MLP, n_features: int) -> None:
        super().__init__(n_features)
        rates = model.dropout
        if not isinstance(rates, Sequence):
            rates = [rates] * len(model.hidden)
        layers: list[nn.Module] = []
        if model.input_norm:
            layers.append(BatchNorm(n_features, model.norm_decay))
        width = n_features
        for size, rate in zip(model.hidden, rates, strict=True):
            layers += _hidden_layer(model, width, size, rate)
            width = size
        layers += [nn.Linear(width, 1), nn.Flatten(0), output_layer(model.output)]
        self.layers = nn.Sequential(*layers)

    @override
    def score(self, features: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.score_items(features.flatten(0, -2)).reshape(features.shape[:-1])
        # Selecting the real items would wait for a GPU, and exported programs have fixed shapes.
        if features.is_cuda or torch.compiler.is_exporting():
            return self.score_all(features, mask)
        scores = self.score_items(features[mask])
        return scores.new_zeros(mask.shape).masked_scatter(mask, scores)

    def score_all(self, features: Features, mask: Mask) -> Scores:
        """Score padding too, with features of 0, and then set its scores to 0.

        Args:
            features: ``[..., n, f]``.
            mask: ``[..., n]``, True on real items.

        Returns:
            ``[..., n]`` scores.
        """
        items = features.masked_fill(~mask[..., None], 0.0).flatten(0, -2)
        return self.score_items(items, mask.flatten()).reshape(mask.shape).where(mask, 0.0)

    def score_items(
        self, items: Float[Tensor, "N f"], real: Bool[Tensor, " N"] | None = None
    ) -> Float[Tensor, " N"]:
        """The scores of flat items.

        Items on which ``real`` is False do not enter the statistics of batch normalization.

        Args:
            items: ``[N, f]`` features.
            real: ``[N]``; None if all items are real.

        Returns:
            ``[N]`` scores.
        """
        for layer in self.layers:
            items = layer(items, real) if isinstance(layer, BatchNorm) else layer(items)
        return items


def _hidden_layer(model: MLP, width: int, size: int, rate: float) -> list[nn.Module]:
    """A hidden layer from ``width`` to ``size`` columns; ``rate`` is that of dropout.

    Linear and activation, then dropout unless the rate is 0. Batch normalization, if the model has
    it, is before or after the activation.
    """
    layers: list[nn.Module] = [nn.Linear(width, size), ACTIVATIONS[model.activation]()]
    if model.batch_norm:
        layers.insert(2 if model.batch_norm == "after" else 1, BatchNorm(size, model.norm_decay))
    if rate:
        layers.append(Dropout(rate))
    return layers


def _check_dropout(dropout: Any, layers: int) -> float | tuple[float, ...]:
    """Check one rate, or one for each hidden layer."""
    if isinstance(dropout, str) or not isinstance(dropout, Sequence):
        check_rate("dropout", dropout)
        return float(dropout)
    if len(dropout) != layers:
        raise ValueError(
            f"dropout must be one number or one per hidden layer; found {len(dropout)} for "
            f"{layers} layers"
        )
    for rate in dropout:
        check_rate("each dropout", rate)
    return tuple(map(float, dropout))
