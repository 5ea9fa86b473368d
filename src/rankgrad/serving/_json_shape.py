"""JsonShape: how much a JSON body holds, counted before anything is made of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rankgrad._compilation import compile_cached

_LISTS, _ITEMS = 3, 5  # depths at which a list and an item begin: {"lists": [{"items": [[...]]}]}


class JsonShape(NamedTuple):
    """Counts of a body.

    Attributes:
        lists: arrays and objects that are where lists are.
        items: those that are where items are.
        others: all other arrays and objects.
        texts: that are values where features are.
        booleans: anywhere.
    """

    lists: int
    items: int
    others: int
    texts: int
    booleans: int

    @classmethod
    def of(cls, body: bytes) -> JsonShape:
        """The counts of a body; those of what is not JSON mean nothing."""
        found = np.zeros(len(cls._fields), np.int64)
        _count(np.frombuffer(body, np.uint8), found)
        return cls(*found.tolist())


def _count_all(body: np.ndarray, found: np.ndarray) -> None:
    """One pass over the bytes: it takes milliseconds, and other threads run meanwhile."""
    depth, at, size = 0, 0, len(body)
    while at < size:
        byte = body[at]
        if byte == ord('"'):
            at += 1
            while at < size and body[at] != ord('"'):
                at += 2 if body[at] == ord("\\") else 1
            after = at + 1
            while after < size and body[after] in (32, 9, 10, 13):
                after += 1
            is_key = after < size and body[after] == ord(":")
            if depth >= _ITEMS and not is_key:
                found[3] += 1
        elif byte == ord("[") or byte == ord("{"):
            depth += 1
            found[0 if depth == _LISTS else 1 if depth == _ITEMS else 2] += 1
        elif byte == ord("]") or byte == ord("}"):
            depth -= 1
        elif byte == ord("t") or byte == ord("f"):
            found[4] += 1
        at += 1


_count: Any = compile_cached(_count_all, nogil=True)
