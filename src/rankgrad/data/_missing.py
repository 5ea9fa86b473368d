"""Missing values: the texts and numbers that stand for them, and how they become NaN.

The readers of LETOR files, columnar files and stores use this module, and so does the estimator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankgrad.data import _text_lines

TEXTS = ("", "?", "na", "nan", "null")  # they mean "missing" in every file; case does not matter
_BLOCK = 1 << 22  # values compared at a time


def as_values(missing: Iterable[str | float]) -> tuple[str | float, ...]:
    """The argument ``missing`` of readers as a tuple; a single text is an error."""
    if isinstance(missing, str):
        raise ValueError(f"missing must be a list of values, such as [{missing!r}]")
    return tuple(missing)


@dataclass(frozen=True)
class MissingValues:
    """The values that count as missing: those of every file (``TEXTS``), and what the user adds.

    >>> from rankgrad.data._missing import MissingValues
    >>> missing = MissingValues.of(["-999", "unknown"])
    >>> missing.numbers, "Unknown" in missing, "-999.0" in missing, "0" in missing
    ((-999.0,), True, True, False)
    """

    texts: frozenset[str] = frozenset(TEXTS)  # in lower case
    numbers: tuple[float, ...] = ()  # compared in the dtype of the features

    @classmethod
    def of(cls, values: Iterable[str | float] = ()) -> MissingValues:
        """``TEXTS`` and these values. A text such as ``"-999"`` counts as the number it says."""
        texts, numbers = set(TEXTS), []
        for value in as_values(values):
            text = str(value).strip().lower()
            try:
                numbers.append(_text_lines.parse_number(text))
            except ValueError:
                texts.add(text)
        # NaN is missing anyway, and equal to no number.
        return cls(frozenset(texts), tuple(number for number in numbers if number == number))

    def __contains__(self, text: object) -> bool:
        """Whether a text, such as the name of a category, is a missing value."""
        if not isinstance(text, str):
            return False
        text = text.strip().lower()
        if text in self.texts or not self.numbers:
            return text in self.texts
        try:
            return _text_lines.parse_number(text) in self.numbers
        except ValueError:
            return False

    def mark(self, features: np.ndarray[Any, Any], columns: Sequence[int] | None = None) -> int:
        """Set the numbers that are missing values to NaN, in place, and return their count.

        Args:
            features: ``[N, F]``.
            columns: the indices of the columns to change, without those of categorical features,
                whose codes stay as they are; None for all columns.
        """
        if not self.numbers:
            return 0
        if columns is not None and len(columns) < features.shape[1]:
            selected = features[:, columns]
            n_marked = self.mark(selected)
            features[:, columns] = selected
            return n_marked
        n_marked, height = 0, max(1, _BLOCK // max(1, features.shape[-1]))
        for start in range(0, len(features), height):
            block = features[start : start + height]
            missing = np.isin(block, np.array(self.numbers, block.dtype))
            block[missing] = np.nan
            n_marked += int(missing.sum())
        return n_marked
