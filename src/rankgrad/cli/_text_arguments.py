"""Arguments that commands for text share, and the texts they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rankgrad.text._candidates import Candidates
    from rankgrad.text._reading import Prompt

Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="The candidates: a TREC run, such as `rankgrad text retrieve` writes, also .gz.",
        show_default=False,
    ),
]
Collection = Annotated[
    str,
    typer.Option(
        help="The documents: JSONL, TSV, TREC or SMART, also .gz, or a folder of such files; the "
        "folder of Cranfield or CISI; ir_datasets:ID or datasets:NAME.",
        show_default=False,
    ),
]
Topics = Annotated[
    str | None,
    typer.Option(
        help="The queries, in the same formats.", show_default="those of the folder of Cranfield"
    ),
]
Qrels = Annotated[
    Path | None,
    typer.Option(
        help="TREC judgments, also .gz.", show_default="those of the folder of Cranfield or CISI"
    ),
]
Field = Annotated[
    Literal["title", "description", "narrative"],
    typer.Option(help="What of TREC topics is the query."),
]
Depth = Annotated[
    int | None,
    typer.Option(help="Candidates a query at most.", min=1, show_default="all of the run"),
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        help="What a causal language model is asked: TOML with prefix, body (with {query} and "
        "{document}), suffix, yes and no.",
        show_default="what Qwen3-Reranker is",
    ),
]


def read_prompt(path: Path | None) -> Prompt | None:
    """The prompt of a file, if there is one."""
    from rankgrad.text._reading import Prompt

    return None if path is None else Prompt.read(path)


def read(
    run: Path,
    collection: str,
    topics: str | None,
    qrels: Path | None,
    *,
    field: Literal["title", "description", "narrative"] = "title",
    depth: int | None = None,
    judged: bool = True,
) -> Candidates:
    """The candidates of a run with texts, and judgments where they are asked for."""
    from rankgrad.data.trec import read_qrels, read_run
    from rankgrad.text import _classic
    from rankgrad.text._candidates import Candidates
    from rankgrad.text._collections import read_documents, read_topics

    known = _classic.load(collection) if _classic.is_known(collection) else None
    if topics is None and known is None:
        raise ValueError("--topics is missing: the file of the queries")
    if judged and qrels is None and known is None:
        raise ValueError("--qrels is missing: the file of the judgments")
    found = read_run(run)
    documents = read_documents(collection) if known is None else known.documents
    queries = read_topics(topics, field=field) if topics is not None else None
    if queries is None:
        assert known is not None
        queries = known.topics
    grades = None
    if judged:
        grades = read_qrels(qrels) if qrels is not None else known.qrels if known else None
    return Candidates.of(found, documents, queries, grades, depth=depth)
