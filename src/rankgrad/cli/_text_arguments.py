"""Arguments that commands for text share, and the texts they name.

Inputs:
    run: The candidates: a TREC run, such as `rankgrad text retrieve` writes, also .gz.

Options:
    collection: The documents: JSONL, TSV, TREC or SMART, also .gz, or a folder of such files; the
        folder of Cranfield or CISI; ir_datasets:ID or datasets:NAME.
    topics: The queries, in the same formats. [default: those of the folder of Cranfield]
    qrels: TREC judgments, also .gz. [default: those of the folder of Cranfield or CISI]
    field: What of TREC topics is the query.
    depth: Candidates a query at most. [default: all of the run]
    prompt: What a causal language model is asked: TOML with prefix, body (with {query} and
        {document}), suffix, yes and no. [default: what Qwen3-Reranker is]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankgrad.cli import _arguments

if TYPE_CHECKING:
    from rankgrad.text._candidates import Candidates
    from rankgrad.text._reading import Prompt

#: As of :mod:`rankgrad.cli._arguments`, for the commands of text.
DESCRIPTIONS = f"{_arguments.DESCRIPTIONS}\n{__doc__}"

Field = Literal["title", "description", "narrative"]
Depth = Annotated[int | None, typer.Option(min=1)]


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
    field: Field = "title",
    depth: int | None = None,
    judged: bool = True,
) -> Candidates:
    """The candidates of a run with texts, and judgments where they are asked for."""
    from rankgrad.data.trec import read_qrels, read_run
    from rankgrad.text import _classic
    from rankgrad.text._candidates import Candidates
    from rankgrad.text._collections import read_documents, read_topics

    known: Any = _classic.load(collection) if _classic.is_known(collection) else None
    if topics is None and known is None:
        raise ValueError("--topics is missing: the file of the queries")
    if judged and qrels is None and known is None:
        raise ValueError("--qrels is missing: the file of the judgments")
    retrieved = read_run(run)
    documents = read_documents(collection) if known is None else known.documents
    queries = known.topics if topics is None else read_topics(topics, field=field)
    grades = None
    if judged:
        grades = known.qrels if qrels is None else read_qrels(qrels)
    return Candidates.of(retrieved, documents, queries, grades, depth=depth)
