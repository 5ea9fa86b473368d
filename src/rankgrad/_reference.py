"""What is said of each name: in ``reference.toml``, and of its options in docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

Kind = Literal["losses", "metrics", "relaxations"]
Route = Literal["permutation", "ranks"]

#: The symbols of a relaxed metric, by what it goes through.
_SYMBOLS: dict[Route, str] = {
    "permutation": "`P̂_ri` is the part of item i at rank r; without a cutoff k is n",
    "ranks": "`r̂_i` is the relaxed rank of item i; `c_i` is 1 if it is at most k, else 0, relaxed "
    "with the sharpness β (beta), and 1 without a cutoff",
}


@dataclass(frozen=True)
class NameReference:
    """What is known of a name beside its docstring.

    Attributes:
        formula: LaTeX.
        paper: where it is from, with the equation.
        cost: time and memory for a list of n items.
        use: when to choose it; of a loss of the grid, a second paragraph is about its relaxation.
        elsewhere: its names in other libraries, and how ours differs; empty for a loss of the grid
            that none of them has.
        symbols: what the letters of the formula are, as Markdown.
        title: of a metric, its name in words, and its usual abbreviations.
        meaning: of a metric, what it says, for readers who do not know it.
        permutation: of a metric, the formula over a relaxed permutation.
        ranks: of a metric, the formula over relaxed ranks.
        as_loss: of a metric, when to train on its relaxed form.
    """

    formula: str
    paper: str
    cost: str
    use: str
    elsewhere: str
    symbols: str = ""
    title: str = ""
    meaning: str = ""
    permutation: str = ""
    ranks: str = ""
    as_loss: str = ""


def entry(kind: Kind, name: str) -> NameReference | None:
    """The entry of a registered name, or None.

    Args:
        kind: ``"losses"``, ``"metrics"`` or ``"relaxations"``.
        name: without cutoff and options. A loss of the grid has none of its own: see
            :func:`cell_entry`.

    >>> entry("losses", "softmax").cost
    'O(n) time and memory.'
    """
    found = _written()[kind].get(name)
    return None if found is None else NameReference(**found)


#: Of a loss of the grid that no page of results has a figure of.
_UNMEASURED = "No page of results has it: compare it on your data (docs/tutorials/comparing.md)."


def cell_entry(
    family: str, metric: str, through: Route, lower_is_better: bool, stochastic: bool = False
) -> NameReference | None:
    """The entry of a loss of the grid, from those of its relaxation and its metric.

    Args:
        family: the relaxation.
        metric: by name.
        through: what the metric goes through by default.
        lower_is_better: of the metric; the loss is then the metric itself.
        stochastic: with Gumbel noise on the scores.

    Returns:
        None if the relaxation or the metric has no entry, or no relaxed form is written.

    >>> cell_entry("lapsum", "arp", "ranks", True).cost
    'O(n log n) time, O(n) memory.'
    """
    relaxation, measured = entry("relaxations", family), entry("metrics", metric)
    if relaxation is None or measured is None or not getattr(measured, through):
        return None
    name, value = f"{family}_{metric}", getattr(measured, through)
    elsewhere = relaxation.elsewhere if metric == "ndcg" else ""
    symbols = (_SYMBOLS[through], measured.symbols, relaxation.symbols)
    numbers = _written()["measured"].get(name, _UNMEASURED)
    use = " ".join(part for part in (measured.as_loss, numbers) if part)
    reference = NameReference(
        formula=value if lower_is_better else f"1 - {value}",
        paper=relaxation.paper,
        cost=relaxation.cost,
        use=f"{use}\n\nThe relaxation: {relaxation.use[0].lower()}{relaxation.use[1:]}",
        elsewhere=_written()["elsewhere"].get(name, elsewhere),
        symbols=". ".join(symbols),
    )
    return _with_noise(reference, name) if stochastic else reference


def _with_noise(reference: NameReference, name: str) -> NameReference:
    """The entry of the stochastic form of a loss of the grid."""
    noise = _written()["noise"]
    return replace(
        reference,
        formula=rf"{noise['formula']}, \quad L(s) = {reference.formula}",
        paper=f"{noise['paper']} {reference.paper}",
        cost=f"For each sample: {reference.cost}",
        use=f"{noise['use']}\n\nWithout noise: {reference.use}",
        elsewhere=_written()["elsewhere"].get(f"gumbel_{name}", ""),
        symbols=f"{noise['symbols']}. {reference.symbols}",
    )


def describe_options(*factories: Any) -> dict[str, str]:
    """What the docstrings of classes and functions say of each argument, as Markdown.

    Args:
        factories: the first that describes an argument counts; of a class, its bases too.

    >>> describe_options(cell_entry)["metric"]
    'by name.'
    """
    said: dict[str, str] = {}
    for factory in reversed(factories):
        for base in reversed(getattr(factory, "__mro__", (factory,))):
            said |= _arguments(base)
    return said


def _arguments(factory: Any) -> dict[str, str]:
    section = (inspect.getdoc(factory) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(section).splitlines():
        if line.startswith(" "):
            found[name] += " " + line.strip()
        else:
            name, _, text = line.partition(": ")
            found[name := name.split(" ")[0]] = text
    return {name: plain_markdown(text) for name, text in found.items()}


def plain_markdown(text: str | None) -> str:
    """The text of a docstring in one line, its roles and literals as Markdown's code."""
    return " ".join(re.sub(r":\w+:`~?", "`", text or "").replace("``", "`").split())


@cache
def _written() -> dict[str, dict[str, Any]]:
    text = resources.files("rankgrad").joinpath("reference.toml").read_text("utf-8")
    return tomllib.loads(text)
