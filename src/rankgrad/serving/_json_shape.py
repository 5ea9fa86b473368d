"""JsonShape: the numbers of lists and items of a JSON body, counted before it is parsed.

``_json_requests`` refuses a body with too many of them: parsed, they would take much memory.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from rankgrad._compilation import compile_cached

# The depths of a list and of an item, in brackets and braces: {"lists": [{"items": [[...]]}]}
_LIST_DEPTH, _ITEM_DEPTH = 3, 5
_LISTS, _ITEMS, _OTHERS, _TEXTS, _BOOLEANS = range(5)  # the fields of JsonShape, in their order


class JsonShape(NamedTuple):
    """Counts of arrays, objects and values of a body.

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
        """The counts of a body; meaningless if the body is not JSON."""
        counts = np.zeros(len(cls._fields), np.int64)
        _count(np.frombuffer(body, np.uint8), counts)
        return cls(*counts.tolist())


@partial(compile_cached, nogil=True)
def _count(body: np.ndarray, counts: np.ndarray) -> None:
    """Add to ``counts``, in the order of JsonShape's fields, in one pass over the bytes.

    It takes milliseconds, and other threads run meanwhile.

    Args:
        body: ``[size]`` in uint8.
        counts: ``[5]`` in int64.
    """
    depth, position, size = 0, 0, len(body)
    while position < size:
        byte = body[position]
        if byte == ord('"'):
            position += 1
            while position < size and body[position] != ord('"'):
                position += 2 if body[position] == ord("\\") else 1
            after = position + 1
            while after < size and body[after] in (32, 9, 10, 13):  # white space
                after += 1
            is_key = after < size and body[after] == ord(":")
            if depth >= _ITEM_DEPTH and not is_key:
                counts[_TEXTS] += 1
        elif byte == ord("[") or byte == ord("{"):
            depth += 1
            if depth == _LIST_DEPTH:
                counts[_LISTS] += 1
            elif depth == _ITEM_DEPTH:
                counts[_ITEMS] += 1
            else:
                counts[_OTHERS] += 1
        elif byte == ord("]") or byte == ord("}"):
            depth -= 1
        elif byte == ord("t") or byte == ord("f"):  # outside of strings: of true or false
            counts[_BOOLEANS] += 1
        position += 1
