"""The command line: one file per command, each of which parses, calls and prints.

Nothing heavy is imported until a command runs, so ``rankgrad --help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from rankgrad.cli import (
    compare,
    data,
    demo,
    distill,
    evaluate,
    explain,
    export,
    import_,
    names,
    predict,
    report,
    reproduce,
    serve,
    text,
    train,
)
from rankgrad.cli.arguments import documentation
from rankgrad.cli.errors import Commands

#: The page of the documentation that the help of a command ends with.
_PAGES = {
    "demo": "tutorials/first_ranker.md",
    "train": "tutorials/own_data.md",
    "compare": "tutorials/comparing.md",
    "reproduce": "how-to/reproduce.md",
    "evaluate": "explanation/conventions.md",
    "predict": "reference/formats.md",
    "report": "how-to/report.md",
    "explain": "explanations.md",
    "distill": "tutorials/export.md",
    "export": "export.md",
    "serve": "serving.md",
    "import": "reference/formats.md",
    "data": "tutorials/own_data.md",
    "losses": "how-to/choose_a_loss.md",
    "metrics": "explanation/conventions.md",
    "models": "how-to/models.md",
}

app = typer.Typer(
    cls=Commands,
    name="rankgrad",
    no_args_is_help=True,
    epilog=documentation("index.md"),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"rankgrad {version('rankgrad')}")
        raise typer.Exit


@app.callback()
def _rankgrad(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", is_eager=True, callback=_version
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error comes from, for bug reports.")
    ] = False,
) -> None:
    """Train a ranker directly on the metric you report."""


def _add(name: str, command: Callable[..., None]) -> None:
    app.command(name, epilog=documentation(_PAGES[name]))(command)


_add("demo", demo.demo)
_add("train", train.train)
_add("compare", compare.compare)
_add("reproduce", reproduce.reproduce)
_add("evaluate", evaluate.evaluate)
_add("predict", predict.predict)
_add("report", report.report)
_add("explain", explain.explain)
_add("distill", distill.distill)
_add("export", export.export)
_add("serve", serve.serve)
app.add_typer(text.app, name="text")
_add("import", import_.import_)
_add("data", data.data)
_add("losses", names.losses)
_add("metrics", names.metrics)
_add("models", names.models)


def main() -> None:
    """Run the command line."""
    app()
