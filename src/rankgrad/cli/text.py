"""``rankgrad text``: the commands for collections of text; each has a file of its own."""

from __future__ import annotations

import typer

from rankgrad.cli import evaluate, text_index, text_rerank, text_retrieve, text_train

app = typer.Typer(
    no_args_is_help=True,
    help="Index, retrieve, rerank and evaluate text; train rankers that read it.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("index")(text_index.index)
app.command("retrieve")(text_retrieve.retrieve)
app.command("train")(text_train.train)
app.command("rerank")(text_rerank.rerank)
app.command("evaluate")(evaluate.evaluate)
