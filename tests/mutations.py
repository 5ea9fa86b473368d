"""Damage: a flipped bit, a lost end, zeros where something was, something more."""

from __future__ import annotations

import random
from collections.abc import Iterator


def mutations(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """So many damaged forms of a file, each other than it; four of five have one bit flipped."""
    dice = random.Random(seed)
    made = 0
    while made < count:
        changed = bytearray(content)
        at = dice.randrange(len(content))
        if made % 5 < 4:
            changed[at] ^= 1 << dice.randrange(8)
        else:
            stop = at + dice.randrange(1, 40)
            changed[at:stop] = dice.choice([b"", bytes(stop - at), changed[at:stop] + b"\n"])
            if made % 2:
                del changed[at:]
        if changed != content:
            made += 1
            yield bytes(changed)
