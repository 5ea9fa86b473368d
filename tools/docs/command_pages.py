"""The reference of the command line: a page for each command, generated from its parser.

``reference_pages.py`` calls this.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from typer.main import get_command

from rankgrad.cli import app

_NO_PANEL = "Options"  # the heading of options that are in no panel


def write_commands(folder: Path) -> list[Any]:
    """Write a page for each command, and one that lists them.

    Args:
        folder: the folder of these pages.

    Returns:
        The entries of the site's navigation for them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    commands = all_commands()
    rows = []
    for name, command in commands.items():
        page = f"{name.replace(' ', '_')}.md"
        (folder / page).write_text(_page(name, command))
        rows.append(f"| [`rankgrad {name}`]({page}) | {_summary(command)} |")
    (folder / "index.md").write_text(
        "# Command line\n\n`rankgrad COMMAND --help` prints what the pages here say. Input that is "
        "wrong ends a command with exit code 2 and one line that says where and what to do; "
        "`rankgrad --traceback COMMAND` shows where in the code. Ctrl-C ends with 130.\n\n"
        "| command | |\n|:--|:--|\n" + "\n".join(rows) + "\n"
    )
    pages = {name: f"reference/cli/{name.replace(' ', '_')}.md" for name in commands}
    return ["reference/cli/index.md", *({name: page} for name, page in pages.items())]


def all_commands() -> dict[str, Any]:
    """Every command by its name as it is typed, such as ``text train``."""
    commands = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            commands |= {f"{name} {inner}": value for inner, value in command.commands.items()}
        else:
            commands[name] = command
    return commands


def _page(name: str, command: Any) -> str:
    """The page of a command, as Markdown."""
    text, _, examples = inspect.cleandoc(command.help).partition("\b\nExamples:\n")
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    usage = " ".join([f"rankgrad {name}", *map(_placeholder, arguments), "[OPTIONS]"])
    parts = [f"# rankgrad {name}", f"```text\n{usage}\n```", _escape(text.strip())]
    examples = inspect.cleandoc(examples).replace("\\\\\n", "\\\n")
    parts.append(f"## Examples\n\n```sh\n{examples}\n```" if examples else "")
    if arguments:
        rows = [f"| `{_placeholder(p)}` | {_escape(p.help or '')} |" for p in arguments]
        parts.append("## Arguments\n\n| argument | |\n|:--|:--|\n" + "\n".join(rows))
    for panel in dict.fromkeys(p.rich_help_panel or _NO_PANEL for p in options):
        rows = [_option_row(p) for p in options if (p.rich_help_panel or _NO_PANEL) == panel]
        parts.append(
            f"## {panel}\n\n| option | | default |\n|:--|:--|:--|\n" + "\n".join(sorted(rows))
        )
    page = command.epilog.removeprefix("Documentation: docs/")
    parts.append(f"## See also\n\n[{page}](../../{page})")
    return "\n\n".join(part for part in parts if part) + "\n"


def _placeholder(argument: Any) -> str:
    """An argument in a usage line, in brackets if it is optional."""
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _option_row(option: Any) -> str:
    flags = ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])
    if isinstance(option.show_default, str):
        default = _escape(option.show_default)  # words, or a value
    else:
        default = "" if option.default in (None, False) else f"`{option.default}`"
    return f"| {flags} | {_escape(option.help or '')} | {default} |"


def _summary(command: Any) -> str:
    return _escape(" ".join(inspect.cleandoc(command.help).split("\n\n")[0].split()))


def _escape(text: str) -> str:
    """A help text as Markdown, in which angle brackets and bars are not markup."""
    text = re.sub(r"<", "&lt;", text).replace("|", "&#124;")
    return text if "\n\n" in text else " ".join(text.split())
