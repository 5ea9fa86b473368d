"""``rankgrad losses``, ``metrics`` and ``models``: lists of names, and explanations of each.

The texts are the docstrings of the registered classes and the entries of ``reference.toml``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Annotated, Any

import typer

from rankgrad.cli._printing import console, show_json, show_table
from rankgrad.specs import Registry, options_of, takes_cutoff

__all__ = ["losses", "metrics", "models"]

_Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Explain this one.", show_default=False)
]


def losses(name: _Name = None, json: bool = False) -> None:
    """List the losses, or explain one and its options.

    \b
    Examples:
      rankgrad losses
      rankgrad losses neural_ndcg
      rankgrad losses 'neural_ndcg@10(temperature=0.5)'
      rankgrad losses --json
    """  # noqa: D301
    import rankgrad.losses
    from rankgrad.losses.relaxed import grid_losses, grid_metrics
    from rankgrad.sorting import FAMILIES

    grid = set(grid_losses())
    _show(
        rankgrad.losses.losses,
        name,
        json,
        f"and {len(grid)} of the grid [gumbel_]<relaxation>_<metric>[@k], such as neural_ndcg@10:",
        f"  relaxations  {', '.join(FAMILIES)}",
        f"  metrics      {', '.join(grid_metrics())}",
        unlisted=grid,
    )


def metrics(name: _Name = None, json: bool = False) -> None:
    """List the metrics, or explain one and its options.

    \b
    Examples:
      rankgrad metrics
      rankgrad metrics ndcg
    """  # noqa: D301
    import rankgrad.metrics

    _show(
        rankgrad.metrics.metrics,
        name,
        json,
        "By default lists without relevant items count 0, tied scores earn the mean over their "
        "orders, the gain is 2^y - 1 and an item is relevant from label 1 on; "
        "'ndcg@10(empty=1, ties=stable, gain=linear)' is otherwise.",
        "Names of trec_eval and ir_measures are understood: ndcg_cut_10 and nDCG@10 have the "
        "linear gain; P_5, P@5, map, AP, recip_rank, RR, recall_100, success_5, ...",
    )


def models(name: _Name = None, json: bool = False) -> None:
    """List the models, or explain one and its options.

    \b
    Examples:
      rankgrad models
      rankgrad models mlp
    """  # noqa: D301
    import rankgrad.models

    _show(rankgrad.models.models, name, json)


def _show(
    registry: Registry[Any],
    name: str | None,
    json: bool,
    *footer: str,
    unlisted: Collection[str] = (),
) -> None:
    """Print all names, or explain one.

    Args:
        registry: of losses, metrics or models.
        name: a name or spec to explain; None to list all names.
        json: print JSON.
        *footer: lines under the table of all names.
        unlisted: names that are left out of the table, but not of the JSON.
    """
    if name is not None and name not in registry.names():
        name = registry.parse(name).name
    names = registry.names() if name is None else [name]
    factories = {each: registry.factory(each) for each in names if json or each not in unlisted}
    if json:
        return show_json(
            [
                {
                    "name": each,
                    "summary": _summary(factory),
                    "cutoff": _has_cutoff(factory),
                    "options": _defaults(factory),
                }
                for each, factory in factories.items()
            ]
        )
    if name is not None:
        return _explain(registry, name)
    rows = [
        (each, _spec_form(each, factory), _summary(factory)) for each, factory in factories.items()
    ]
    hint = f"rankgrad {registry.kinds} NAME explains one."
    show_table((registry.kind, "options", "what it is"), rows, footer=[*footer, hint])


def _explain(registry: Registry[Any], name: str) -> None:
    """Print the documentation, the entry of ``reference.toml`` and the options of a name."""
    factory = registry.factory(name)
    out = console()
    out.print(_spec_form(name, factory))
    out.print()
    out.print(_without_arguments(_documentation(factory)))
    for line in _reference_lines(registry.kinds, name):
        out.print(line)
    options = _defaults(factory)
    descriptions = _describe_options(registry.kinds, name, factory)
    rows = [(option, default, descriptions.get(option, "")) for option, default in options.items()]
    if _has_cutoff(factory):
        rows.insert(0, ("@k", "", descriptions.get("k", "")))
    if rows:
        show_table(("option", "default", "what it is"), rows)


def _reference_lines(kinds: str, name: str) -> list[str]:
    """The formula, paper, use, cost and other names of a loss or metric, a line each."""
    from rankgrad._reference import cell_entry, entry
    from rankgrad.cli._formulas import plain_formula

    if kinds == "models":
        return []
    reference = entry("metrics" if kinds == "metrics" else "losses", name)
    relaxation_formula = ""
    if reference is None and (cell := _grid_cell(kinds, name)):
        from rankgrad.losses.relaxed import cell_route
        from rankgrad.metrics import metrics

        family, metric = cell
        lower_is_better = metrics.factory(metric).lower_is_better  # type: ignore[attr-defined]
        noise = name.startswith("gumbel_")
        route = cell_route(family, metric)
        reference = cell_entry(family, metric, route, lower_is_better, noise)
        relaxation = entry("relaxations", family)
        if relaxation is not None:
            relaxation_formula = f", with {plain_formula(relaxation.formula)}"
    if reference is None:
        return []  # a user's program registered it
    lines = {
        "Formula": plain_formula(reference.formula) + relaxation_formula,
        "Symbols": _sentence(reference.symbols),
        "Paper": reference.paper,
        "Use": reference.use.replace("\n\n", "\n"),
        "Cost": reference.cost,
        "Elsewhere": reference.elsewhere,
    }
    return ["", *(f"{title}: {text}" for title, text in lines.items() if text)]


def _describe_options(kinds: str, name: str, factory: Any) -> dict[str, str]:
    """What the docstrings say about each option, in plain text."""
    from rankgrad._reference import describe_options
    from rankgrad.losses.relaxed import cell_classes

    cell = _grid_cell(kinds, name)
    classes = cell_classes(*cell, stochastic=name.startswith("gumbel_")) if cell else [factory]
    return {option: text.replace("`", "") for option, text in describe_options(*classes).items()}


def _grid_cell(kinds: str, name: str) -> tuple[str, str] | None:
    """The names of the relaxation and the metric of a loss of the grid; None for anything else."""
    from rankgrad.losses.relaxed import cell_parts

    return cell_parts(name) if kinds == "losses" else None


def _sentence(text: str) -> str:
    """Markdown as plain text that ends with a period."""
    return f"{text}.".replace("`", "") if text else ""


def _without_arguments(text: str) -> str:
    """A docstring without its sections of arguments, which the table shows, and of the result."""
    return re.sub(r"\n+(?:Args|Returns):\n.*?(?=\n\S|\Z)", "", text, flags=re.DOTALL)


def _has_cutoff(factory: Any) -> bool:
    """Whether a spec may have ``@k``: metrics with ``has_cutoff = False`` take k, but refuse it."""
    return takes_cutoff(factory) and getattr(factory, "has_cutoff", True)


def _spec_form(name: str, factory: Any) -> str:
    """The name with its cutoff and the names of its options, as in a spec."""
    cutoff = "[@k]" if _has_cutoff(factory) else ""
    options = ", ".join(_defaults(factory))
    return f"{name}{cutoff}({options})" if options else f"{name}{cutoff}"


def _defaults(factory: Any) -> dict[str, Any]:
    """The default of each option."""
    return {name: option.default for name, option in options_of(factory).items()}


def _documentation(factory: Any) -> str:
    """A docstring up to its examples, in plain text."""
    text = inspect.getdoc(factory) or _document_grid_loss(factory)
    return text.split(">>>")[0].rstrip().replace("``", "")


def _summary(factory: Any) -> str:
    """The first paragraph of the documentation, in one line."""
    return _documentation(factory).split("\n\n")[0].replace("\n", " ")


def _document_grid_loss(factory: Any) -> str:
    """The documentation of a loss of the grid, whose factory has no docstring."""
    from rankgrad.losses.relaxed import GridLoss, cell_parts

    loss = factory()
    one_minus = "" if loss.metric.lower_is_better else "1 - "
    parts = cell_parts(loss.cell)
    family = parts[0] if parts else loss.relaxation
    noise = ", the mean over samples of Gumbel noise" if loss.relaxation.stochastic else ""
    text = f"{one_minus}{loss.metric} through {family}{noise}."
    docstring = inspect.getdoc(type(loss)) if type(loss) is not GridLoss else ""
    return f"{text}\n\n{docstring}" if docstring else text
