"""CategoricalFeature: from the categories that requests name to the codes that rankers take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rankgrad.data._categories import category_codes, category_name
from rankgrad.data._dataset import Categories


@dataclass(frozen=True)
class CategoricalFeature:
    """The categories of a feature; the code of a category is its index.

    Args:
        names: the names of the categories in the training data.

    >>> from rankgrad.serving._categorical import CategoricalFeature
    >>> color = CategoricalFeature(("blue", "red"))
    >>> color.code("red"), color.code("green"), color.code(0)
    (1.0, nan, 0.0)
    >>> CategoricalFeature(("3", "7")).code(7)
    1.0
    """

    names: tuple[str, ...]

    @cached_property
    def codes(self) -> dict[str, float]:
        """The code of each category by its name."""
        return category_codes(self.names)

    @cached_property
    def are_numbers(self) -> bool:
        """Whether all names are numbers. If so, a number in a request is a name, not a code."""
        return all(map(_is_number, self.names))

    @property
    def expected(self) -> str:
        """A description of valid values, for errors."""
        if self.are_numbers:
            return "the name of a category, as a text or a number"
        return f"the name of a category, or its code from 0 to {len(self.names) - 1}"

    def code(self, value: str | float) -> float:
        """The code of a category that a request gives by its name or by its code.

        Returns:
            The code; NaN for an unknown name.

        Raises:
            ValueError: ``value`` is a number, but not a code.
        """
        if isinstance(value, str) or self.are_numbers:
            return self.codes.get(category_name(value), float("nan"))
        if not (0 <= value < len(self.names) and value == int(value)):
            raise ValueError(f"must be {self.expected}")
        return float(value)

    def codes_of(self, values: np.ndarray) -> np.ndarray:
        """The codes ``[N]`` of numbers ``[N]``, as :meth:`code` gives them, in float32.

        NaN, a missing value, stays NaN.

        Raises:
            ValueError: a number is not a code; the second argument of the error is its index.
        """
        unique, inverse = np.unique(values, return_inverse=True)
        codes = np.full(len(unique), np.nan, np.float32)
        for i, value in enumerate(unique):
            try:
                codes[i] = value if math.isnan(value) else self.code(value)
            except (ValueError, OverflowError):
                index = int((inverse == i).argmax())
                raise ValueError(f"must be {self.expected}, found {value:g}", index) from None
        return codes[inverse]

    def codes_of_texts(self, names: list[Any]) -> np.ndarray:
        """The codes ``[N]`` of names, in float32; NaN for None and for unknown names."""
        codes = [
            np.nan if name is None else self.codes.get(category_name(name), np.nan)
            for name in names
        ]
        return np.array(codes, np.float32)


def categorical_features(categories: Categories | None) -> dict[int, CategoricalFeature]:
    """The categorical features of a ranker by their columns."""
    columns = enumerate(categories or ())
    return {column: CategoricalFeature(names) for column, names in columns if names is not None}


def _is_number(name: str) -> bool:
    """Whether a name is a number as ``category_name`` writes it."""
    try:
        return category_name(float(name)) == category_name(name)
    except ValueError:
        return False
