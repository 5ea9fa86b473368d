"""Arguments that the commands for text share: types, help texts, and the reading of texts.

This docstring is read by :func:`rankgrad.cli._docstrings.add_command`: it has the help texts.

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

#: Help texts of arguments that the docstring of a text command does not describe.
DESCRIPTIONS = f"{_arguments.DESCRIPTIONS}\n{__doc__}"

Field = Literal["title", "description", "narrative"]
Depth = Annotated[int | None, typer.Option(min=1)]


def read_prompt(path: Path | None) -> Prompt | None:
    """Read a prompt from a TOML file; None without a file."""
    from rankgrad.text._reading import Prompt

    return None if path is None else Prompt.read(path)


def read_candidates(
    run: Path,
    collection: str,
    topics: str | None,
    qrels: Path | None,
    *,
    field: Field = "title",
    depth: int | None = None,
    judged: bool = True,
) -> Candidates:
    """Read the candidates of a TREC run with their texts.

    Args:
        run: the TREC run.
        collection: the documents; the folder of Cranfield or CISI has topics and judgments, too.
        topics: the queries; None for those in the folder of Cranfield or CISI.
        qrels: the judgments; None for those in the folder of Cranfield or CISI.
        field: the field of TREC topics that is the query.
        depth: how many candidates of each query to take; None for all.
        judged: whether the candidates get the grades of the judgments; if not, ``qrels`` is not
            read.

    Raises:
        ValueError: topics or judgments are needed, and neither given nor in the collection's
            folder.
    """
    from rankgrad.data.trec import read_qrels, read_run
    from rankgrad.text import _classic
    from rankgrad.text._candidates import Candidates
    from rankgrad.text._collections import read_documents, read_topics

    # Cranfield or CISI: a folder with documents, topics and judgments.
    classic: Any = _classic.load(collection) if _classic.is_known(collection) else None
    if topics is None and classic is None:
        raise ValueError("--topics is missing: the file of the queries")
    if judged and qrels is None and classic is None:
        raise ValueError("--qrels is missing: the file of the judgments")
    retrieved = read_run(run)
    documents = read_documents(collection) if classic is None else classic.documents
    queries = classic.topics if topics is None else read_topics(topics, field=field)
    grades = None
    if judged:
        grades = classic.qrels if qrels is None else read_qrels(qrels)
    return Candidates.of(retrieved, documents, queries, grades, depth=depth)
