"""The command line: one file per command, each of which parses, calls and prints.

Nothing heavy is imported until a command runs, so ``rankgrad --help`` answers at once.
"""

from __future__ import annotations

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
from rankgrad.cli.errors import Commands

app = typer.Typer(
    cls=Commands,
    name="rankgrad",
    no_args_is_help=True,
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


app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("compare")(compare.compare)
app.command("reproduce")(reproduce.reproduce)
app.command("evaluate")(evaluate.evaluate)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("explain")(explain.explain)
app.command("distill")(distill.distill)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.add_typer(text.app, name="text")
app.command("import")(import_.import_)
app.command("data")(data.data)
app.command("losses")(names.losses)
app.command("metrics")(names.metrics)
app.command("models")(names.models)


def main() -> None:
    """Run the command line."""
    app()
