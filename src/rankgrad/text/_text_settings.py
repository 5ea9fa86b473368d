"""TextSettings: everything the training of a text ranker depends on besides its data."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field

from rankgrad.text._reading import Head, Pooling, Prompt, Reading
from rankgrad.training._settings import (
    Count,
    LossSpec,
    MaybeCount,
    MaybePositive,
    MetricSpec,
    Panel,
    TomlSettings,
    parse_none,
)

_T = TypeVar("_T")
# Settings by the panel of their options in ``rankgrad text train --help``. The loss, the prompt and
# the seed are in none: the command has parameters of its own for them.
_Reading = Annotated[_T, Panel("How documents are read")]
_Method = Annotated[_T, Panel("How it is learned")]
_Machine = Annotated[_T, Panel("Machine")]


class TextSettings(TomlSettings):
    """The settings of a text ranker's training. Specs are stored in their canonical form.

    ``rankgrad text train`` makes an option of each field that is in a panel, with its docstring as
    the help.

    >>> settings = TextSettings(model="bert-base-uncased", loss="neural_ndcg@10( temperature=1.0 )")
    >>> settings.loss
    'neural_ndcg@10'
    >>> TextSettings.from_toml(settings.to_toml()) == settings
    True
    >>> TextSettings(model="bert-base-uncased", los="mse")
    Traceback (most recent call last):
    ValueError: there is no setting 'los'. Did you mean 'loss'?
    """

    model_config = ConfigDict(protected_namespaces=())

    model: _Reading[str]
    """A Hugging Face folder, or a name on the hub."""

    loss: LossSpec = "softmax"
    """The loss that is minimized, over the candidates of a query: see `rankgrad losses`."""

    teacher_weight: _Method[float] = Field(default=1.0, ge=0, le=1)
    """With a teacher, the weight of the loss by its labels, from 0 to 1; the rest is that of the
    loss by the grades. 1 is training on the teacher alone."""

    teacher_loss: _Method[Annotated[LossSpec | None, BeforeValidator(parse_none)]] = None
    """With a teacher, the loss by its labels; none for the same loss as of the grades."""

    metric: _Method[MetricSpec] = "ndcg@10(gain=linear)"
    """The validation metric that chooses the best epoch."""

    metrics: _Method[tuple[str, ...]] = ("ap",)
    """Further validation metrics, logged each epoch."""

    head: _Reading[Head] = Reading.head
    """classifier, similarity, embedding or causal; auto for causal where the model is a causal
    language model, else classifier."""

    cross_attention: _Reading[float] = Field(default=Reading.cross_attention, ge=0, le=1)
    """With the head embedding, the factor of attention between the two texts."""

    prompt: Annotated[Prompt | None, BeforeValidator(parse_none)] = Reading.prompt
    """What a causal language model is asked: prefix, body, suffix, yes and no."""

    max_length: _Reading[MaybeCount] = Reading.max_length
    """Tokens per input; none for the model's limit."""

    passages: _Reading[Count] = Reading.passages
    """Inputs per document, at most."""

    document_tokens: _Reading[MaybeCount] = Reading.document_tokens
    """Tokens of a document that are read, at most; none for as many as fit."""

    pooling: _Reading[Pooling] = Reading.pooling
    """How the vectors of a document's passages become one: mean or max."""

    epochs: _Method[Count] = 4
    """The number of epochs, at most."""

    patience: _Method[MaybeCount] = None
    """Stop after this many epochs without a better value of the metric; none for never."""

    learning_rate: _Method[float] = Field(default=2e-5, gt=0)
    """The highest learning rate of the encoder."""

    head_learning_rate: _Method[float] = Field(default=1e-3, gt=0)
    """The highest learning rate of the head."""

    weight_decay: _Method[float] = Field(default=0.01, ge=0)
    """Weight decay, of weights but not of biases and norms."""

    warmup: _Method[float] = Field(default=0.1, ge=0, lt=1)
    """The fraction of all steps in which learning rates rise from 0."""

    schedule: _Method[Literal["linear", "constant"]] = "linear"
    """The schedule of the learning rates after that: linear falls to 0, constant does not."""

    lists_per_step: _Method[Count] = 4
    """Queries per step of the optimizer."""

    documents: _Method[MaybeCount] = None
    """Documents of a query that a training step takes, at most, drawn anew each epoch: relevant
    ones up to a half, at least one, or more where others are too few; none for all candidates."""

    mini_batch_size: _Machine[Count] = 64
    """Documents that have a graph at a time."""

    cache: _Machine[bool] = True
    """Gradient caching: peak memory is that of a mini-batch, for one more forward pass. Without it
    all mini-batches of a step keep their graphs."""

    clip: _Method[MaybePositive] = 1.0
    """The largest norm of the gradient; none for no clipping."""

    precision: _Machine[Literal["32-true", "bf16-mixed"]] = "32-true"
    """32-true, or bf16-mixed for the network's matrix products."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """The seed of everything random."""

    device: _Machine[Literal["auto", "cpu", "cuda"]] = "auto"
    """cpu, cuda, or auto for a GPU where there is one."""

    @property
    def reading(self) -> Reading:
        """How the ranker reads pairs."""
        return Reading(**{option.name: getattr(self, option.name) for option in fields(Reading)})
