"""Validation of the parameters of losses, metrics, relaxations and models, and their schedules.

The constructors call the functions ``check_*``; an error names the parameter, what was found and
what is expected.

A temperature of a relaxation (or its ``alpha``, ``epsilon``, ``strength`` or ``scale``) is a number
or a schedule, :class:`Schedule`. Training sets ``loss.progress``, from 0 to 1, and the schedule
gives the value for this progress.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from rankgrad._quoting import quote
from rankgrad.specs import HasSpec, Registry, Spec

schedules: Registry[Schedule] = Registry("schedule")
#: The metrics of an evaluation for which the user names none. They are in this module because it
#: loads fast: the command line needs them for its help.
DEFAULT_METRICS = ("ndcg@5", "ndcg@10", "ap", "rr")

#: The largest size, count or rank: the product of two of them fits in 64 bits.
_LARGEST_COUNT = 2**31 - 1
#: The range of temperatures: scores of up to 1e4, multiplied or divided by a temperature in this
#: range, are finite in float32.
_SMALLEST_TEMPERATURE, _LARGEST_TEMPERATURE = 1e-30, 1e30


def check_cutoff(k: int | None) -> int | None:
    """Check a rank cutoff: None for the whole list, or a whole number of at least 1."""
    return None if k is None else check_whole("k", k)


def check_whole(option: str, value: Any, least: int = 1, most: float = _LARGEST_COUNT) -> int:
    """Check a whole number, which may be NumPy's, and return it as an int."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        expected = f"a whole number of at least {least}"
        raise ValueError(f"{option} must be {expected}, found {quote(value)}")
    if operator.index(value) > most:
        raise ValueError(f"{option} must be at most {most:,}, found {quote(value)}")
    return operator.index(value)


def check_flag(option: str, value: object) -> None:
    """Check that an option is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{option} must be true or false, found {quote(value)}")


def check_between(option: str, value: Any, low: float, high: float) -> None:
    """Check that a number lies strictly between two others."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        raise ValueError(f"{option} must lie between {low:g} and {high:g}, found {quote(value)}")


def check_choice(option: str, value: object, choices: Sequence[object]) -> None:
    """Check that a value is one of the choices of an option."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{option} must be one of {listed}; found {quote(value)}")


def check_list_sizes(option: str, sizes: Any) -> Any:
    """Check the sizes of lists ``[B]``, and return them as an array of int64."""
    import numpy as np

    array = np.asarray(sizes)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array < 1).any():
        raise ValueError(f"{option} must be the sizes of the lists, whole numbers of at least 1")
    return array.astype(np.int64)


def check_positive(option: str, value: Any) -> None:
    """Check a number above zero, such as a temperature; it may be NumPy's."""
    is_number = not isinstance(value, bool | str) and hasattr(value, "__float__")
    if not is_number or not 0 < float(value) < math.inf:
        raise ValueError(f"{option} must be a number above 0, found {quote(value)}")


def check_rate(option: str, value: Any) -> None:
    """Check a number in [0, 1), such as a dropout rate."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(
            f"{option} must be a number of at least 0 and below 1, found {quote(value)}"
        )


@dataclass(frozen=True)
class Schedule(HasSpec):
    """A positive number as a function of training progress in [0, 1].

    >>> schedules.get("linear(start=2, end=1)").at(0.5)
    1.5
    """

    def at(self, progress: float) -> float:
        """The value at this progress, which is clamped to [0, 1].

        Args:
            progress: of training, from 0 to 1.

        Returns:
            The value.
        """
        raise TypeError(f"{type(self).__name__} must implement at(progress)")


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

    value: float

    def __post_init__(self) -> None:
        check_temperature("value", self.value)

    @override
    def at(self, progress: float) -> float:
        return self.value


@dataclass(frozen=True)
class _Ramp(Schedule):
    """Base class of schedules from one value to another."""

    start: float
    end: float

    def __post_init__(self) -> None:
        check_temperature("start", self.start)
        check_temperature("end", self.end)


@schedules.register("linear")
@dataclass(frozen=True)
class Linear(_Ramp):
    """``start + progress (end - start)``.

    Args:
        start: the value at the beginning of training, above 0.
        end: the value at the end, above 0.

    >>> Linear(start=1.0, end=0.5).at(0.5)
    0.75
    """

    @override
    def at(self, progress: float) -> float:
        return self.start + _clamp(progress) * (self.end - self.start)


@schedules.register("exponential")
@dataclass(frozen=True)
class Exponential(_Ramp):
    """``start (end / start)^progress``: a constant factor per step, as PiRank anneals (§4.2).

    Args:
        start: the value at the beginning of training, above 0.
        end: the value at the end, above 0.

    >>> print(Exponential(start=10.0, end=0.1), round(Exponential(10.0, 0.1).at(0.5), 6))
    exponential(start=10.0, end=0.1) 1.0
    """

    @override
    def at(self, progress: float) -> float:
        return float(self.start * (self.end / self.start) ** _clamp(progress))


def as_temperature(option: str, value: Any) -> float | Schedule:
    """Check a temperature: a positive number, a schedule, or the spec of a schedule.

    Returns:
        The number as a float, or the schedule; the spec of a schedule is parsed.
    """
    # The spec of a schedule has parentheses. The check below refuses any other text.
    if isinstance(value, Spec) or (isinstance(value, str) and "(" in value):
        return schedules.get(value)
    if isinstance(value, Schedule):
        return value
    check_temperature(option, value)
    return float(value)


def check_temperature(option: str, value: Any) -> None:
    """Check a positive number by which scores can be multiplied or divided in float32."""
    check_positive(option, value)
    low, high = _SMALLEST_TEMPERATURE, _LARGEST_TEMPERATURE
    if not low <= value <= high:
        raise ValueError(f"{option} must be from {low:g} to {high:g}, found {value:g}")


def set_temperature(holder: object, *options: str) -> None:
    """Check temperatures among the fields of a frozen dataclass, and replace specs by schedules.

    Args:
        holder: the dataclass, which calls this in its ``__post_init__``.
        options: the names of the fields.
    """
    for option in options:
        object.__setattr__(holder, option, as_temperature(option, getattr(holder, option)))


def initial_value(value: float | Schedule) -> float:
    """The value of a temperature; for a schedule, its value at progress 0.

    In training, ``Relaxation.at(progress)`` replaces schedules by numbers before this is called.
    """
    return value.at(0.0) if isinstance(value, Schedule) else value


def _clamp(progress: float) -> float:
    return min(1.0, max(0.0, progress))
