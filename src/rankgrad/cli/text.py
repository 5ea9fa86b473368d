"""``rankgrad text``: the commands for collections of text; each has a file of its own."""

from __future__ import annotations

import typer

from rankgrad.cli import evaluate, text_index, text_retrieve

app = typer.Typer(
    no_args_is_help=True,
    help="Index, retrieve and evaluate text.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("index")(text_index.index)
app.command("retrieve")(text_retrieve.retrieve)
app.command("evaluate")(evaluate.evaluate)
