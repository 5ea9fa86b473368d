"""The settings of a training run as options of commands.

Settings are pydantic models with dozens of fields (:class:`rankgrad.training.Settings`). Commands
that train do not repeat the fields as parameters: the decorator :func:`settings_options` adds them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer

from rankgrad.training._settings import Panel, Settings, TomlSettings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Command = TypeVar("Command", bound=Callable[..., None])
AnySettings = TypeVar("AnySettings", bound=TomlSettings)

#: The names of options on the command line, where that is not only ``--`` and the setting's name.
_FLAGS = {
    "loss": ("--loss", "-l"),
    "metric": ("--metric", "-m"),
    "transforms": ("--transform",),
    "learning_rate": ("--learning-rate", "--lr"),
}
_REPEATABLE_HELP = "May be given several times."


def settings_options(
    *names: str,
    exclude: Collection[str] = (),
    defaults: dict[str, str] | None = None,
    settings: type[TomlSettings] = Settings,
) -> Callable[[Command], Command]:
    """A decorator that gives a command an option for each setting.

    Typer sees the options in place of the command's ``**`` parameter, in which the command gets
    their values by setting; the value is None if the user has not passed the option. Types, help
    texts and the defaults that the help shows are those of the settings.

    Args:
        *names: the settings that get an option; by default all that are in a panel.
        exclude: settings that get no option.
        defaults: for the help, by setting: the default in words, where the command has its own.
        settings: the class of the settings.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        declared = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        from_settings = [
            _parameter(settings.model_fields[name], name, panel, defaults or {})
            for panel, panel_names in panels_of(settings).items()
            for name in panel_names
            if (not names or name in names) and name not in exclude
        ]
        parameters = [*declared, *from_settings]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def panels_of(settings: type[TomlSettings]) -> dict[str, list[str]]:
    """The titles of the panels of the help, and the names of the settings in each."""
    panels: dict[str, list[str]] = {}
    for name, field in settings.model_fields.items():
        for metadata in field.metadata:
            if isinstance(metadata, Panel):
                panels.setdefault(metadata.title, []).append(name)
    return panels


def setting_option(name: str) -> Any:
    """The Typer option of one setting, for a command that takes only this one."""
    field = Settings.model_fields[name]
    return typer.Option(help=_help(field), show_default=_default(field))


def _parameter(
    field: FieldInfo, name: str, panel: str, defaults: dict[str, str]
) -> inspect.Parameter:
    """The parameter of a command for one setting."""
    option = typer.Option(
        *_FLAGS.get(name, ()),
        help=_help(field),
        show_default=defaults.get(name, _default(field)),
        rich_help_panel=panel,
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    annotated: Any = Annotated[_type(field), option]
    return inspect.Parameter(name, kind, default=None, annotation=annotated)


def _type(field: FieldInfo) -> Any:
    """The type of an option: that of the setting, or text, which the settings parse and check."""
    if field.annotation in (bool, int, float):
        return field.annotation | None
    return list[str] | None if _is_repeatable(field) else str | None


def _is_repeatable(field: FieldInfo) -> bool:
    """Whether the setting is a tuple of any length; its option may be given several times."""
    return Ellipsis in get_args(field.annotation)


def _help(field: FieldInfo) -> str:
    """The description of the setting in one line."""
    description = " ".join(str(field.description).split())
    return f"{description} {_REPEATABLE_HELP}" if _is_repeatable(field) else description


def _default(field: FieldInfo) -> str | bool:
    """What the help shows as the default; False for none."""
    if field.is_required():
        return False
    if isinstance(field.default, bool):
        return "yes" if field.default else "no"
    if _is_repeatable(field):
        return ", ".join(field.default) or "none"
    return "none" if field.default is None else str(field.default)


def resolve_settings(options: dict[str, Any], file: Path | None) -> Settings:
    """Settings from options, which override those of a file, which override the defaults.

    Args:
        options: values by setting; None where the user has not passed the option.
        file: settings in TOML.
    """
    # The file is validated by itself, so that an error in an option does not name the file.
    values = {} if file is None else read_settings(Settings, file).model_dump(exclude_unset=True)
    values |= {name: value for name, value in options.items() if value is not None}
    return Settings(**values)


def read_settings(kind: type[AnySettings], file: Path, **overrides: Any) -> AnySettings:
    """Read settings of a class from a TOML file; overrides replace or add single ones.

    The overrides are options of a command, and errors call them so.
    """
    if not file.is_file():
        raise FileNotFoundError(f"there are no settings at {file}")
    try:
        return kind.from_toml(file.read_text(encoding="utf-8"), **overrides)
    except ValueError as error:
        source = f"{file} and the options" if overrides else file
        raise ValueError(f"{source}: {error}") from error
