"""The base classes of models: :class:`Model`, a configuration, and :class:`Scorer`, its network.

A network maps the features of a batch to scores, ``net(features, mask) -> scores``. Padding never
counts: it may hold any values, and its score is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankgrad._shapes import Features, Float, Mask, Scores
from rankgrad._validation import check_choice, check_whole
from rankgrad.specs import HasSpec, Registry

models: Registry[Model] = Registry("model")

Activation = Literal["elu", "gelu", "leaky_relu", "relu", "selu", "sigmoid", "silu", "tanh"]
Output = Literal["tanh", "sigmoid"]

OUTPUTS: tuple[Output, ...] = ("tanh", "sigmoid")
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class Scorer(nn.Module):
    """A network that scores items: ``net(features [..., n, f], mask [..., n]) -> scores [..., n]``.

    Args:
        n_features: the number of features f of an item.
    """

    #: Whether an item's score depends on that item alone. Then flat items ``[N, f]`` of many lists
    #: can be scored in one call; otherwise ``[n, f]`` is one list.
    per_item: bool

    #: The number of networks in an ensemble. If there are several, the network gives the scores of
    #: each member, ``[members, ..., n]``, in training, where every member has its own loss; and
    #: their mean, ``[..., n]``, in evaluation.
    members: int = 1

    #: Whether a CUDA graph can capture the training passes: they launch the same kernels for every
    #: batch of one size, never wait for the GPU, and ignore the masked items of a flat batch. Each
    #: subclass must set it itself; it is not inherited, since an override may break the promise.
    capturable: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.capturable = vars(cls).get("capturable", False)

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.n_features = check_whole("n_features", n_features)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """The scores of real items, and 0 for padding; without a mask all items are real.

        Args:
            features: ``[..., n, f]``.
            mask: ``[..., n]``, True on real items; None if all are.

        Returns:
            ``[..., n]``; from an ensemble in training, ``[members, ..., n]``.

        Raises:
            ValueError: features or mask do not have these shapes, or the mask is not boolean.
        """
        self._check_inputs(features, mask)
        parameter = next(self.parameters())
        return self.score(features.to(parameter.dtype), mask)

    def score(self, features: Features, mask: Mask | None) -> Scores:
        """:meth:`forward` on checked input.

        Args:
            features: ``[..., n, f]``, of the type of the parameters.
            mask: ``[..., n]``, True on real items; None if all are.

        Returns:
            As of :meth:`forward`.
        """
        raise TypeError(f"{type(self).__name__} does not say how it scores")

    def inputs(self, features: Features, mask: Mask | None) -> Float[Tensor, "*b n w"]:
        """The inputs of the layers: the features, then columns derived from them within the list.

        Column c is derived from feature ``c % f``. Derived columns, such as ranks, may be
        discontinuous functions of the features; :meth:`score_inputs` is continuous in its inputs,
        so explanations differentiate that part.

        Args:
            features: ``[..., n, f]``.
            mask: ``[..., n]``, True on real items; None if all are.

        Returns:
            ``[..., n, w]``; the features themselves if no columns are derived.
        """
        return features

    #: Whether :meth:`score_inputs` scores each item from its own inputs alone.
    inputs_score_alone = False

    def score_inputs(self, inputs: Float[Tensor, "*b n w"], mask: Mask | None) -> Scores:
        """The scores of inputs that :meth:`inputs` returned: the second half of :meth:`score`.

        Args:
            inputs: ``[..., n, w]``.
            mask: ``[..., n]``, True on real items; None if all are.

        Returns:
            As of :meth:`forward`.
        """
        return self.score(inputs, mask)

    def _check_inputs(self, features: Tensor, mask: Tensor | None) -> None:
        if features.dim() < 2:
            raise ValueError(
                f"features must be [..., items, features], found the shape {tuple(features.shape)}"
            )
        if features.shape[-1] != self.n_features:
            raise ValueError(
                f"the model was built for {self.n_features} features, found {features.shape[-1]}"
            )
        if mask is None:
            return
        if mask.dtype != torch.bool:
            raise ValueError(f"mask must be boolean (True = real item), found {mask.dtype}")
        if mask.shape != features.shape[:-1]:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)}, features {tuple(features.shape)}: they must "
                "agree in all but the last dimension"
            )


@dataclass(frozen=True, kw_only=True)
class Model(HasSpec):
    """A configuration of a network. ``str(model)`` is its spec; equal specs are equal models."""

    def build(self, n_features: int) -> Scorer:
        """A new network for items of this many features, with random initial weights.

        Args:
            n_features: the number of features of an item.

        Returns:
            The network.
        """
        raise TypeError(f"{type(self).__name__} does not say how it is built")


def output_layer(output: Output | None) -> nn.Module:
    """The activation after the last linear layer."""
    return nn.Identity() if output is None else ACTIVATIONS[output]()


def check_optional(option: str, value: Any, choices: Sequence[str]) -> Any:
    """Check that an option is one of the choices or None; the text ``"none"`` means None, too."""
    check_choice(option, value, (None, "none", *choices))
    return None if value == "none" else value


def check_sizes(option: str, sizes: Any) -> tuple[int, ...]:
    """Check the sizes of layers: a list, possibly empty, of whole numbers above 0."""
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise ValueError(f"{option} must be a list of sizes such as [64, 32], found {sizes!r}")
    return tuple(check_whole(f"each size in {option}", size) for size in sizes)
