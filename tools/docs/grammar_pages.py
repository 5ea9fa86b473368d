"""The reference of specs, models, transforms and settings, generated from registries and classes.

``reference_pages.py`` calls this.
"""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

import rankgrad.specs
from rankgrad._reference import describe_options, plain_markdown
from rankgrad.cli._setting_options import panels_of
from rankgrad.data.transforms import transforms
from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.models import models
from rankgrad.sorting import relaxations, schedules
from rankgrad.specs import Registry
from rankgrad.text._text_settings import TextSettings
from rankgrad.training._loggers import loggers
from rankgrad.training._optimizers import learning_rates, optimizers
from rankgrad.training._settings import Settings

#: Each kind of object that specs name: its registry, where its specs are written, and an example.
KINDS: dict[str, tuple[Registry[Any], str, str]] = {
    "Losses": (losses, "`losses.get`, `--loss`", "lambdaloss@10(truncation=heuristic)"),
    "Metrics": (metrics, "`metrics.get`, `--metric`", "ndcg@10(gain=linear, empty=skip)"),
    "Relaxations": (relaxations, "`sorting.get`, `relaxation=`", "neuralsort(temperature=0.5)"),
    "Schedules of a temperature": (
        schedules,
        "`temperature=` and its like",
        "exponential(start=10, end=0.1)",
    ),
    "Models": (models, "`--model`, `Ranker(model=...)`", "mlp(hidden=[64, 32], dropout=0.1)"),
    "Transforms of features": (transforms, "`--transform`", "quantile(output=uniform)"),
    "Optimizers": (optimizers, "`--optimizer`", "adamw(beta2=0.98)"),
    "Schedules of the learning rate": (learning_rates, "`--schedule`", "step(every=50, by=0.1)"),
    "Loggers": (loggers, "`--log`", "mlflow(experiment=ranking)"),
}
_MAX_LISTED = 60  # longer lists of names are summarized


def write_grammar(folder: Path) -> list[Any]:
    """Write the pages of specs, models, transforms and settings.

    Args:
        folder: the folder of the reference.

    Returns:
        The entries of the site's navigation for them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "Specs": ("specs.md", _specs()),
        "Models": ("models.md", _registry("Models", models)),
        "Transforms": ("transforms.md", _registry("Transforms of features", transforms)),
        "Settings": ("settings.md", _settings()),
    }
    for name, text in pages.values():
        (folder / name).write_text(text)
    return [{title: f"reference/{name}"} for title, (name, _) in pages.items()]


def _specs() -> str:
    """The page of specs; the grammar is that of the docstring of ``specs.py``."""
    text = inspect.cleandoc(rankgrad.specs.__doc__ or "").replace("``", "`")
    grammar = text[text.index("    spec ") : text.index("A value that")]
    parts = [
        "# Specs: how everything is named",
        "One string names an object with its options, in Python, on the command line, in TOML and "
        "in tables, and `str(object)` gives it back: `neural_ndcg@10(temperature=0.5)`.",
        "```text\n" + textwrap.dedent(grammar).strip() + "\n```",
        "Values are written as in TOML; a word without quotes is text, or the spec of an object "
        "where an option takes one: `gumbel(base=neuralsort(temperature=0.1), samples=8)`. "
        "A cutoff `@k` is the last rank that counts. An unknown name or option is an error that "
        "lists what there is and the nearest match. Quote specs in a shell: parentheses are its "
        "own.",
        "## What there is",
    ]
    for title, (registry, places, example) in KINDS.items():
        names = registry.names()
        listed = ", ".join(f"`{name}`" for name in names)
        if len(names) > _MAX_LISTED:
            stochastic = sum(name.startswith("gumbel_") for name in names)
            listed = (
                f"{len(names)} names, [a page each](losses/index.md) but for the {stochastic} that "
                "begin with `gumbel_`, the stochastic forms of the grid's losses: see the page of "
                "the name without it"
            )
        parts.append(f"### {title}\n\n{places}: `{example}`\n\n{listed}.")
    return "\n\n".join(parts) + "\n"


def _registry(title: str, registry: Registry[Any]) -> str:
    """A page with a section for each name of a registry."""
    parts = [f"# {title}"]
    for name in registry.names():
        factory = registry.factory(name)
        text = (inspect.getdoc(factory) or "").split(">>>")[0].split("\nArgs:")[0].strip()
        parts += [f"## {name}", text.replace("``", "`").replace("::\n", ":\n")]
        rows = [
            f"| `{p.name}` | `{_default(p.default)}` |"
            for p in inspect.signature(factory).parameters.values()
            if p.name not in ("self", "k") and p.kind is not p.VAR_KEYWORD
        ]
        if rows:
            parts.append("| option | default |\n|:--|:--|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _settings() -> str:
    parts = [
        "# Settings",
        "Everything a training depends on besides its data. `rankgrad train` has an option for "
        "each (`learning_rate` is `--learning-rate`), `Ranker` a parameter for most, and a run "
        "folder holds them all in `settings.toml`, which `--settings` reads back.",
    ]
    for panel, names in panels_of(Settings).items():
        rows = [
            f"| `{name}` | `{_format_default(Settings.model_fields[name].default)}` | "
            f"{plain_markdown(Settings.model_fields[name].description)} |"
            for name in names
        ]
        parts.append(
            f"## {panel}\n\n| setting | default | what it is |\n|:--|:--|:--|\n" + "\n".join(rows)
        )
    descriptions = describe_options(TextSettings)
    rows = [
        f"| `{name}` | `{_format_default(field.default)}` | {descriptions.get(name, '')} |"
        for name, field in TextSettings.model_fields.items()
    ]
    parts.append(
        "## Text rankers\n\nThose of `rankgrad text train`.\n\n"
        "| setting | default | what it is |\n|:--|:--|:--|\n" + "\n".join(rows)
    )
    parts.append("## As TOML\n\nAll defaults:\n\n```toml\n" + Settings().to_toml() + "```")
    return "\n\n".join(parts) + "\n"


def _format_default(default: Any) -> str:
    """The default of a setting as TOML has it, or in words."""
    if repr(default) == "PydanticUndefined":
        return "required"
    if isinstance(default, tuple):
        return ", ".join(default) or "none"
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)


def _default(value: Any) -> str:
    return "required" if value is inspect.Parameter.empty else str(value)
