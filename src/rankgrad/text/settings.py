"""TextSettings: everything the training of a text ranker depends on besides its data."""

from __future__ import annotations

import difflib
import tomllib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.text.ranker import Head, Pooling, Reading


def _none(value: Any) -> Any:
    """TOML and command lines have no None: there it is the word."""
    return None if isinstance(value, str) and value.lower() == "none" else value


Count = Annotated[int, Field(ge=1)]
MaybeCount = Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(_none)]
MaybePositive = Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(_none)]


class TextSettings(BaseModel):
    """The settings of a text ranker's training. Specs are checked and kept as ``str`` gives them.

    Args:
        model: a Hugging Face folder, or a name on the hub.
        loss: what is minimized, over the candidates of a query.
        metric: the validation metric that chooses the best epoch.
        metrics: further ones, logged each epoch.
        head: see :class:`rankgrad.text.ranker.Reading`, also for the next four.
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

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str
    loss: str = "softmax"
    metric: str = "ndcg@10(gain=linear)"
    metrics: tuple[str, ...] = ("ap",)
    head: Head = "classifier"
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

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise ValueError("; ".join(map(_sentence, error.errors()))) from None

    @field_validator("loss")
    @classmethod
    def _loss(cls, spec: str) -> str:
        loss = losses.get(spec)
        if loss.reduction == "none":
            raise ValueError(f"{spec} gives one value per list: training takes mean or sum")
        return str(loss)

    @field_validator("metric")
    @classmethod
    def _metric(cls, spec: str) -> str:
        return str(metrics.get(spec))

    @field_validator("metrics")
    @classmethod
    def _metrics(cls, specs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(metrics.get(spec)) for spec in specs))

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
        )

    def to_toml(self) -> str:
        """The settings, every one of them, as TOML."""
        import tomli_w

        values = self.model_dump(mode="json")
        return tomli_w.dumps({k: "none" if v is None else v for k, v in values.items()})

    @classmethod
    def from_toml(cls, text: str) -> TextSettings:
        """Settings from TOML; what is not said there is the default."""
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"the settings are not TOML: {error}") from None
        return cls(**values)

    def differences(self, other: TextSettings) -> list[str]:
        """What differs between two settings, in words."""
        mine, theirs = self.model_dump(), other.model_dump()
        return [f"{k}: {mine[k]!r}, not {theirs[k]!r}" for k in mine if mine[k] != theirs[k]]


def _sentence(error: Any) -> str:
    """One finding of pydantic's in plain words."""
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        known = list(TextSettings.model_fields)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(known)}"
        return f"there is no setting {name!r}. {hint}"
    if error["type"] == "missing":
        return f"the setting {name!r} is missing"
    if error["type"] == "value_error":
        return f"{name}: {error['ctx']['error']}"
    message = error["msg"].removeprefix("Input ")
    return f"{name} {message}, found {error['input']!r}"
