"""Reference texts of losses, metrics and relaxations, for ``rankgrad losses NAME`` and the docs.

Formulas, papers, costs and advice are in ``reference.toml``; the descriptions of options are in the
docstrings of the classes. Losses of the grid, named ``relaxation_metric`` (such as ``lapsum_arp``),
have no entries of their own: :func:`cell_entry` joins those of the relaxation and the metric.
"""

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
Route = Literal["permutation", "ranks"]  # what a metric is relaxed through

#: The symbols of a relaxed metric, by the kind of relaxation: a permutation or ranks.
_SYMBOLS: dict[Route, str] = {
    "permutation": "`P̂_ri` is the part of item i at rank r; without a cutoff k is n",
    "ranks": "`r̂_i` is the relaxed rank of item i; `c_i` is 1 if it is at most k, else 0, relaxed "
    "with the sharpness β (beta), and 1 without a cutoff",
}


@dataclass(frozen=True)
class NameReference:
    """The reference text of one name.

    Attributes:
        formula: LaTeX.
        paper: the paper that defines it, with the equation.
        cost: time and memory for a list of n items.
        use: when to choose it; for a loss of the grid, a second paragraph is about its relaxation.
        elsewhere: its names in other libraries, and how ours differs; empty for a loss of the grid
            that no other library has.
        symbols: what the letters of the formula mean, as Markdown.
        title: metrics only: the name in words, and its usual abbreviations.
        meaning: metrics only: what the metric says, for readers who do not know it.
        permutation: metrics only: the formula over a relaxed permutation.
        ranks: metrics only: the formula over relaxed ranks.
        as_loss: metrics only: when to train on the relaxed metric.
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
        name: the name, without cutoff and options. For a loss of the grid see :func:`cell_entry`.

    >>> entry("losses", "softmax").cost
    'O(n) time and memory.'
    """
    fields = _load_toml()[kind].get(name)
    return None if fields is None else NameReference(**fields)


#: The advice for losses of the grid that are on no page of results.
_UNMEASURED = "No page of results has it: compare it on your data (docs/tutorials/comparing.md)."


def cell_entry(
    family: str, metric: str, through: Route, lower_is_better: bool, stochastic: bool = False
) -> NameReference | None:
    """The entry of a loss of the grid, from those of its relaxation and its metric.

    Args:
        family: the name of the relaxation.
        metric: the name of the metric.
        through: whether the metric is relaxed through a permutation or through ranks.
        lower_is_better: whether lower values of the metric are better; if so, the loss is the
            metric itself, else 1 less the metric.
        stochastic: whether Gumbel noise is added to the scores.

    Returns:
        None if the relaxation or the metric has no entry, or the metric has no such formula.

    >>> cell_entry("lapsum", "arp", "ranks", True).cost
    'O(n log n) time, O(n) memory.'
    """
    relaxation, metric_entry = entry("relaxations", family), entry("metrics", metric)
    if relaxation is None or metric_entry is None or not getattr(metric_entry, through):
        return None
    name, relaxed_metric = f"{family}_{metric}", getattr(metric_entry, through)  # a formula
    elsewhere = relaxation.elsewhere if metric == "ndcg" else ""
    symbols = (_SYMBOLS[through], metric_entry.symbols, relaxation.symbols)
    measured = _load_toml()["measured"].get(name, _UNMEASURED)
    use = " ".join(part for part in (metric_entry.as_loss, measured) if part)
    reference = NameReference(
        formula=relaxed_metric if lower_is_better else f"1 - {relaxed_metric}",
        paper=relaxation.paper,
        cost=relaxation.cost,
        use=f"{use}\n\nThe relaxation: {relaxation.use[0].lower()}{relaxation.use[1:]}",
        elsewhere=_load_toml()["elsewhere"].get(name, elsewhere),
        symbols=". ".join(symbols),
    )
    return _with_noise(reference, name) if stochastic else reference


def _with_noise(reference: NameReference, name: str) -> NameReference:
    """The entry of the stochastic form of a loss of the grid."""
    noise = _load_toml()["noise"]
    return replace(
        reference,
        formula=rf"{noise['formula']}, \quad L(s) = {reference.formula}",
        paper=f"{noise['paper']} {reference.paper}",
        cost=f"For each sample: {reference.cost}",
        use=f"{noise['use']}\n\nWithout noise: {reference.use}",
        elsewhere=_load_toml()["elsewhere"].get(f"gumbel_{name}", ""),
        symbols=f"{noise['symbols']}. {reference.symbols}",
    )


def describe_options(*factories: Any) -> dict[str, str]:
    """The descriptions of arguments in the docstrings of classes and functions, as Markdown.

    Args:
        factories: classes, which inherit descriptions from their bases, and functions. Where
            several of them describe an argument, the first counts.

    >>> describe_options(cell_entry)["metric"]
    'the name of the metric.'
    """
    descriptions: dict[str, str] = {}
    for factory in reversed(factories):
        for base in reversed(getattr(factory, "__mro__", (factory,))):
            descriptions |= _own_descriptions(base)
    return descriptions


def _own_descriptions(factory: Any) -> dict[str, str]:
    """The descriptions in the section ``Args`` of one docstring, by argument."""
    section = (inspect.getdoc(factory) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    texts: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(section).splitlines():
        if line.startswith(" "):
            texts[name] += " " + line.strip()
        else:
            heading, _, text = line.partition(": ")
            name = heading.split(" ")[0]  # without a type in parentheses
            texts[name] = text
    return {name: plain_markdown(text) for name, text in texts.items()}


def plain_markdown(text: str | None) -> str:
    """The text of a docstring as Markdown in one line; roles and literals become code."""
    return " ".join(re.sub(r":\w+:`~?", "`", text or "").replace("``", "`").split())


@cache
def _load_toml() -> dict[str, dict[str, Any]]:
    text = resources.files("rankgrad").joinpath("reference.toml").read_text("utf-8")
    return tomllib.loads(text)
