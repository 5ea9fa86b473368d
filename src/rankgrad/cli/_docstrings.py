"""Help texts of commands, taken from their docstrings.

Typer wants the help of each option inside its annotation, which makes signatures hard to read. Here
a command describes its options in sections of its docstring instead; :func:`add_command` moves the
descriptions into the annotations and adds the command to the application.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ParameterInfo

# A section of a docstring: a title such as ``Options:``, then lines indented by four spaces. The
# examples are indented by two, so they stay in the text.
_SECTION = re.compile(r"^([A-Z][^\n]*):\n((?: {4}.*(?:\n|\Z))+)\n?", re.MULTILINE)
# A line ``name: help text`` of a section, with its continuation lines.
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
# The ``[default: words]`` at the end of a help text.
_DEFAULT = re.compile(r" \[default: ([^]]*)]$")


class _Description(NamedTuple):
    """What the help says about a parameter.

    Attributes:
        panel: the title of its panel; None for Typer's own, Arguments or Options.
        help: the text.
        default: the default in words; None to show the value of the default.
    """

    panel: str | None
    help: str
    default: str | None


class _FlagsWithoutTypes:
    """Mixin of commands whose help shows flags, --help among them, without Typer's ``<bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the command."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(_FlagsWithoutTypes, TyperCommand):
    """A command of the application."""


class Group(_FlagsWithoutTypes, TyperGroup):
    """A group of commands."""


def epilog(page: str) -> str:
    """The last line of a command's help; ``page`` is the path of a page in ``docs``."""
    return f"Documentation: docs/{page}"


def add_command(
    app: typer.Typer, name: str, command: Callable[..., None], page: str, shared: str = ""
) -> None:
    """Add a command to an application.

    The sections of its docstring describe its parameters, one ``name: help text`` each, which may
    end with ``[default: words]`` if the value of the default would not explain itself. The section
    ``Inputs:`` is for arguments and ``Options:`` for options; any other section becomes a panel of
    the help with that title. An option that is False by default gets no ``--no-`` form.

    Args:
        app: the application.
        name: the name of the command.
        command: the function; its signature is replaced by one with the help texts.
        page: the path in ``docs`` of the page that the last line of the help refers to.
        shared: sections with descriptions that several commands share. They are used for parameters
            that neither the docstring nor an annotation describes.
    """
    text, descriptions = _parse(inspect.cleandoc(command.__doc__ or ""))
    _, shared_descriptions = _parse(inspect.cleandoc(shared))
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        _with_help(parameter, descriptions.get(key), shared_descriptions.get(key))
        for key, parameter in signature.parameters.items()
    ]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    app.command(name, cls=Command, help=text, epilog=epilog(page))(command)


def _parse(docstring: str) -> tuple[str, dict[str, _Description]]:
    """Split a docstring into its text, one line per paragraph, and descriptions by parameter."""
    descriptions: dict[str, _Description] = {}
    for title, body in _SECTION.findall(docstring):
        panel = None if title in ("Inputs", "Options") else title
        for name, text in _ENTRY.findall(body):
            line = " ".join(text.split())
            default = _DEFAULT.search(line)
            words = default[1] if default else None
            descriptions[name] = _Description(panel, _DEFAULT.sub("", line), words)
    paragraphs = _SECTION.sub("", docstring).rstrip().split("\n\n")
    # The width of the terminal decides where a paragraph wraps, unless it begins with a backspace
    # character: Click leaves such paragraphs as they are.
    unwrapped = [text if text.startswith("\b") else text.replace("\n", " ") for text in paragraphs]
    return "\n\n".join(unwrapped), descriptions


def _with_help(
    parameter: inspect.Parameter, description: _Description | None, shared: _Description | None
) -> inspect.Parameter:
    """The parameter with a help text in its annotation.

    Args:
        parameter: of a command; its annotation may have a Typer option or argument.
        description: from the docstring of the command.
        shared: from the descriptions that several commands share; used if there is no other help.
    """
    if parameter.annotation is typer.Context:  # not an option
        return parameter
    value_type, info = parameter.annotation, None
    if get_origin(value_type) is Annotated:
        value_type, info = get_args(value_type)
    if not isinstance(info, ParameterInfo):
        # Typer adds a ``--no-`` form to a flag unless the name of the option is passed.
        is_flag = parameter.default is False
        info = typer.Option(*([f"--{parameter.name.replace('_', '-')}"] if is_flag else []))
    info = copy(info)  # several commands share the annotations of ``_arguments``
    if parameter.default is parameter.empty:
        info.show_default = False
    if description is None and info.help is None:
        description = shared
    if description is not None:
        info.help, info.rich_help_panel = description.help, description.panel
        if description.default is not None:
            info.show_default = description.default
    annotated: Any = Annotated[value_type, info]
    return parameter.replace(annotation=annotated)
