"""``rankgrad losses``, ``metrics`` and ``models``: what there is, and the options of each."""

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
    *under: str,
    unlisted: Collection[str] = (),
) -> None:
    """Print all names, in a table or as JSON, or explain one name or spec."""
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
                    "cutoff": takes_cutoff(factory),
                    "options": _defaults(factory),
                }
                for each, factory in factories.items()
            ]
        )
    if name is not None:
        return _explain(registry, name)
    rows = [
        (each, _written(each, factory), _summary(factory)) for each, factory in factories.items()
    ]
    more = f"rankgrad {registry.kinds} NAME explains one."
    show_table((registry.kind, "options", "what it is"), rows, under=[*under, more])


def _explain(registry: Registry[Any], name: str) -> None:
    factory = registry.factory(name)
    out = console()
    out.print(_written(name, factory))
    out.print()
    out.print(_without_arguments(_documentation(factory)))
    for line in _advice(registry.kinds, name):
        out.print(line)
    described = _described(registry.kinds, name, factory).items()
    texts = {option: text.replace("`", "") for option, text in described}
    rows = [(each, value, texts.get(each, "")) for each, value in _defaults(factory).items()]
    if _has_cutoff(factory):
        rows.insert(0, ("@k", "", texts.get("k", "")))
    if rows:
        show_table(("option", "default", "what it is"), rows)


def _advice(kind: str, name: str) -> list[str]:
    """Its formula, paper, use, cost and names elsewhere."""
    from rankgrad._reference import Kind, cell_entry, entry
    from rankgrad.cli._formulas import plain_formula

    of: Kind = "metrics" if kind == "metrics" else "losses"
    reference = entry(of, name) if kind != "models" else None
    relaxation = ""
    if reference is None and (cell := _cell(kind, name)):
        from rankgrad.losses.relaxed import cell_route
        from rankgrad.metrics import metrics

        family, metric = cell
        lower = metrics.factory(metric).lower_is_better  # type: ignore[attr-defined]
        noise = name.startswith("gumbel_")
        reference = cell_entry(family, metric, cell_route(family, metric), lower, noise)
        sort = entry("relaxations", family)
        relaxation = f", with {plain_formula(sort.formula)}" if sort else ""
    if reference is None:
        return []  # a model, or registered by a user
    formula = plain_formula(reference.formula) + relaxation
    lines = {"Formula": formula, "Symbols": _sentence(reference.symbols), "Paper": reference.paper}
    lines |= {"Use": reference.use.replace("\n\n", "\n"), "Cost": reference.cost}
    lines |= {"Elsewhere": reference.elsewhere}
    return ["", *(f"{title}: {text}" for title, text in lines.items() if text)]


def _described(kind: str, name: str, factory: Any) -> dict[str, str]:
    """What each option is for."""
    from rankgrad._reference import describe_options

    if cell := _cell(kind, name):
        from rankgrad.losses.relaxed import cell_classes

        return describe_options(*cell_classes(*cell, stochastic=name.startswith("gumbel_")))
    return describe_options(factory)


def _cell(kind: str, name: str) -> tuple[str, str] | None:
    """The relaxation and the metric of a loss of the grid, or None."""
    from rankgrad.losses.relaxed import cell_parts

    return cell_parts(name) if kind == "losses" else None


def _sentence(text: str) -> str:
    """Markdown without its marks, ended by a stop."""
    return f"{text}.".replace("`", "") if text else ""


def _without_arguments(text: str) -> str:
    """A docstring without its arguments, which the table has, and its result."""
    return re.sub(r"\n+(?:Args|Returns):\n.*?(?=\n\S|\Z)", "", text, flags=re.DOTALL)


def _has_cutoff(factory: Any) -> bool:
    return takes_cutoff(factory) and getattr(factory, "has_cutoff", True)


def _written(name: str, factory: Any) -> str:
    """A name with its cutoff and options, as in a spec."""
    cutoff = "[@k]" if _has_cutoff(factory) else ""
    options = ", ".join(_defaults(factory))
    return f"{name}{cutoff}({options})" if options else f"{name}{cutoff}"


def _defaults(factory: Any) -> dict[str, Any]:
    """The default of each option."""
    return {name: option.default for name, option in options_of(factory).items()}


def _documentation(factory: Any) -> str:
    """A docstring up to its examples, in plain text."""
    text = inspect.getdoc(factory) or _of_cell(factory)
    return text.split(">>>")[0].rstrip().replace("``", "")


def _summary(factory: Any) -> str:
    return _documentation(factory).split("\n\n")[0].replace("\n", " ")


def _of_cell(factory: Any) -> str:
    """The documentation of the loss that a cell of the grid makes."""
    from rankgrad.losses.relaxed import GridLoss, cell_parts

    loss = factory()
    minus = "" if loss.metric.lower_is_better else "1 - "
    parts = cell_parts(loss.cell)
    family = parts[0] if parts else loss.relaxation
    noise = ", the mean over samples of Gumbel noise" if loss.relaxation.stochastic else ""
    text = f"{minus}{loss.metric} through {family}{noise}."
    docstring = inspect.getdoc(type(loss)) if type(loss) is not GridLoss else ""
    return f"{text}\n\n{docstring}" if docstring else text
