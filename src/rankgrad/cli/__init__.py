"""The command line, a Typer application with one file per command or group of commands.

A command parses its arguments, calls the library and prints the result; it holds no logic of its
own. Heavy packages are imported inside the commands, so that ``rankgrad --help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from rankgrad import __version__
from rankgrad.cli import (
    compare,
    data,
    demo,
    distill,
    evaluate,
    explain,
    export,
    import_,
    predict,
    registries,
    report,
    reproduce,
    serve,
    text,
    train,
)
from rankgrad.cli._arguments import DESCRIPTIONS
from rankgrad.cli._docstrings import add_command, epilog
from rankgrad.cli._errors import Commands

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    name="rankgrad",
    no_args_is_help=True,
    epilog=epilog("index.md"),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"rankgrad {__version__}")
        raise typer.Exit


@app.callback()
def _rankgrad(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", is_eager=True, callback=_print_version
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error comes from, for bug reports.")
    ] = False,
) -> None:
    """Train a ranker directly on the metric you report."""
    # Both options act elsewhere: --version in its callback, --traceback in _errors.Commands.


#: Each command, and the page of the documentation that its help refers to in the last line.
_COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "demo": (demo.demo, "tutorials/first_ranker.md"),
    "train": (train.train, "tutorials/own_data.md"),
    "compare": (compare.compare, "tutorials/comparing.md"),
    "reproduce": (reproduce.reproduce, "how-to/reproduce.md"),
    "evaluate": (evaluate.evaluate, "explanation/conventions.md"),
    "predict": (predict.predict, "reference/formats.md"),
    "report": (report.report, "how-to/report.md"),
    "explain": (explain.explain, "explanations.md"),
    "distill": (distill.distill, "tutorials/export.md"),
    "export": (export.export, "export.md"),
    "serve": (serve.serve, "serving.md"),
    "import": (import_.import_, "reference/formats.md"),
    "data": (data.data, "tutorials/own_data.md"),
    "losses": (registries.losses, "how-to/choose_a_loss.md"),
    "metrics": (registries.metrics, "explanation/conventions.md"),
    "models": (registries.models, "how-to/models.md"),
}
for _name, (_command, _page) in _COMMANDS.items():
    add_command(app, _name, _command, _page, DESCRIPTIONS)
app.add_typer(text.app, name="text")


def main() -> None:
    """Run the command line."""
    app()
