"""Commands whose arguments and options are described in their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import typer
from typer.models import ParameterInfo

_SECTION = re.compile(r"^([A-Z][^\n]*):\n((?: {4}.*(?:\n|\Z))+)\n?", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_DEFAULT = re.compile(r" \[default: ([^]]*)]$")


class _Description(NamedTuple):
    """What the help says of a parameter."""

    panel: str | None
    help: str
    default: str | None


def epilog(page: str) -> str:
    """The last line of a command's help.

    Args:
        page: its path in ``docs``.
    """
    return f"Documentation: docs/{page}"


def add_command(
    app: typer.Typer, name: str, command: Callable[..., None], page: str, shared: str = ""
) -> None:
    """Add a command to an application.

    The sections of its docstring describe its parameters, ``name: help text`` each, with
    ``[default: words]`` at the end where the default needs words. ``Inputs:`` are arguments,
    ``Options:`` options; options of other sections are in panels of their own. An option that is
    False by default has no ``--no-`` form.

    Args:
        app: the application.
        name: of the command.
        command: the function.
        page: the path in ``docs`` that the help ends with.
        shared: sections that describe parameters of several commands, for those that neither the
            docstring nor an annotation describes.
    """
    text, described = _parse(inspect.cleandoc(command.__doc__ or ""))
    _, elsewhere = _parse(inspect.cleandoc(shared))
    signature = inspect.signature(command, eval_str=True)
    added = [
        _with_help(each, described.get(each.name), elsewhere.get(each.name))
        for each in signature.parameters.values()
    ]
    command.__signature__ = signature.replace(parameters=added)  # type: ignore[attr-defined]
    command.__annotations__ |= {each.name: each.annotation for each in added}
    app.command(name, help=text, epilog=epilog(page))(command)


def _parse(docstring: str) -> tuple[str, dict[str, _Description]]:
    """A docstring without its sections, one line a paragraph, and what they say of parameters."""
    described: dict[str, _Description] = {}
    for panel, body in _SECTION.findall(docstring):
        for name, text in _ENTRY.findall(body):
            help, *default = _DEFAULT.split(" ".join(text.split()))
            title = None if panel in ("Inputs", "Options") else panel
            described[name] = _Description(title, help, default[0] if default else None)
    paragraphs = _SECTION.sub("", docstring).rstrip().split("\n\n")
    return "\n\n".join(map(_unwrap, paragraphs)), described


def _unwrap(paragraph: str) -> str:
    """A paragraph as one line, so that the terminal's width decides where it wraps."""
    return paragraph if paragraph.startswith("\b") else paragraph.replace("\n", " ")


def _with_help(
    parameter: inspect.Parameter, description: _Description | None, shared: _Description | None
) -> inspect.Parameter:
    kind, info = parameter.annotation, None
    if get_origin(kind) is Annotated:
        kind, info = get_args(kind)
    if not isinstance(info, ParameterInfo):
        if kind is typer.Context:
            return parameter
        flag = f"--{parameter.name.replace('_', '-')}"
        info = typer.Option(*[flag] if parameter.default is False else [])
    info = copy(info)
    if parameter.default is parameter.empty:
        info.show_default = False
    if description is None and info.help is None:
        description = shared
    if description is not None:
        info.help, info.rich_help_panel = description.help, description.panel
        if description.default is not None:
            info.show_default = description.default
    annotated: Any = Annotated[kind, info]
    return parameter.replace(annotation=annotated)
