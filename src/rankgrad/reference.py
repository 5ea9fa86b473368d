"""What ``reference.toml`` says of each name: its formula, cost, use, and names elsewhere."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

Kind = Literal["losses", "metrics", "relaxations"]


@dataclass(frozen=True)
class Entry:
    """What is known of a name beside its docstring.

    Attributes:
        formula: LaTeX.
        paper: where it is from, with the equation.
        cost: time and memory for a list of n items.
        use: when to choose it.
        elsewhere: its names in other libraries, and how ours differs.
    """

    formula: str
    paper: str
    cost: str
    use: str
    elsewhere: str


def entry(kind: Kind, name: str) -> Entry | None:
    """The entry of a registered name, or None.

    Args:
        kind: ``"losses"``, ``"metrics"`` or ``"relaxations"``.
        name: without cutoff and options. A loss of the grid has none of its own: see its
            relaxation and its metric.

    >>> entry("losses", "softmax").cost
    'O(n) time and memory.'
    """
    return _entries()[kind].get(name)


@cache
def _entries() -> dict[str, dict[str, Entry]]:
    text = resources.files("rankgrad").joinpath("reference.toml").read_text("utf-8")
    return {
        kind: {name: Entry(**fields) for name, fields in entries.items()}
        for kind, entries in tomllib.loads(text).items()
    }
