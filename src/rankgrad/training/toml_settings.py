"""What all settings have in common: they are checked, written as TOML and read back."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.quoting import quote, shorten


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
