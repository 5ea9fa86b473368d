"""The reference: a page for each loss, metric and relaxation, from registries and docstrings.

The pages of commands, specs and settings are made by ``command_pages.py`` and ``grammar_pages.py``;
those of Python modules by mkdocstrings.
"""

from __future__ import annotations

import ast
import html
import importlib.util
import inspect
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import plots
from command_pages import write_commands
from docstrings import fence_examples
from grammar_pages import write_grammar

import rankgrad.losses
import rankgrad.metrics
from rankgrad._reference import Kind, NameReference, cell_entry, describe_options, entry
from rankgrad.losses.lambdaloss import LambdaPairs
from rankgrad.losses.relaxed import cell_classes, cell_route, grid_metrics
from rankgrad.sorting import FAMILIES
from rankgrad.specs import Registry

LOSSES = rankgrad.losses.losses
METRICS = rankgrad.metrics.metrics

#: Modules with a public interface.
_MODULES = (
    *("rankgrad", "rankgrad.losses", "rankgrad.metrics", "rankgrad.sorting", "rankgrad.models"),
    *("rankgrad.data", "rankgrad.training", "rankgrad.results", "rankgrad.report"),
    *("rankgrad.significance", "rankgrad.explanations", "rankgrad.text", "rankgrad.kernels"),
    *("rankgrad.export", "rankgrad.integrations.lightgbm", "rankgrad.integrations.xgboost"),
    "rankgrad.integrations.sentence_transformers",
    *("rankgrad.integrations.transformers", "rankgrad.integrations.torchmetrics"),
    "rankgrad.integrations.pyterrier",
)

#: The modules that get a page. An integration needs the package that it is for.
API = [
    module
    for module in _MODULES
    if not module.startswith("rankgrad.integrations.")
    or importlib.util.find_spec(module.rpartition(".")[2])
]

CONTENT = Path(__file__).resolve().parents[2] / "docs"

Nav = list[dict[str, Any]]

#: For losses of the grid that no other library has.
_NOWHERE = "None of allRank, rax, TF-Ranking, sentence-transformers and LightGBM has this loss."
_JUMPS = "It jumps where ranks change: weights of pairs are those of the current ranks."
_RETURNED = "A scalar comes back, or one value per list with `reduction=none`."


def write_reference(folder: Path, plots: bool = True) -> Nav:
    """Write all generated pages.

    Args:
        folder: the folder of the reference.
        plots: whether to draw each loss and its gradient.

    Returns:
        The entries of the site's navigation for them.
    """
    losses = [name for name in LOSSES.names() if name not in _cells()]
    pages: dict[str, dict[str, str]] = {"losses": {}, "relaxations": {}, "metrics": {}}
    for name in losses:
        pages["losses"][name] = _page_of_loss(name, plots)
    for family in FAMILIES:
        pages["relaxations"][family] = _page_of_relaxation(family, plots)
        for metric in grid_metrics(family):
            for noise in (False, True):
                name = f"{'gumbel_' if noise else ''}{family}_{metric}"
                pages["losses"][name] = _page_of_cell(family, metric, plots, noise)
    for name in METRICS.names():
        pages["metrics"][name] = _page_of_metric(name, plots)
    nav: Nav = []
    for kind, texts in pages.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / kind / f"{name}.md").write_text(text)
        (folder / kind / "index.md").write_text(_index(kind, losses))
        names = losses if kind == "losses" else list(texts)
        entries: list[Any] = [f"reference/{kind}/index.md"]
        entries += [{name: f"reference/{kind}/{name}.md"} for name in names]
        if kind == "losses":
            entries += [*_grid_navigation(""), {"Gumbel forms": _grid_navigation("gumbel_")}]
        nav.append({kind.capitalize(): entries})
    return [
        *nav,
        *write_grammar(folder),
        {"Command line": write_commands(folder / "cli")},
        {"Python": _write_api(folder / "api")},
    ]


def _grid_navigation(prefix: str) -> Nav:
    """Entries of the navigation for losses of the grid, one group for each relaxation."""
    return [
        {
            f"{prefix}{family}_": [
                {name: f"reference/losses/{name}.md"}
                for metric in grid_metrics(family)
                for name in (f"{prefix}{family}_{metric}",)
            ]
        }
        for family in FAMILIES
    ]


def _write_api(folder: Path) -> list[Any]:
    """Write a page for each public module; mkdocstrings fills in the docstrings of its names."""
    folder.mkdir(parents=True, exist_ok=True)
    for module in API:
        names = [name for name in public_names(module) if not name.startswith("__")]
        (folder / f"{module}.md").write_text(
            f"# {module}\n\n::: {module}\n    options:\n      show_root_heading: false\n"
            f"      members: {names}\n" + _shadowing_modules(module, names)
        )
    return [{module: f"reference/api/{module}.md"} for module in API]


def _shadowing_modules(module: str, names: list[str]) -> str:
    """Directives for submodules with the name of a function or class that they define.

    mkdocstrings takes such a name for the submodule, and would leave out the function or class.
    """
    if not _has_all(module):
        return ""
    imported = importlib.import_module(module)
    modules = set()
    for name in names:
        defined_in = getattr(getattr(imported, name), "__module__", "")
        if hasattr(imported, "__path__") and importlib.util.find_spec(f"{module}.{name}"):
            modules.add(f"{module}.{name}")
        elif defined_in.endswith(f".{name}"):
            modules.add(defined_in)
    return "".join(f"\n::: {name}\n" for name in sorted(modules))


def public_names(module: str) -> list[str]:
    """The names of ``__all__`` without modules; without ``__all__``, what the module defines.

    A module without ``__all__`` is parsed, not imported: what it imports may take seconds to load.
    """
    if not _has_all(module):
        return [
            node.name
            for node in _parsed(module).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
        ]
    imported = importlib.import_module(module)
    return [name for name in imported.__all__ if not inspect.ismodule(getattr(imported, name))]


def _parsed(module: str) -> ast.Module:
    spec = importlib.util.find_spec(module)
    return ast.parse(Path(str(spec and spec.origin)).read_text("utf-8"))


def _has_all(module: str) -> bool:
    return any(
        isinstance(node, ast.Assign | ast.AnnAssign) and "__all__" in ast.unparse(node)
        for node in _parsed(module).body
    )


def _cells() -> set[str]:
    """The names of all losses of the grid."""
    return {
        f"{prefix}{family}_{metric}"
        for family in FAMILIES
        for metric in grid_metrics(family)
        for prefix in ("", "gumbel_")
    }


def _page_of_loss(name: str, draw: bool) -> str:
    factory = LOSSES.factory(name)
    reference = _entry("losses", name)
    return _join(
        f"# {name}",
        _formula(reference.formula),
        _symbols(reference),
        _documentation(factory),
        _options(inspect.signature(factory).parameters.values(), factory),
        _shapes(),
        _plots(name) if draw else "",
        _JUMPS if draw and issubclass(factory, LambdaPairs) else "",  # type: ignore[arg-type]
        _reference_sections(reference),
        _example(name, "k" in inspect.signature(factory).parameters),
    )


def _page_of_cell(family: str, metric: str, draw: bool, noise: bool) -> str:
    """The page of a loss of the grid, or of its stochastic form."""
    plain = f"{family}_{metric}"
    name = f"gumbel_{plain}" if noise else plain
    relaxation, metric_entry = _entry("relaxations", family), _entry("metrics", metric)
    lower = METRICS.get(metric).lower_is_better
    reference = cell_entry(family, metric, cell_route(family, metric), lower, noise)
    if reference is None:
        raise KeyError(f"reference.toml has no relaxed form of {metric} for {family}: add one")
    cutoff = getattr(METRICS.factory(metric), "has_cutoff", True)
    return _join(
        f"# {name}: {metric_entry.title} through {family}"
        + (" with Gumbel noise" if noise else ""),
        _about_noise(plain) if noise else _about_cell(family, metric, lower, cutoff),
        *_formulas_of_cell(reference.formula),
        _formula(relaxation.formula),
        _symbols(reference),
        _options(
            inspect.signature(LOSSES.factory(name)).parameters.values(),
            *cell_classes(family, metric, noise),
        ),
        _shapes(),
        _plots(name) if draw else "",
        f"The mean over {plots.NOISES} draws of the noise, the same at every score."
        if draw and noise
        else "",
        _reference_sections(replace(reference, elsewhere=reference.elsewhere or _NOWHERE)),
        _example(name, cutoff),
    )


def _formulas_of_cell(formula: str) -> list[str]:
    """The formula of the loss of a list; a stochastic loss has that of the mean before it."""
    *mean, loss = formula.split(r", \quad L(s) = ")
    words = "L is the loss without noise" if mean else "The loss of a list"
    return [*map(_formula, mean), f"{words}, and the relaxed sort in it:", _formula(loss)]


def _about_cell(family: str, metric: str, lower: bool, cutoff: bool) -> str:
    name = f"{family}_{metric}"
    return (
        f"The metric [{metric}](../metrics/{metric}.md) through the relaxation "
        f"[{family}](../relaxations/{family}.md): "
        + ("the metric itself, as lower is better" if lower else "one minus the relaxed metric")
        + (f". `{name}@10` has a cutoff, and " if cutoff else ". ")
        + f"[gumbel_{name}](gumbel_{name}.md) adds Gumbel noise to the scores."
    )


def _about_noise(plain: str) -> str:
    return (
        f"The stochastic form of [{plain}]({plain}.md): Gumbel noise is added to the scores, anew "
        "at each call, and the loss is averaged over `samples` draws of it. More samples make the "
        "gradient vary less, at as many times the cost; a `seed` makes the noise repeatable."
    )


def _page_of_relaxation(family: str, draw: bool) -> str:
    reference = _entry("relaxations", family)
    cells = ", ".join(
        f"[{family}_{metric}](../losses/{family}_{metric}.md)" for metric in grid_metrics(family)
    )
    factory = FAMILIES[family]
    return _join(
        f"# {family}",
        _formula(reference.formula),
        _symbols(reference),
        _documentation(factory),
        _options(inspect.signature(factory).parameters.values(), *cell_classes(family, "ndcg")),
        _shapes_of_relaxation(family),
        _plots(f"{family}_ndcg") if draw else "",
        _reference_sections(reference),
        f"## Losses\n\n{cells}.",
    )


def _page_of_metric(name: str, draw: bool) -> str:
    reference = _entry("metrics", name)
    cells = [
        f"[{family}_{name}](../losses/{family}_{name}.md)"
        for family in FAMILIES
        if name in grid_metrics(family)
    ]
    factory = METRICS.factory(name)
    return _join(
        f"# {name}: {reference.title}",
        _formula(reference.formula),
        _symbols(reference),
        _documentation(factory),
        _options(inspect.signature(factory).parameters.values(), factory),
        _shapes("One value per list comes back."),
        _metric_plots(name) if draw else "",
        _reference_sections(reference),
        f"## As a loss\n\n{', '.join(cells)}." if cells else "",
    )


def _index(kind: str, losses: list[str]) -> str:
    """The page that lists all names of a kind; losses of the grid are a table on it."""
    if kind == "losses":
        rows = [f"| [{name}]({name}.md) | {_summary(LOSSES.factory(name))} |" for name in losses]
        return _join(
            "# Losses",
            "| loss | |\n|:--|:--|\n" + "\n".join(rows),
            "## The grid: every metric through every relaxation",
            "`<relaxation>_<metric>@k`:",
            _grid_table(""),
            "## Gumbel forms: the same with noise on the scores",
            "`gumbel_<relaxation>_<metric>@k`, the mean over `samples` draws of the noise:",
            _grid_table("gumbel_"),
        )
    registry: Registry[Any] | None = METRICS if kind == "metrics" else None
    names = METRICS.names() if registry else list(FAMILIES)
    factories = {name: registry.factory(name) if registry else FAMILIES[name] for name in names}
    rows = []
    for name in names:
        reference = entry("metrics", name)
        parts = (reference.title if reference else "", _summary(factories[name]))
        rows.append(f"| [{name}]({name}.md) | {': '.join(part for part in parts if part)} |")
    return _join(f"# {kind.capitalize()}", "| | |\n|:--|:--|\n" + "\n".join(rows))


def _grid_table(prefix: str) -> str:
    """Losses of the grid as a table of links, relaxations down and metrics across."""
    metrics = grid_metrics()
    rows = [
        "| | " + " | ".join(f"[{m}](../metrics/{m}.md)" for m in metrics) + " |",
        "|:--|" + ":-:|" * len(metrics),
    ]
    breakable_prefix = prefix.replace("_", "_<wbr>")  # lines may break after the underscore
    for family in FAMILIES:
        cells = [
            f"[{breakable_prefix}{family}_<wbr>{metric}]({prefix}{family}_{metric}.md)"
            if metric in grid_metrics(family)
            else ""
            for metric in metrics
        ]
        rows.append(f"| [{family}](../relaxations/{family}.md) | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _entry(kind: Kind, name: str) -> NameReference:
    reference = entry(kind, name)
    if reference is None:
        raise KeyError(f"reference.toml has no entry for {name!r} under {kind}: add one")
    return reference


def _formula(latex: str) -> str:
    """A formula; its definitions of symbols are on lines of their own, for narrow screens."""
    first, *more = re.split(r",\s*(?=\\quad|\\text)", latex)
    lines = [first, *(part.removeprefix(r"\quad ") for part in more)]
    return "\n".join(f"$$ {line}{',' if line != lines[-1] else ''} $$" for line in lines)


def _symbols(reference: NameReference) -> str:
    return f"{reference.symbols}." if reference.symbols else ""


def _documentation(factory: Any) -> str:
    """A docstring as Markdown: its text, its arguments as a list, its examples as code."""
    text = re.sub(r"\nArgs:\n.*?(?=\n\S|\Z)", "", inspect.getdoc(factory) or "", flags=re.DOTALL)
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`").replace("::\n", ":\n")
    lines: list[str] = []
    section = ""
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Attributes):", line):
            section = line[:-1]
            lines += [f"**{section}**", ""]
        elif section and line.startswith("    ") and not line.startswith("     "):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon else f"- {line.strip()}")
        elif section and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            section = section if not line else ""
            lines.append(line)
    return fence_examples("\n".join(lines))


def _options(parameters: Iterable[inspect.Parameter], *classes: Any) -> str:
    """A table of options, with their descriptions in the docstrings of these classes."""
    public = [p for p in parameters if not p.name.startswith("_") and p.kind is not p.VAR_KEYWORD]
    if not public:
        return ""
    descriptions = describe_options(*classes)
    rows = [
        f"| `{p.name}` | `{_default(p.default)}` | {descriptions.get(p.name, '')} |"
        for p in public
        if p.name not in ("self", "k")
    ]
    if "k" in descriptions and any(p.name == "k" for p in public):
        rows.insert(0, f"| `@k` |  | {descriptions['k']} |")
    return "## Options\n\n| option | default | what it is |\n|:--|:--|:--|\n" + "\n".join(rows)


def _default(value: Any) -> str:
    return "required" if value is inspect.Parameter.empty else str(value)


def _plots(name: str) -> str:
    x, values, gradient = plots.sweep(name)
    return _pictures(plots.svg(x, values, name), plots.svg(x, gradient, "its derivative"))


def _metric_plots(name: str) -> str:
    """The exact metric beside its relaxation by NeuralSort or, if it needs ranks, by LapSum."""
    family = next((f for f in ("neural", "lapsum") if name in grid_metrics(f)), None)
    x, exact = plots.sweep_metric(name)
    pictures = [plots.svg(x, exact, name)]
    if family:
        x, loss, _ = plots.sweep(f"{family}_{name}")
        relaxed = loss if METRICS.get(name).lower_is_better else 1 - loss
        pictures.append(plots.svg(x, relaxed, f"the same, relaxed by {family}"))
    return _pictures(*pictures)


def _pictures(*pictures: str) -> str:
    scores = ", ".join(f"{s:g}" for s in plots.SCORES[1:].tolist())
    labels = ", ".join(f"{y:g}" for y in plots.LABELS[1:].tolist())
    return (
        f'## Against one score\n\n<div class="plots">{"".join(pictures)}</div>\n\n'
        f"The score of an item of label 2 moves; four others stay at {scores} "
        f"with labels {labels}."
    )


def _reference_sections(reference: NameReference) -> str:
    """The sections about the paper, the use, the cost and other libraries."""
    return _join(
        f"## Paper\n\n{_link_papers(reference.paper)}",
        f"## When to use it\n\n{_link_pages(reference.use)}",
        f"## Cost\n\n{reference.cost}",
        f"## Elsewhere\n\n{reference.elsewhere}" if reference.elsewhere else "",
    )


def _link_pages(text: str) -> str:
    """The text with paths of pages in ``docs/`` replaced by links with their titles."""

    def link(page: re.Match[str]) -> str:
        first = (CONTENT / page[1]).read_text().partition("\n")[0]
        title = first.removeprefix("# ") if first.startswith("# ") else f"table of {page[2]}"
        return f"[{title}](../../{page[1]})"

    return re.sub(r"\bdocs/([\w/-]+/(\w+)\.md)", link, text)


def _link_papers(text: str) -> str:
    """The text with links for DOIs and arXiv numbers."""
    text = re.sub(r"doi:(10\.[^\s,;]+[^\s,;.])", r"[doi:\1](https://doi.org/\1)", text)
    return re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def _shapes(returned: str = _RETURNED) -> str:
    return (
        "## Shapes\n\n"
        "| argument | padded | flat |\n|:--|:--|:--|\n"
        "| `scores` | `[..., n]`, real | `[N]` |\n"
        "| `labels` | as the scores, at least 0 | `[N]` |\n"
        "| `mask` | as the scores, true on items; none for all | |\n"
        "| `offsets`, `lengths` or `qid` | | `[B + 1]`, `[B]` or `[N]` |\n"
        "| `weights` | `[...]` per list, or as the scores per item | `[B]` or `[N]` |\n\n"
        f"{returned} [Lists of unequal length](../../how-to/ragged.md)."
    )


def _shapes_of_relaxation(family: str) -> str:
    returned = (
        "Relaxed ranks `[..., n]` come back, from 1 on and 0 on padding."
        if FAMILIES[family]().forms[0] == "ranks"
        else "A relaxed permutation `[..., k, n]` comes back: row r is a distribution over the "
        "items for rank r, 0 on padding. `ranks(scores, mask)` gives relaxed ranks `[..., n]`."
    )
    return (
        "## Shapes\n\n| argument | |\n|:--|:--|\n"
        "| `scores` | `[..., n]`, real |\n"
        "| `mask` | as the scores, true on items; none for all |\n"
        "| `k` | the number of rows of a permutation; none for n |\n\n"
        f"{returned}\n\n"
        "```python\nimport torch\nfrom rankgrad import sorting\n\n"
        f'relaxation = sorting.get("{family}")\nrelaxation(torch.randn(4, 20))\n```'
    )


def _example(name: str, cutoff: bool) -> str:
    spec = f"{name}@10" if cutoff else name
    if name == "relaxed":
        spec = "relaxed(metric=ap@10, relaxation=softsort(temperature=0.1))"
    return (
        "## In code\n\n```python\nimport torch\nfrom rankgrad import losses\n\n"
        f'loss = losses.get("{spec}")\nscores = torch.randn(4, 20, requires_grad=True)\n'
        "labels = torch.randint(0, 3, (4, 20))\nloss(scores, labels).backward()\n```"
    )


def _summary(factory: Any) -> str:
    """The first line of a docstring, fit for a table's cell."""
    line = html.escape((inspect.getdoc(factory) or "").split("\n")[0], quote=False)
    return re.sub(r"``(.+?)``", r"<code>\1</code>", line).replace("|", "&#124;")


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
