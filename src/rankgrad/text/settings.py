"""TextSettings: everything the training of a text ranker depends on besides its data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from rankgrad.text.ranker import Head, Pooling, Reading
from rankgrad.text.scorers import Prompt
from rankgrad.training.settings import (
    Count,
    MaybeCount,
    MaybePositive,
    TomlSettings,
    none,
)

MaybeText = Annotated[str | None, BeforeValidator(none)]


class TextSettings(TomlSettings):
    """The settings of a text ranker's training. Specs are checked and kept as ``str`` gives them.

    Args:
        model: a Hugging Face folder, or a name on the hub.
        loss: what is minimized, over the candidates of a query.
        teacher_weight: of the loss by a teacher's labels, where there is a teacher; the rest is
            that of the loss by the grades. 1 is training on the teacher alone.
        teacher_loss: what is minimized by the teacher's labels; None for the same loss.
        metric: the validation metric that chooses the best epoch.
        metrics: further ones, logged each epoch.
        head: see :class:`rankgrad.text.ranker.Reading`, also for the next six.
        cross_attention: of the head ``embedding``.
        prompt: of a causal language model: ``prefix``, ``body``, ``suffix``, ``yes`` and ``no``.
        max_length: tokens per input.
        passages: inputs per document, at most.
        document_tokens: of a document that are read, at most.
        pooling: of the vectors of a document's passages.
        epochs: at most.
        patience: stop after so many epochs without a better value of the metric; None for never.
        learning_rate: of the encoder, at its highest.
        head_learning_rate: of the head, at its highest.
        weight_decay: of the weights, not of biases and norms.
        warmup: the part of all steps in which learning rates rise from 0.
        schedule: of the learning rates after that: ``linear`` falls to 0, ``constant`` does not.
        lists_per_step: queries per step of the optimizer.
        documents: of a query that a training step takes, at most, drawn anew each epoch: relevant
            ones up to a half, at least one, or more where others are too few. None for all
            candidates.
        mini_batch_size: documents that have a graph at a time.
        cache: gradient caching: peak memory is that of a mini-batch, for one more forward pass.
            Without it all mini-batches of a step keep their graphs.
        clip: the largest norm of a gradient.
        precision: ``32-true``, or ``bf16-mixed`` for the network's matrix products.
        seed: of everything random.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.

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

    model: str
    loss: str = "softmax"
    teacher_weight: float = Field(default=1.0, ge=0, le=1)
    teacher_loss: MaybeText = None
    metric: str = "ndcg@10(gain=linear)"
    metrics: tuple[str, ...] = ("ap",)
    head: Head = "auto"
    cross_attention: float = Field(default=0.0, ge=0, le=1)
    prompt: Annotated[Prompt | None, BeforeValidator(none)] = None
    max_length: MaybeCount = None
    passages: Count = 1
    document_tokens: MaybeCount = None
    pooling: Pooling = "mean"
    epochs: Count = 4
    patience: MaybeCount = None
    learning_rate: float = Field(default=2e-5, gt=0)
    head_learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    warmup: float = Field(default=0.1, ge=0, lt=1)
    schedule: Literal["linear", "constant"] = "linear"
    lists_per_step: Count = 4
    documents: MaybeCount = None
    mini_batch_size: Count = 64
    cache: bool = True
    clip: MaybePositive = 1.0
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    seed: int = Field(default=0, ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @field_validator("teacher_loss")
    @classmethod
    def _teacher_loss(cls, spec: str | None) -> str | None:
        return None if spec is None else cls._loss(spec)

    @property
    def logged(self) -> tuple[str, ...]:
        """All validation metrics, the one that counts first."""
        return tuple(dict.fromkeys([self.metric, *self.metrics]))

    @property
    def reading(self) -> Reading:
        """How the ranker reads pairs."""
        return Reading(
            max_length=self.max_length,
            passages=self.passages,
            document_tokens=self.document_tokens,
            pooling=self.pooling,
            head=self.head,
            cross_attention=self.cross_attention,
            prompt=self.prompt,
        )
