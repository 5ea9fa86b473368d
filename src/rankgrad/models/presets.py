"""The default networks and those of the papers, by name.

A preset returns a plain configuration, whose spec lists its options, so a saved run does not depend
on the preset's name. Where a paper does not state an option, the docstring says so and names the
value we chose.
"""

from __future__ import annotations

from rankgrad.models._base import Output, models
from rankgrad.models.context_aware import ContextAware
from rankgrad.models.mlp import MLP
from rankgrad.models.tabm import TabM

__all__ = [
    "comparison",
    "lambdaloss",
    "large",
    "medium",
    "neuralndcg_istella",
    "neuralndcg_web30k",
    "pirank",
    "small",
    "smoothi",
]


@models.register("small")
def small() -> TabM:
    """The default for few items: eight perceptrons of 64 hidden units.

    They take in each feature, its rank and its standardized value within the list. Chosen on MQ2008
    (``docs/results/recipe.md``).

    >>> print(models.get("small"))
    tabm(hidden=[64], members=8, share=nothing, dropout=0.3, in_list=[rank, score])
    """
    return TabM(hidden=(64,), members=8, share="nothing", dropout=0.3, in_list=("rank", "score"))


@models.register("medium")
def medium(*, heads: int = 0) -> TabM:
    """The default for many items: one perceptron of 256 and 128 hidden units.

    It also takes in ties within the list and a periodic encoding of the features, and scales its
    inputs by factors that learn fast, as the encoding does. With two heads of attention to similar
    items, ``medium(heads=2)``, it is the default for many lists. As the default it is trained with
    more weight decay than other models, an L1 penalty of inputs (``adamw(l1=...)``) and, on few
    lists, smaller batches. Chosen on simulated data, as ``large`` was
    (``docs/results/simulated.md``).

    Args:
        heads: the number of heads of attention to similar items of the list; 0 for none. Time then
            grows with the square of the list's length.

    >>> print(models.get("medium"))
    tabm(hidden=[256, 128], members=1, dropout=0.1, in_list=[rank, score, ties], periodic=8, \
scale_rate=6.0, encoding_rate=6.0)
    """
    return TabM(
        hidden=(256, 128),
        members=1,
        dropout=0.1,
        in_list=("rank", "score", "ties"),
        heads=heads,
        periodic=8,
        scale_rate=6.0,
        encoding_rate=6.0,
    )


@models.register("large")
def large(*, heads: int = 0) -> TabM:
    """Sixteen perceptrons of 512 and 256 hidden units that share weights, for a GPU.

    They take in what ``medium`` does. Without an L1 penalty ``large`` is ahead of ``medium``, at
    several times the price; ``medium`` with the penalty of the default is ahead of ``large``
    without one (``docs/results/simulated.md``). ``large`` with a penalty was not tried.

    Args:
        heads: the number of heads of attention to similar items of the list; 0 for none.

    >>> print(models.get("large"))
    tabm(hidden=[512, 256], activation=silu, dropout=0.2, in_list=[rank, score, ties], periodic=8, \
scale_rate=6.0)
    """
    return TabM(
        hidden=(512, 256),
        members=16,
        activation="silu",
        dropout=0.2,
        in_list=("rank", "score", "ties"),
        heads=heads,
        periodic=8,
        scale_rate=6.0,
    )


@models.register("neuralndcg_web30k")
def neuralndcg_web30k(*, output: Output | None = "tanh") -> ContextAware:
    """The context-aware ranker of the NeuralNDCG paper on WEB30K (§5.2).

    Two blocks of one head, hidden dimension 384, a first layer of 96. The scores pass through tanh
    for NeuralNDCG only; for every other loss take ``neuralndcg_web30k(output=none)``. The paper
    does not state dropout; 0.1 is that of the configuration the authors published.

    Args:
        output: the function that the scores pass through; None for none.

    Returns:
        The model; its ``build(n_features)`` makes the network.

    >>> print(models.get("neuralndcg_web30k"))
    context_aware(output=tanh)
    """
    return ContextAware(fc=(96,), blocks=2, heads=1, ff=384, dropout=0.1, output=output)


@models.register("neuralndcg_istella")
def neuralndcg_istella(*, output: Output | None = "tanh") -> ContextAware:
    """The context-aware ranker of the NeuralNDCG paper on Istella (§5.2).

    It is ``neuralndcg_web30k`` with a first layer of 128.

    Args:
        output: the function that the scores pass through; None for none.

    Returns:
        The model; its ``build(n_features)`` makes the network.

    >>> print(models.get("neuralndcg_istella"))
    context_aware(fc=[128], output=tanh)
    """
    return ContextAware(fc=(128,), blocks=2, heads=1, ff=384, dropout=0.1, output=output)


@models.register("lambdaloss")
def lambdaloss() -> MLP:
    """The network of the LambdaLoss@K paper (§6).

    Hidden layers 1024, 512 and 256 with dropout 0.5, 0.5 and 0.8, and batch normalization with
    momentum 0.999 in TensorFlow's sense. The paper states neither the activation nor the position
    of the normalization; ReLU, normalization before it and on the input are those of the standard
    network of TF-Ranking, which the paper trains with. We read 0.8 as the fraction dropped.

    Returns:
        The model; its ``build(n_features)`` makes the network.

    >>> print(models.get("lambdaloss"))
    mlp(hidden=[1024, 512, 256], dropout=[0.5, 0.5, 0.8], batch_norm=true, input_norm=true, \
norm_decay=0.999)
    """
    return MLP(
        hidden=(1024, 512, 256),
        dropout=(0.5, 0.5, 0.8),
        batch_norm=True,
        input_norm=True,
        norm_decay=0.999,
    )


@models.register("smoothi")
def smoothi() -> MLP:
    """The network of the SmoothI paper's learning-to-rank experiments.

    The input is batch-normalized; one hidden layer of 1024 with ReLU, batch-normalized after the
    activation; a linear output. The paper does not state the decay of the statistics; we use the
    default.

    Returns:
        The model; its ``build(n_features)`` makes the network.

    >>> print(models.get("smoothi"))
    mlp(hidden=[1024], batch_norm=after, input_norm=true)
    """
    return MLP(hidden=(1024,), batch_norm="after", input_norm=True)


@models.register("comparison")
def comparison() -> MLP:
    """The network of the comparison of objective functions (§4.2.1): one hidden layer of 5.

    On MQ2008 that is 46-5-1. The paper does not state the activation; we use ReLU.

    Returns:
        The model; its ``build(n_features)`` makes the network.

    >>> print(models.get("comparison"))
    mlp(hidden=[5])
    """
    return MLP(hidden=(5,))


@models.register("pirank")
def pirank() -> MLP:
    """The network of the PiRank paper (§4.1).

    The paper states a fully connected network of 3 layers with ReLU and leaves the rest to an
    appendix. Sizes 1024, 512 and 256, batch normalization of the input and before each activation,
    and dropout of 0.3 before the output are those of the code and the commands the authors
    published; so is the decay of 0.99, TensorFlow's default.

    Returns:
        The model; its ``build(n_features)`` makes the network.

    >>> print(models.get("pirank"))
    mlp(hidden=[1024, 512, 256], dropout=[0.0, 0.0, 0.3], batch_norm=true, input_norm=true, \
norm_decay=0.99)
    """
    return MLP(
        hidden=(1024, 512, 256),
        dropout=(0.0, 0.0, 0.3),
        batch_norm=True,
        input_norm=True,
        norm_decay=0.99,
    )
