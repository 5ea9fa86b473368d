"""``rankgrad losses``, ``metrics`` and ``models``: list the names of a registry, or explain one.

The texts are the docstrings of the registered classes and functions (the factories), and for losses
and metrics also the entries of ``reference.toml``. A loss of the grid, such as ``neural_ndcg``, has
no texts of its own: they are joined from those of its relaxation and its metric.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Annotated, Any

import typer

import rankgrad
from rankgrad._reference import NameReference, cell_entry, describe_options, entry
from rankgrad.cli._formulas import plain_formula
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
        hidden=grid,
    )


def metrics(name: _Name = None, json: bool = False) -> None:
    """List the metrics, or explain one and its options.

    \b
    Examples:
      rankgrad metrics
      rankgrad metrics ndcg
    """  # noqa: D301
    _show(
        rankgrad.metrics.metrics,
        name,
        json,
        "By default lists without relevant items count 0, tied scores earn the mean over their "
        "orders, the gain is 2^y - 1 and an item is relevant from label 1 on. Options change this: "
        "'ndcg@10(empty=1, ties=stable, gain=linear)'.",
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
    _show(rankgrad.models.models, name, json)


def _show(
    registry: Registry[Any],
    spec: str | None,
    json: bool,
    *footer: str,
    hidden: Collection[str] = (),
) -> None:
    """Print all names, or explain one.

    Args:
        registry: of losses, metrics or models.
        spec: what to explain, a name or a spec; None to list all names. Its cutoff and options
            count only for the model that it stands for.
        json: print JSON, which has less: no formulas, and no descriptions of options.
        *footer: lines under the table of all names.
        hidden: names that are left out of the table, but not of the JSON.
    """
    names = registry.names() if spec is None else [registry.parse(spec).name]
    factories = {each: registry.factory(each) for each in names if json or each not in hidden}
    if json:
        entries = [
            {
                "name": each,
                "summary": _summary(factory),
                "cutoff": _has_cutoff(factory),
                "options": _defaults(factory),
            }
            for each, factory in factories.items()
        ]
        show_json(entries)
    elif spec is not None:
        _explain(registry, spec)
    else:
        rows = [
            (each, _spec_form(each, factory), _summary(factory))
            for each, factory in factories.items()
        ]
        hint = f"rankgrad {registry.kinds} NAME explains one."
        show_table((registry.kind, "options", "what it is"), rows, footer=[*footer, hint])


def _explain(registry: Registry[Any], spec: str) -> None:
    """Print the docstring, the entry of ``reference.toml`` and the options of a spec's name."""
    name = registry.parse(spec).name
    factory, reference_lines = registry.factory(name), _reference_lines(registry, name, spec)
    out = console()
    out.print(_spec_form(name, factory))
    out.print()
    out.print(_without_arguments(_documentation(factory)))
    for line in reference_lines:
        out.print(line)
    descriptions = _describe_options(registry, name)
    rows = [
        (option, default, descriptions.get(option, ""))
        for option, default in _defaults(factory).items()
    ]
    if _has_cutoff(factory):
        rows.insert(0, ("@k", "", descriptions.get("k", "")))
    if rows:
        show_table(("option", "default", "what it is"), rows)


def _reference_lines(registry: Registry[Any], name: str, spec: str) -> list[str]:
    """The entry of a loss or metric in ``reference.toml``, a line for each field.

    For a preset of models it is the spec that it stands for. There are no lines for other models,
    nor for names that a user's program registered.
    """
    if registry.kind == "model":
        full = str(registry.get(spec))
        return ["", f"It stands for: {full}"] if full.partition("(")[0] != name else []
    cell = _grid_cell(registry, name)
    if cell:
        reference = _cell_reference(name, *cell)
    else:
        reference = entry("metrics" if registry.kind == "metric" else "losses", name)
    if reference is None:
        return []
    formula = plain_formula(reference.formula)
    if cell and (relaxation := entry("relaxations", cell[0])):
        formula += f", with {plain_formula(relaxation.formula)}"
    lines = {
        "Formula": formula,
        "Symbols": reference.symbols and f"{reference.symbols}.",
        "Paper": reference.paper,
        "Use": reference.use.replace("\n\n", "\n"),
        "Cost": reference.cost,
        "Elsewhere": reference.elsewhere,
    }
    return ["", *(f"{title}: {_plain(text)}" for title, text in lines.items() if text)]


def _cell_reference(name: str, family: str, metric: str) -> NameReference | None:
    """The entry of a loss of the grid, joined from those of its relaxation and its metric."""
    from rankgrad.losses.relaxed import cell_route
    from rankgrad.metrics import metrics

    lower_is_better = metrics.factory(metric).lower_is_better  # type: ignore[attr-defined]
    route = cell_route(family, metric)
    return cell_entry(family, metric, route, lower_is_better, name.startswith("gumbel_"))


def _describe_options(registry: Registry[Any], name: str) -> dict[str, str]:
    """What the docstrings say about each option and the cutoff ``k``, in plain text."""
    from rankgrad.losses.relaxed import cell_classes

    if cell := _grid_cell(registry, name):
        factories = cell_classes(*cell, stochastic=name.startswith("gumbel_"))
    else:
        factories = [registry.factory(name)]
    return {option: _plain(text) for option, text in describe_options(*factories).items()}


def _grid_cell(registry: Registry[Any], name: str) -> tuple[str, str] | None:
    """The names of the relaxation and the metric of a loss of the grid; None for anything else."""
    from rankgrad.losses.relaxed import cell_parts

    return cell_parts(name) if registry.kind == "loss" else None


def _plain(text: str) -> str:
    """A text without the marks of code: backticks and roles such as ``:class:``."""
    return re.sub(r"(:\w+:)?`+~?", "", text)


def _without_arguments(text: str) -> str:
    """A docstring without the sections Args, which the table of options shows, and Returns."""
    return re.sub(r"\n+(?:Args|Returns):\n.*?(?=\n\S|\Z)", "", text, flags=re.DOTALL)


def _has_cutoff(factory: Any) -> bool:
    """Whether a spec may have ``@k``.

    Metrics with ``has_cutoff = False`` have the parameter k, too, but accept only None.
    """
    return takes_cutoff(factory) and getattr(factory, "has_cutoff", True)


def _spec_form(name: str, factory: Any) -> str:
    """The name with its cutoff and its options: ``ndcg[@k](empty, ties, gain)``."""
    cutoff = "[@k]" if _has_cutoff(factory) else ""
    options = ", ".join(_defaults(factory))
    return f"{name}{cutoff}({options})" if options else f"{name}{cutoff}"


def _defaults(factory: Any) -> dict[str, Any]:
    """The default of each option."""
    return {name: option.default for name, option in options_of(factory).items()}


def _documentation(factory: Any) -> str:
    """A docstring up to its examples, in plain text."""
    text = inspect.getdoc(factory) or _document_grid_loss(factory)
    return _plain(text.split(">>>")[0].rstrip())


def _summary(factory: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    return _documentation(factory).split("\n\n")[0].replace("\n", " ")


def _document_grid_loss(factory: Any) -> str:
    """A docstring for a loss of the grid, whose factory has none.

    If the loss is of a class with a docstring of its own, such as NeuralNDCG, that is added.
    """
    from rankgrad.losses.relaxed import GridLoss, cell_parts

    loss = factory()
    one_minus = "" if loss.metric.lower_is_better else "1 - "
    parts = cell_parts(loss.cell)
    family = parts[0] if parts else loss.relaxation
    noise = ", the mean over samples of Gumbel noise" if loss.relaxation.stochastic else ""
    text = f"{one_minus}{loss.metric} through {family}{noise}."
    docstring = inspect.getdoc(type(loss)) if type(loss) is not GridLoss else ""
    return f"{text}\n\n{docstring}" if docstring else text
