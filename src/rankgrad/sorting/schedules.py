"""Schedules: a temperature that changes over training.

Wherever a relaxation takes a temperature (or ``alpha``, ``epsilon``, ``strength``, ``scale``), a
schedule may stand instead of the number. Training reports its progress, from 0 to 1, to
``loss.progress``, and the schedule gives the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from rankgrad.specs import Registry, Spec, spec_of
from rankgrad.validation import check_positive

schedules: Registry[Schedule] = Registry("schedule")

_LEAST, _MOST = 1e-30, 1e30  # scores up to 1e4 stay finite in float32


@dataclass(frozen=True)
class Schedule:
    """A positive number as a function of training progress in [0, 1].

    >>> schedules.get("linear(start=2, end=1)").at(0.5)
    1.5
    """

    name: ClassVar[str]

    def at(self, progress: float) -> float:
        """The value at this progress; beyond either end it is the end's."""
        raise TypeError(f"{type(self).__name__} does not say its value over progress")

    def __str__(self) -> str:
        return str(spec_of(self, self.name))


schedules.base_class = Schedule


@schedules.register("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The same value throughout.

    Args:
        value: above 0.

    >>> Constant(0.5).at(0.3)
    0.5
    """

    name: ClassVar[str] = "constant"
    value: float

    def __post_init__(self) -> None:
        check_positive("value", self.value)

    @override
    def at(self, progress: float) -> float:
        return self.value


@schedules.register("linear")
@dataclass(frozen=True)
class Linear(Schedule):
    """``start + progress (end - start)``.

    Args:
        start: the value at the beginning of training, above 0.
        end: the value at the end, above 0.

    >>> Linear(start=1.0, end=0.5).at(0.5)
    0.75
    """

    name: ClassVar[str] = "linear"
    start: float
    end: float

    def __post_init__(self) -> None:
        _check_range("start", self.start)
        _check_range("end", self.end)

    @override
    def at(self, progress: float) -> float:
        return self.start + _clamp(progress) * (self.end - self.start)


@schedules.register("exponential")
@dataclass(frozen=True)
class Exponential(Schedule):
    """``start (end / start)^progress``: a constant factor per step, as PiRank anneals (§4.2).

    Args:
        start: the value at the beginning of training, above 0.
        end: the value at the end, above 0.

    >>> print(Exponential(start=10.0, end=0.1), round(Exponential(10.0, 0.1).at(0.5), 6))
    exponential(start=10.0, end=0.1) 1.0
    """

    name: ClassVar[str] = "exponential"
    start: float
    end: float

    def __post_init__(self) -> None:
        _check_range("start", self.start)
        _check_range("end", self.end)

    @override
    def at(self, progress: float) -> float:
        return float(self.start * (self.end / self.start) ** _clamp(progress))


def as_temperature(option: str, value: Any) -> float | Schedule:
    """A positive number, a schedule, or the spec of one."""
    if isinstance(value, Spec) or (isinstance(value, str) and "(" in value):
        return schedules.get(value)
    if isinstance(value, Schedule):
        return value
    _check_range(option, value)
    return float(value)


def _check_range(option: str, value: Any) -> None:
    """A positive number by which scores can be multiplied or divided in float32."""
    check_positive(option, value)
    if not _LEAST <= value <= _MOST:
        raise ValueError(f"{option} must be from {_LEAST:g} to {_MOST:g}, found {value:g}")


def set_temperature(holder: object, *options: str) -> None:
    """Check temperature-like fields of a frozen object, and read schedules from their specs."""
    for option in options:
        object.__setattr__(holder, option, as_temperature(option, getattr(holder, option)))


def number(value: float | Schedule) -> float:
    """The value of a temperature; that of a schedule at its start."""
    return value.at(0.0) if isinstance(value, Schedule) else value


def _clamp(progress: float) -> float:
    return min(1.0, max(0.0, progress))
