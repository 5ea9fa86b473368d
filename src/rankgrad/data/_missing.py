"""Missing values: the texts and numbers that stand for them, and how they become NaN."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankgrad.data import _text_lines

TEXTS = ("", "?", "na", "nan", "null")  # what is missing in every file, in capitals or not
_BLOCK = 1 << 22  # values compared at a time


@dataclass(frozen=True)
class MissingValues:
    """What counts as a missing value beside empty values, ``?``, ``NA``, ``NaN`` and ``NULL``.

    >>> from rankgrad.data._missing import MissingValues
    >>> also = MissingValues.of(["-999", "unknown"])
    >>> also.numbers, "Unknown" in also, "null" in also, "0" in also
    ((-999.0,), True, True, False)
    """

    texts: frozenset[str] = frozenset(TEXTS)
    numbers: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Iterable[str | float] = ()) -> MissingValues:
        """Texts as they are in files; those that are numbers are compared as float32 numbers."""
        texts, numbers = set(TEXTS), []
        for value in values:
            text = str(value).strip().lower()
            try:
                numbers.append(_text_lines.parse_number(text))
            except ValueError:
                texts.add(text)
        return cls(frozenset(texts), tuple(number for number in numbers if number == number))

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and text.strip().lower() in self.texts

    def mark(self, features: np.ndarray[Any, Any], columns: Sequence[int] | None = None) -> int:
        """Set the numbers that are missing values to NaN, in place; how many there were.

        Args:
            features: ``[items, features]``.
            columns: which hold numbers, and not codes of categories; all, if None.
        """
        marked = 0
        if columns is not None and len(columns) < features.shape[1]:
            chosen = features[:, columns]
            marked = self.mark(chosen)
            features[:, columns] = chosen
            return marked
        height = max(1, _BLOCK // max(1, features.shape[-1]))
        for start in range(0, len(features), height) if self.numbers else ():
            block = features[start : start + height]
            missing = np.isin(block, np.array(self.numbers, block.dtype))
            block[missing] = np.nan
            marked += int(missing.sum())
        return marked
