"""JsonShape: how much a JSON body holds, counted before it is parsed."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from rankgrad._compilation import compile_cached

_LISTS, _ITEMS = 3, 5  # depths at which a list and an item begin: {"lists": [{"items": [[...]]}]}


class JsonShape(NamedTuple):
    """Counts of what a body holds.

    Attributes:
        lists: arrays and objects at the depth of lists.
        items: arrays and objects at the depth of items.
        others: all other arrays and objects.
        texts: strings that are values within items.
        booleans: ``true`` and ``false``, anywhere.
    """

    lists: int
    items: int
    others: int
    texts: int
    booleans: int

    @classmethod
    def of(cls, body: bytes) -> JsonShape:
        """The counts of a body. They mean nothing if it is not JSON."""
        counts = np.zeros(len(cls._fields), np.int64)
        _count(np.frombuffer(body, np.uint8), counts)
        return cls(*counts.tolist())


@partial(compile_cached, nogil=True)
def _count(body: np.ndarray, counts: np.ndarray) -> None:
    """Count in one pass over the bytes: it takes milliseconds, and other threads run meanwhile."""
    depth, position, size = 0, 0, len(body)
    while position < size:
        byte = body[position]
        if byte == ord('"'):
            position += 1
            while position < size and body[position] != ord('"'):
                position += 2 if body[position] == ord("\\") else 1
            after = position + 1
            while after < size and body[after] in (32, 9, 10, 13):
                after += 1
            is_key = after < size and body[after] == ord(":")
            if depth >= _ITEMS and not is_key:
                counts[3] += 1
        elif byte == ord("[") or byte == ord("{"):
            depth += 1
            counts[0 if depth == _LISTS else 1 if depth == _ITEMS else 2] += 1
        elif byte == ord("]") or byte == ord("}"):
            depth -= 1
        elif byte == ord("t") or byte == ord("f"):
            counts[4] += 1
        position += 1
