"""The settings of a training run as options of commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from rankgrad.training.settings import Settings

Command = TypeVar("Command", bound=Callable[..., None])

#: The panels of the help, and which settings are in each.
PANELS = {
    "What is learned": (
        *("loss", "model", "metric", "metrics", "transforms", "missing", "categorical"),
        *("list_size", "holdout"),
    ),
    "How it is learned": (
        *("optimizer", "learning_rate", "weight_decay", "schedule", "epochs", "patience"),
        *("batching", "batch_size", "documents", "clip", "average", "accumulate", "seed"),
    ),
    "Machine and logs": ("precision", "device", "devices", "graphs", "memory", "tensorboard"),
}
_FLAGS = {
    "loss": ("--loss", "-l"),
    "metric": ("--metric", "-m"),
    "transforms": ("--transform",),
    "learning_rate": ("--learning-rate", "--lr"),
}
_SEVERAL = "Several times for several."

Log = Annotated[
    list[str] | None,
    typer.Option(
        help="Where else epochs are logged: tensorboard, mlflow or wandb, with options as in "
        "'mlflow(experiment=ranking)' and 'wandb(project=ranking, mode=offline)'; several times "
        "for several.",
        show_default="nowhere",
    ),
]


def settings_options(
    *names: str, defaults: dict[str, str] | None = None
) -> Callable[[Command], Command]:
    """Give a command an option for each setting, in place of its ``**`` parameter.

    Types, defaults and help texts are those of :class:`~rankgrad.training.Settings`. The command
    gets the value of each option, None where the user has not given it.

    Args:
        *names: the settings; all of them if there are none.
        defaults: what the help says of defaults that the command chooses itself.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        rest = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        added = list(_parameters(names or tuple(Settings.model_fields), defaults or {}))
        command.__signature__ = own.replace(parameters=[*rest, *added])  # type: ignore[attr-defined]
        command.__annotations__ |= {p.name: p.annotation for p in added}
        return command

    return decorate


def _parameters(names: tuple[str, ...], defaults: dict[str, str]) -> Iterator[inspect.Parameter]:
    for panel, inside in PANELS.items():
        for name in inside:
            if name in names:
                option = typer.Option(
                    *_FLAGS.get(name, ()),
                    help=_help(name),
                    show_default=defaults.get(name, _default(name)),
                    rich_help_panel=panel,
                )
                kind = inspect.Parameter.KEYWORD_ONLY
                annotated: Any = Annotated[_type(name), option]
                yield inspect.Parameter(name, kind, default=None, annotation=annotated)


def _type(name: str) -> Any:
    """The type of an option: a text, which Settings parses, unless the parser can say more."""
    annotation = Settings.model_fields[name].annotation
    if annotation in (bool, int, float):
        return annotation | None
    return list[str] | None if _is_several(name) else str | None


def _is_several(name: str) -> bool:
    return Ellipsis in get_args(Settings.model_fields[name].annotation)


def _help(name: str) -> str:
    description = " ".join(str(Settings.model_fields[name].description).split())
    return f"{description} {_SEVERAL}" if _is_several(name) else description


def _default(name: str) -> str:
    default = Settings.model_fields[name].default
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ", ".join(default) or "none" if _is_several(name) else str(default).lower()


def chosen(options: dict[str, Any], file: Path | None) -> Settings:
    """The options that were given, over a file of settings, over the defaults."""
    values: dict[str, Any] = {}
    if file is not None:
        if not file.is_file():
            raise FileNotFoundError(f"there are no settings at {file}")
        try:
            values = Settings.from_toml(file.read_text(encoding="utf-8")).model_dump()
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    return Settings(
        **values | {name: value for name, value in options.items() if value is not None}
    )
