"""Settings: everything a training run depends on besides its data, validated, as TOML and back."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from rankgrad.data.batches import Batching
from rankgrad.data.transforms import transforms
from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.models import models
from rankgrad.quoting import quote, shorten
from rankgrad.training.optimizers import learning_rates, optimizers


def none(value: Any) -> Any:
    """TOML and command lines have no None: there it is the word."""
    return None if isinstance(value, str) and value.lower() == "none" else value


Count = Annotated[int, Field(ge=1, lt=2**31)]
MaybeCount = Annotated[Count | None, BeforeValidator(none)]
MaybePositive = Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(none)]


class TomlSettings(BaseModel):
    """Settings of a training; specs of losses and metrics are kept in the form ``str`` gives."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: What two runs may differ in and still be the same.
    not_compared: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            known = type(self).model_fields
            sentences = [_sentence(found, known) for found in error.errors()]
            raise ValueError("; ".join(sentences)) from None

    @field_validator("loss", check_fields=False)
    @classmethod
    def _loss(cls, spec: str) -> str:
        loss = losses.get(spec)
        if loss.reduction == "none":
            raise ValueError(f"{spec} gives one value per list: training takes mean or sum")
        return str(loss)

    @field_validator("metric", check_fields=False)
    @classmethod
    def _metric(cls, spec: str) -> str:
        return str(metrics.get(spec))

    @field_validator("metrics", check_fields=False)
    @classmethod
    def _metrics(cls, specs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(metrics.get(spec)) for spec in specs))

    def to_toml(self) -> str:
        """The settings, every one of them, as TOML."""
        import tomli_w

        values = self.model_dump(mode="json")
        return tomli_w.dumps({k: "none" if v is None else v for k, v in values.items()})

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Settings from TOML; what is not said there is the default."""
        try:
            values = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ValueError(f"the settings are not TOML: {shorten(str(error))}") from None
        return cls(**values)

    def differences(self, other: Self) -> list[str]:
        """What differs between two settings, in words."""
        mine, theirs = (each.model_dump(exclude=set(self.not_compared)) for each in (self, other))
        different = (k for k in mine if mine[k] != theirs[k])
        return [f"{k}: {quote(mine[k])}, not {quote(theirs[k])}" for k in different]


def _sentence(error: Mapping[str, Any], names: Iterable[str]) -> str:
    """One finding of pydantic's in plain words."""
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        known = list(names)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(known)}"
        return f"there is no setting {quote(name)}. {hint}"
    if error["type"] == "missing":
        return f"the setting {name!r} is missing"
    if error["type"] == "value_error":
        return f"{name}: {error['ctx']['error']}"
    message = error["msg"].removeprefix("Input ")
    return f"{name} {message}, found {quote(error['input'])}"


MaybeRate = Annotated[Annotated[float, Field(ge=0, lt=1)] | None, BeforeValidator(none)]


class Settings(TomlSettings):
    """The settings of a training run. Specs are checked and kept in the form ``str`` gives.

    Args:
        loss: what is minimized.
        model: the network; or boosted trees, as ``lightgbm(num_leaves=15)``, for which loss,
            metrics, transforms, epochs, patience and seed count.
        metric: the validation metric that chooses the best epoch and stops training.
        metrics: further ones, logged each epoch.
        transforms: of the features, in this order, fitted on the training data.
        optimizer: ``adam``, ``adamw``, ``adagrad`` or ``sgd``, with options.
        learning_rate: at its highest.
        weight_decay: of the weights, not of biases and norms.
        schedule: of the learning rate: ``constant``, ``step(every=50, by=0.1)``, ``cosine``.
        epochs: at most; of boosted trees, how many.
        patience: stop after so many epochs without a better value of the metric; None for never.
        batching: by ``queries``, by ``documents`` (lists of like length), or each ``query``.
        batch_size: lists per step, over all devices together.
        documents: items per step, padding included, where batching is by documents.
        list_size: cut longer lists to so many items in training, drawn anew each epoch.
        clip: the largest norm of a gradient.
        average: keep a moving average of the weights with this decay per step, such as 0.99, and
            validate, choose and give that; None for the weights themselves.
        accumulate: batches per step of the optimizer.
        precision: ``32-true``, or ``bf16-mixed`` for the network's matrix products.
        seed: of everything random.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
        devices: how many processes train together.
        graphs: on a GPU, replay the passes over batches of one size as a CUDA graph, where steps
            are alike: one device, no accumulation, a fused loss with nothing scheduled.
        memory: bytes that the features of a data set may take on the device; None for half of what
            is free. Larger ones are read from the memory map all along.
        tensorboard: also log for TensorBoard, in the run folder.

    >>> settings = Settings(loss="neural_ndcg@10( temperature=1.0 )", model="comparison")
    >>> settings.loss, settings.model
    ('neural_ndcg@10', 'mlp(hidden=[5])')
    >>> Settings.from_toml(settings.to_toml()) == settings
    True
    >>> Settings(los="mse")
    Traceback (most recent call last):
    ValueError: there is no setting 'los'. Did you mean 'loss'?
    """

    #: Graphs round otherwise, which makes no other run.
    not_compared = frozenset({"graphs"})

    loss: str = "softmax"
    model: str = "tabm(hidden=[64], members=8, share=nothing, dropout=0.3, in_list=[rank, score])"
    metric: str = "ndcg@10"
    metrics: tuple[str, ...] = ("ndcg@5", "ndcg@10", "ap", "rr")
    transforms: tuple[str, ...] = ("drop_constant", "quantile(output=uniform)", "standardize")
    optimizer: str = "adamw"
    learning_rate: float = Field(default=3e-3, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    schedule: str = "constant"
    epochs: Count = 100
    patience: MaybeCount = 20
    batching: Batching = "queries"
    batch_size: Count = 32
    documents: Count = 8192
    list_size: MaybeCount = None
    clip: MaybePositive = None
    average: MaybeRate = None
    accumulate: Count = 1
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    seed: int = Field(default=0, ge=0, lt=2**63)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Count = 1
    graphs: bool = True
    memory: Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(none)] = None
    tensorboard: bool = False

    @field_validator("model")
    @classmethod
    def _model(cls, spec: str) -> str:
        return str(models.get(spec))

    @field_validator("transforms")
    @classmethod
    def _transforms(cls, specs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(transforms.get(spec)) for spec in specs)

    @field_validator("optimizer")
    @classmethod
    def _optimizer(cls, spec: str) -> str:
        return str(optimizers.get(spec))

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, spec: str) -> str:
        return str(learning_rates.get(spec))

    @property
    def logged(self) -> tuple[str, ...]:
        """All validation metrics, the one that counts first."""
        return tuple(dict.fromkeys([self.metric, *self.metrics]))
