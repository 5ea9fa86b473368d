"""``rankgrad text``: the commands for collections of text; each has a file of its own."""

from __future__ import annotations

import typer

from rankgrad.cli import evaluate, text_index, text_rerank, text_retrieve, text_train
from rankgrad.cli._docstrings import add_command, epilog

__all__ = ["app"]

_PAGE = "how-to/text.md"

app = typer.Typer(
    no_args_is_help=True,
    help="Index, retrieve, rerank and evaluate text; train rankers that read it.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=epilog(_PAGE),
)

add_command(app, "index", text_index.index, _PAGE)
add_command(app, "retrieve", text_retrieve.retrieve, _PAGE)
add_command(app, "train", text_train.train, _PAGE)
add_command(app, "rerank", text_rerank.rerank, _PAGE)
add_command(app, "evaluate", evaluate.evaluate, _PAGE)
