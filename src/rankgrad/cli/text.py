"""``rankgrad text``: the commands for collections of text; each has a file of its own."""

from __future__ import annotations

from functools import partial

import typer

from rankgrad.cli import evaluate, text_index, text_rerank, text_retrieve, text_train
from rankgrad.cli._docstrings import Group, add_command, epilog
from rankgrad.cli._text_arguments import DESCRIPTIONS

__all__ = ["app"]

_PAGE = "how-to/text.md"

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Index, retrieve, rerank and evaluate text; train rankers that read it.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=epilog(_PAGE),
)

_add = partial(add_command, app, page=_PAGE, shared=DESCRIPTIONS)
_add("index", text_index.index)
_add("retrieve", text_retrieve.retrieve)
_add("train", text_train.train)
_add("rerank", text_rerank.rerank)
_add("evaluate", evaluate.evaluate)
