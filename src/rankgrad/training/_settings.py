"""Settings: everything a training run depends on besides its data, validated, to and from TOML.

Names, types, defaults, help texts and panels of the help are defined here only; the options of
``rankgrad train`` and ``rankgrad compare`` are generated from them. So that ``--help`` is fast,
this module does not import PyTorch; registries are imported when a spec is validated.

:func:`for_data` changes some defaults by the training data. The effect of its rules is
measured in ``docs/results/simulated.md``.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from numbers import Integral
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from rankgrad._quoting import quote, shorten
from rankgrad._validation import DEFAULT_METRICS
from rankgrad.extras import requires

with requires("train"):
    from pydantic import (
        AfterValidator,
        BaseModel,
        BeforeValidator,
        ConfigDict,
        Field,
        ValidationError,
        field_validator,
        model_validator,
    )

if TYPE_CHECKING:
    from rankgrad.data._dataset import Dataset


def parse_none(value: Any) -> Any:
    """Turn the word ``none`` into None, which TOML and command lines do not have."""
    return None if isinstance(value, str) and value.lower() == "none" else value


def _canonical(module: str, registry: str, spec: str) -> str:
    """The canonical form of a spec: ``str`` of the object that a registry makes from it.

    Args:
        module: the module that has the registry; it is imported only now.
        registry: the name of the registry in the module.
        spec: the spec.
    """
    return str(getattr(import_module(module), registry).get(spec))


def _canonical_loss(spec: str) -> str:
    """The canonical form of a loss's spec; raises if the loss has no reduction."""
    from rankgrad.losses import losses

    loss = losses.get(spec)
    if loss.reduction == "none":
        raise ValueError(f"{spec} gives one value per list: training takes mean or sum")
    return str(loss)


# Specs, which are stored in canonical form.
LossSpec = Annotated[str, AfterValidator(_canonical_loss)]
MetricSpec = Annotated[str, AfterValidator(partial(_canonical, "rankgrad.metrics", "metrics"))]
_Model = Annotated[str, AfterValidator(partial(_canonical, "rankgrad.models", "models"))]
_OPTIMIZERS = "rankgrad.training._optimizers"
_Optimizer = Annotated[str, AfterValidator(partial(_canonical, _OPTIMIZERS, "optimizers"))]
_Schedule = Annotated[str, AfterValidator(partial(_canonical, _OPTIMIZERS, "learning_rates"))]
_Texts = tuple[str, ...]

# Numbers; those that may be None also accept the word none.
Count = Annotated[int, Field(ge=1, lt=2**31)]
MaybeCount = Annotated[Count | None, BeforeValidator(parse_none)]
MaybePositive = Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(parse_none)]
_MaybeBytes = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(parse_none)]
MaybeRate = Annotated[Annotated[float, Field(ge=0, lt=1)] | None, BeforeValidator(parse_none)]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Panel:
    """Metadata of a setting: the title of the panel of ``--help`` that its option is in."""

    title: str


# Settings by the panel of their options: ``_Task[int]`` is an int in the first of these panels.
_Task = Annotated[_T, Panel("What is learned")]
_Method = Annotated[_T, Panel("How it is learned")]
_Machine = Annotated[_T, Panel("Machine and logs")]

#: ``patience="auto"`` waits at most this many epochs for a gain, or this many trees: see
#: :func:`rankgrad.training._evaluations.is_over`.
AUTO_PATIENCE = 20


def _parse_patience(value: Any) -> Any:
    """Validate a patience, and return a whole number, ``auto`` or None."""
    value = parse_none(value)
    if value is None or value == "auto":
        return value
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or not 1 <= int(value) < 2**31:
        raise ValueError(f"a whole number of at least 1, auto or none; found {quote(value)}")
    return int(value)


_Patience = Annotated[int | Literal["auto"] | None, BeforeValidator(_parse_patience)]


def _longest_wait(patience: int | str | None) -> float:
    """A number that orders patiences: the most epochs that one waits.

    ``auto`` is just below ``AUTO_PATIENCE`` epochs, since it often waits for fewer.
    """
    if patience == "auto":
        return AUTO_PATIENCE - 0.5
    return math.inf if patience is None else float(patience)


class TomlSettings(BaseModel):
    """The base class of :class:`Settings` and, for text rankers, ``TextSettings``.

    Errors are plain sentences (``ValueError``). Settings are read from TOML and written to it, and
    :meth:`differences` compares two of them. The docstring of a field is its help text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    #: The names of the settings that :meth:`differences` ignores.
    not_compared: ClassVar[frozenset[str]] = frozenset()

    if TYPE_CHECKING:  # defined by each subclass, so that they are in place among its fields
        metric: MetricSpec
        metrics: tuple[str, ...]

    def __init__(self, /, **options: Any) -> None:  # "/": a file may have the key "self"
        try:
            super().__init__(**options)
        except ValidationError as error:
            names = list(type(self).model_fields)
            sentences = [_sentence(details, names) for details in error.errors()]
            raise ValueError("; ".join(sentences)) from None

    @field_validator("metrics", check_fields=False)
    @classmethod
    def _metrics(cls, specs: tuple[str, ...]) -> tuple[str, ...]:
        from rankgrad.metrics import metrics

        return tuple(dict.fromkeys(str(metrics.get(spec)) for spec in specs))

    @property
    def logged(self) -> tuple[str, ...]:
        """All validation metrics; first the one that chooses the best epoch."""
        return tuple(dict.fromkeys([self.metric, *self.metrics]))

    def to_toml(self) -> str:
        """The settings that apply to the model, defaults included, as TOML; None is ``"none"``.

        Returns:
            The TOML.
        """
        import tomli_w

        values = self.applicable()
        return tomli_w.dumps({k: "none" if v is None else v for k, v in values.items()})

    def applicable(self) -> dict[str, Any]:
        """The settings that apply to the model, as JSON values.

        Returns:
            The values by name.
        """
        return self.model_dump(mode="json")

    @classmethod
    def from_toml(cls, text: str, **overrides: Any) -> Self:
        """Settings from TOML; missing ones have their defaults.

        Args:
            text: the TOML.
            overrides: settings that override those of the text.

        Returns:
            The settings.

        Raises:
            ValueError: the text is not TOML, or a setting is unknown or invalid.
        """
        try:
            values = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ValueError(f"the settings are not TOML: {shorten(str(error))}") from None
        return cls(**values | overrides)

    def differences(self, other: Self) -> list[str]:
        """Each setting that differs from ``other``, such as ``epochs: 100, not 50``.

        Args:
            other: settings of the same class.

        Returns:
            The differences in words; none if the settings are equal.
        """
        mine = self.model_dump(exclude=set(self.not_compared))
        theirs = other.model_dump(exclude=set(self.not_compared))
        different = (k for k in mine if mine[k] != theirs[k])
        return [f"{k}: {quote(mine[k])}, not {quote(theirs[k])}" for k in different]


def _sentence(error: Mapping[str, Any], names: Sequence[str]) -> str:
    """One of pydantic's errors as a sentence; ``names`` are those of all settings."""
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(names)}"
        return f"there is no setting {quote(name)}. {hint}"
    if error["type"] == "missing":
        return f"the setting {name!r} is missing"
    if error["type"] == "value_error":
        return f"{name}: {error['ctx']['error']}"
    message = error["msg"].removeprefix("Input ")
    return f"{name} {message}, found {quote(error['input'])}"


#: Settings that apply to networks only, besides ``device`` and ``devices``. For boosted trees they
#: must have their defaults.
NETWORK_ONLY = (
    *("optimizer", "learning_rate", "weight_decay", "schedule", "batching", "batch_size"),
    *("documents", "list_size", "clip", "average", "accumulate", "precision", "graphs", "memory"),
)


class Settings(TomlSettings):
    """The settings of a training run. Specs are validated and stored in canonical form.

    >>> settings = Settings(loss="neural_ndcg@10( temperature=1.0 )", model="comparison")
    >>> settings.loss, settings.model
    ('neural_ndcg@10', 'mlp(hidden=[5])')
    >>> Settings.from_toml(settings.to_toml()) == settings
    True
    >>> Settings(los="mse")
    Traceback (most recent call last):
    ValueError: there is no setting 'los'. Did you mean 'loss'?
    """

    # CUDA graphs change results by rounding only.
    not_compared = frozenset({"graphs"})

    loss: _Task[LossSpec] = "softmax"
    """The loss that is minimized: see `rankgrad losses`. It is ordered_logit if neither it nor the
    model is set and there are 50,000 training items or more with grades, in lists of 20 items or
    more in the mean."""

    model: _Task[_Model] = (
        "tabm(hidden=[64], members=8, share=nothing, dropout=0.3, in_list=[rank, score])"
    )
    """The network, or boosted trees such as 'lightgbm(num_leaves=15)': see `rankgrad models`.
    Settings of the optimizer, batches and devices do not apply to trees. If it is not set, on
    50,000 training items or more it is medium, with 10 or 20 epochs of the cosine schedule, more
    weight decay, an L1 penalty of inputs and smaller batches of few lists. In lists of 20 items or
    more in the mean it has the loss ordered_logit for grades and, on 3,000 lists or more of 1,500
    items at most, two heads of attention: medium(heads=2)."""

    metric: _Task[MetricSpec] = "ndcg@10"
    """The validation metric that chooses the best epoch and stops training."""

    metrics: _Task[_Texts] = DEFAULT_METRICS
    """Further validation metrics, logged each epoch. If they are not set, they have the gain of
    metric."""

    transforms: _Task[_Texts] = ("drop_constant", "quantile(output=uniform)", "standardize")
    """Transforms of the features, applied in this order and fitted on the training data."""

    missing: _Task[_Texts] = ()
    """Values of features that count as missing, such as -999, besides empty ones, ?, NA, NaN and
    NULL."""

    categorical: _Task[_Texts] = ()
    """Categorical features, by column name or LETOR id, besides columns with few distinct texts."""

    list_size: _Task[MaybeCount] = None
    """Cut longer lists to this many items in training, sampled anew each epoch."""

    holdout: _Task[float] = Field(default=0.0, ge=0, lt=1)
    """The fraction of training lists held out for validation if there is no validation data, drawn
    by the seed; 0 for none."""

    optimizer: _Method[_Optimizer] = "adamw"
    """The optimizer: adam, adamw, adagrad or sgd, with options. adamw(l1=0.1) also has an L1
    penalty of the factors by which tabm scales its inputs, so that it ignores useless ones. If
    neither it nor model or schedule is set, 50,000 training items or more have one."""

    learning_rate: _Method[float] = Field(default=3e-3, gt=0, allow_inf_nan=False)
    """The highest learning rate."""

    weight_decay: _Method[float] = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Weight decay, which applies to weights and not to norms, encodings of features and most
    biases. If neither it nor model, optimizer or schedule is set, 50,000 training items or more
    have more, by the number of steps: 0.9 on 1,000 lists, 0.3 on 6,000."""

    schedule: _Method[_Schedule] = "constant"
    """The schedule of the learning rate: constant, 'step(every=50, by=0.1)' or cosine. If neither
    it nor model is set, it is cosine on 50,000 training items or more, and all epochs are
    trained."""

    epochs: _Method[Count] = 100
    """The number of epochs, at most; for boosted trees, the number of trees."""

    patience: _Method[_Patience] = "auto"
    """Stop after this many epochs without a better value of the metric; none for never. auto waits
    for the average of three epochs to rise by half a percent. If the last rise was at epoch e, it
    waits 2/3 e + 3 epochs, at least 60 steps and at most 20 epochs. For boosted trees it is 20."""

    batching: _Method[Literal["queries", "documents", "query"]] = "queries"
    """queries for batches of batch_size lists; documents for batches of lists of similar length,
    as many as fit into the setting documents; query for batches of one list."""

    batch_size: _Method[Count] = 32
    """Lists per batch, over all devices together. If neither it nor batching, accumulate, model or
    schedule is set, on one device, 50,000 training items or more in fewer than 2,000 lists have
    batches of 16, in fewer than 1,000 of 8, and below 500 of 4."""

    documents: _Method[Count] = 8192
    """Items per batch, padding included, if batching is by documents."""

    clip: _Method[MaybePositive] = None
    """The largest norm of the gradient; none for no clipping."""

    average: _Method[MaybeRate] = None
    """The decay per step, such as 0.99, of an exponential moving average of the weights, which is
    validated and saved in place of the weights; none for no average."""

    accumulate: _Method[Count] = 1
    """Batches per step of the optimizer."""

    seed: _Method[int] = Field(default=0, ge=0, lt=2**63)
    """The seed of everything random."""

    precision: _Machine[Literal["32-true", "bf16-mixed"]] = "32-true"
    """32-true, or bf16-mixed for the network's matrix products."""

    device: _Machine[Literal["auto", "cpu", "cuda"]] = "auto"
    """cpu, cuda, or auto for a GPU where there is one."""

    devices: _Machine[Count] = 1
    """How many processes train together, each on a GPU of its own or on the CPU."""

    graphs: _Machine[bool] = True
    """On a GPU, run forward and backward passes as CUDA graphs, one for each size of batch, if
    steps are alike: one device, no accumulation, a fused loss without schedules."""

    memory: _Machine[_MaybeBytes] = None
    """Bytes of features that may be stored on the device; none for half of its free memory. Larger
    data sets are read from the memory map."""

    tensorboard: _Machine[bool] = False
    """Also log for TensorBoard, in the run folder."""

    def extension(self, other: Settings) -> dict[str, Any]:
        """Epochs and patience, each only if these settings have more of it than ``other``.

        A run may be resumed with more epochs and patience than it was started with.

        Args:
            other: the settings a run was started with.

        Returns:
            The values by name; empty if there is no more of either.

        >>> Settings(epochs=150).extension(Settings())
        {'epochs': 150}
        """
        more: dict[str, Any] = {}
        if self.epochs > other.epochs:
            more["epochs"] = self.epochs
        if _longest_wait(self.patience) > _longest_wait(other.patience):
            more["patience"] = self.patience
        return more

    def overrides(self, other: Settings) -> dict[str, Any]:
        """The settings that differ from ``other``, with the values they have here.

        Args:
            other: the settings to be overridden.

        Returns:
            The values by name.

        >>> Settings(epochs=20, clip=1).overrides(Settings())
        {'epochs': 20, 'clip': 1.0}
        """
        others = other.model_dump()
        return {name: value for name, value in self.model_dump().items() if value != others[name]}

    @property
    def load_options(self) -> dict[str, Any]:
        """The settings that say how data are read: arguments of :func:`rankgrad.data.load`."""
        return {"missing": self.missing, "categorical": self.categorical}

    @model_validator(mode="after")
    def _follow_gain(self) -> Self:
        """Give metrics that are not set the gain of the metric; they still count as not set."""
        if "metric" in self.model_fields_set and "metrics" not in self.model_fields_set:
            from rankgrad.metrics.evaluate import default_metrics

            self.__dict__["metrics"] = default_metrics(self.metric)  # the settings are frozen
        return self

    @field_validator("missing", "categorical", mode="before")
    @classmethod
    def _texts(cls, values: Any) -> Any:
        """Turn numbers, such as -999, into texts. Pydantic refuses a value that is not a list."""
        is_list = isinstance(values, Iterable) and not isinstance(values, str)
        return tuple(map(str, values)) if is_list else values

    @field_validator("transforms")
    @classmethod
    def _transforms(cls, specs: tuple[str, ...]) -> tuple[str, ...]:
        from rankgrad.data.transforms import transforms

        return tuple(str(transforms.get(spec)) for spec in specs)

    def applicable(self) -> dict[str, Any]:
        """The settings that apply to the model, as JSON values.

        Returns:
            The values by name.

        >>> sorted({*Settings().applicable()} - {*Settings(model="lightgbm").applicable()})[:3]
        ['accumulate', 'average', 'batch_size']
        """
        from rankgrad.models import models
        from rankgrad.models.trees import TreeModel

        is_tree = isinstance(models.get(self.model), TreeModel)
        excluded = {*NETWORK_ONLY, "device", "devices"} if is_tree else set()
        return self.model_dump(mode="json", exclude=excluded)


#: From this many training items on, the default model is ``medium``.
MANY_ITEMS = 50_000
#: From this many training lists on, it has attention to similar items; on 1,000 lists that does not
#: help, on 6,000 it does (``docs/results/simulated.md``).
ATTENTION_LISTS = 3_000
#: Up to this many training lists, it trains for 20 epochs; on more lists, for 10.
MANY_LISTS = 10_000
#: If the user sets one of these, :func:`for_data` leaves the batch size as it is.
BATCH_SETTINGS = ("batch_size", "batching", "accumulate")

_HEADS = 2  # of the attention
#: Of lists with attention and the loss ordered_logit, in training. In lists of 10 items or 5, that
#: loss is no better than softmax (``docs/results/other_data.md``); attention was not tried there.
_MIN_MEAN_LENGTH = 20
_MAX_LENGTH = 1500  # of the longest list with attention, whose time grows with its square
#: On few lists batches are halved until there are so many steps, or batches of so few lists.
_MIN_STEPS, _MIN_BATCH_SIZE = 1250, 4
#: The weight decay times the learning rate, summed over all steps: a weight without a gradient
#: would shrink by the factor exp(-1.7) (``docs/results/simulated.md``).
_TOTAL_DECAY = 1.7
#: The L1 penalty times the root of the number of lists, as in the theory of the lasso, and the
#: largest one. Of those tried, 0.3 was the best on 1,000 lists, and 0.1 on 6,000.
_ROOT_L1, _MAX_L1 = 10.0, 0.3
#: Of labels with the loss ordered_logit: its time grows with the number of levels.
_MAX_GRADE = 31
_MIN_GRADED = 10_000  # a grade counts if one item of so many has it
_LEVELS = 5  # of ordered_logit unless it is given another number


def for_data(
    settings: Settings, train: Dataset, explicit: Collection[str]
) -> tuple[Settings, list[str]]:
    """Choose defaults by the training data: their size, their labels and the lengths of lists.

    The command line and :class:`rankgrad.Ranker` call it before they train. For few items the model
    is the default of :class:`Settings`; for many it is a larger network that selects its inputs,
    with a learning rate that decreases to 0 and, for graded labels, a loss of all grades; and for
    many lists, neither short nor very long, it has attention.

    Args:
        settings: the settings, with defaults for those that the user did not set.
        train: the training lists, including those to be held out.
        explicit: the names of the settings that the user set, which stay as they are. With another
            model than those chosen here, nothing changes: the rules were measured with these. With
            another schedule than cosine, epochs, patience, batch size, weight decay and the
            optimizer stay as they are; the batch size also with one of ``BATCH_SETTINGS`` or more
            than one device, and weight decay with another optimizer.

    Returns:
        The settings, and sentences that say which rules were applied.

    >>> import numpy as np
    >>> from rankgrad.data import Dataset
    >>> from rankgrad.training._settings import Settings, for_data
    >>> features, offsets = np.zeros((60000, 2), np.float32), np.arange(0, 60001, 100)
    >>> lists = Dataset(features, np.arange(60000) % 5, offsets, np.arange(600).astype(str))
    >>> settings, notes = for_data(Settings(), lists, explicit=())
    >>> settings.schedule, settings.epochs
    ('cosine', 20)
    >>> print(*notes)
    60,000 training items: model medium, loss ordered_logit, cosine schedule of 20 epochs, batch \
size 8, weight decay 0.76, optimizer adamw(l1=0.3); model=small turns this off
    >>> for_data(Settings(), lists, explicit={"model"})[1]
    []
    """
    if train.n_items < MANY_ITEMS or ("model" in explicit and not _is_medium(settings.model)):
        return settings, []
    size, off = f"{train.n_items:,} training items", "model=small turns this off"
    changes: dict[str, Any] = {}
    choices = []
    # In training lists are cut to ``list_size``; in validation and prediction they are not.
    mean_length = train.lengths.clip(max=settings.list_size or train.n_items).mean()
    has_length = mean_length >= _MIN_MEAN_LENGTH and train.lengths.max() <= _MAX_LENGTH
    if "model" not in explicit:
        has_attention = len(train) >= ATTENTION_LISTS and has_length
        changes["model"] = f"medium(heads={_HEADS})" if has_attention else "medium"
        if has_attention:
            size += f", {len(train):,} lists"
            off = f"model=medium is without attention, {off}"
        choices.append(f"model {changes['model']}")
    levels = _levels(train)
    if "loss" not in explicit and levels and mean_length >= _MIN_MEAN_LENGTH:
        changes["loss"] = (
            "ordered_logit" if levels == _LEVELS else f"ordered_logit(levels={levels})"
        )
        choices.append(f"loss {changes['loss']}")
    if "schedule" in explicit and not settings.schedule.startswith("cosine"):
        choices.append("epochs, batch size, weight decay and optimizer as without many items")
    else:
        recipe = _recipe(settings, len(train), mean_length, explicit)
        epochs = recipe.get("epochs", settings.epochs)
        choices.append(f"cosine schedule of {epochs} epoch{'s' if epochs > 1 else ''}")
        named = ("batch_size", "weight_decay", "optimizer")
        choices += [f"{name.replace('_', ' ')} {recipe[name]}" for name in named if name in recipe]
        changes |= recipe
    note = f"{size}: {', '.join(choices)}; {off}"
    return Settings(**settings.model_dump() | changes), [note]


def _is_medium(model: str) -> bool:
    """Whether a spec is that of ``medium``, with the attention of the default or without."""
    from rankgrad.models import models

    return model in {str(models.get(spec)) for spec in ("medium", f"medium(heads={_HEADS})")}


def _recipe(
    settings: Settings, n_lists: int, mean_length: float, explicit: Collection[str]
) -> dict[str, Any]:
    """Schedule, batch size, weight decay and optimizer of a larger model, but for explicit ones.

    The batch size follows from the number of lists, whatever the number of epochs is.

    Args:
        settings: as for :func:`for_data`.
        n_lists: the number of training lists.
        mean_length: their mean length.
        explicit: as for :func:`for_data`.
    """
    from rankgrad.training._processes import launched

    epochs = 20 if n_lists <= MANY_LISTS else 10
    found: dict[str, Any] = {"schedule": "cosine", "epochs": epochs, "patience": None}
    found = {name: value for name, value in found.items() if name not in explicit}
    batch_size = settings.batch_size
    is_alone = settings.devices == 1 and not launched()
    if is_alone and not set(BATCH_SETTINGS) & set(explicit):
        while batch_size > _MIN_BATCH_SIZE and epochs * n_lists < _MIN_STEPS * batch_size:
            batch_size //= 2
        if batch_size != settings.batch_size:
            found["batch_size"] = batch_size
    if "optimizer" not in explicit:
        if "weight_decay" not in explicit:
            by_items = max(1.0, settings.documents / mean_length)
            per_batch = {"queries": batch_size, "documents": by_items, "query": 1}
            n_epochs = found.get("epochs", settings.epochs)
            steps = n_epochs * n_lists / (per_batch[settings.batching] * settings.accumulate)
            found["weight_decay"] = _weight_decay(settings.learning_rate, steps)
        found["optimizer"] = f"adamw(l1={min(_MAX_L1, _ROOT_L1 / math.sqrt(n_lists)):.2g})"
    return found


def _levels(train: Dataset) -> int:
    """The number of levels of graded labels, at least ``_LEVELS``; 0 if labels are no grades.

    Grades are whole numbers up to ``_MAX_GRADE`` of which at least three, and half of those up to
    the highest one, occur, each in one item of 10,000 or more.
    """
    import numpy as np

    labels = train.labels
    if labels.max() > _MAX_GRADE or (labels % 1 != 0).any():
        return 0
    n_items = np.bincount(labels.astype(np.intp))  # of each grade
    n_grades = np.count_nonzero(_MIN_GRADED * n_items >= len(labels))
    is_graded = n_grades >= 3 and 2 * n_grades >= len(n_items)
    return max(_LEVELS, len(n_items)) if is_graded else 0


def _weight_decay(learning_rate: float, steps: float) -> float:
    """The weight decay, at most 1, by the number of steps.

    The mean learning rate under the cosine schedule is half of the highest.
    """
    return min(1, float(f"{_TOTAL_DECAY / (learning_rate / 2 * steps):.2g}"))
