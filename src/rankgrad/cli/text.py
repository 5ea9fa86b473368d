"""``rankgrad text``: the commands for collections of text; each has a file of its own."""

from __future__ import annotations

import typer

from rankgrad.cli import evaluate, text_index, text_rerank, text_retrieve, text_train
from rankgrad.cli.arguments import documentation

app = typer.Typer(
    no_args_is_help=True,
    help="Index, retrieve, rerank and evaluate text; train rankers that read it.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=documentation("how-to/text.md"),
)

app.command("index", epilog=documentation("how-to/text.md"))(text_index.index)
app.command("retrieve", epilog=documentation("how-to/text.md"))(text_retrieve.retrieve)
app.command("train", epilog=documentation("how-to/text.md"))(text_train.train)
app.command("rerank", epilog=documentation("how-to/text.md"))(text_rerank.rerank)
app.command("evaluate", epilog=documentation("how-to/text.md"))(evaluate.evaluate)
