"""``rankgrad text retrieve``: writes the best documents by BM25 as a TREC run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from rankgrad.cli._printing import progress_bar, show_notes
from rankgrad.cli._text_arguments import Field

__all__ = ["retrieve"]


def retrieve(
    index: Annotated[Path, typer.Argument(metavar="INDEX")],
    topics: Annotated[str, typer.Argument(metavar="TOPICS")],
    output: Annotated[Path, typer.Option("--output", "-o")],
    depth: Annotated[int, typer.Option(min=1)] = 100,
    format: Literal["jsonl", "tsv", "trec", "smart"] | None = None,
    field: Field = "title",
    tag: str = "bm25",
    overwrite: bool = False,
) -> None:
    """Retrieve the best documents for each topic by BM25.

    Documents without any of a query's words are not retrieved; equal scores are in order of
    document id, descending, as trec_eval ranks them.

    Inputs:
        index: An index of `rankgrad text index`.
        topics: Queries: TSV (id, text), JSONL, TREC topics or SMART, also .gz; the folder of
            Cranfield or CISI; ir_datasets:ID or datasets:NAME where that package is installed.

    Options:
        format: The format of the topics. [default: by name and first line]
        field: The field of TREC topics that is the query.
        output: The TREC run to write, also .gz.
        depth: The most documents per query.
        tag: The name of the run.

    \b
    Examples:
      rankgrad text retrieve msmarco.index queries.tsv -o bm25.run --depth 1000
      rankgrad text retrieve robust.index topics.robust04.txt --field description -o bm25.run.gz
    """  # noqa: D301
    from rankgrad import _files
    from rankgrad.data.trec import check_tag, write_run
    from rankgrad.text._collections import read_topics
    from rankgrad.text._first_stage import BM25Index

    _files.check_file_free(output, overwrite)
    check_tag(tag)
    queries = read_topics(topics, format, field=field)
    bm25 = BM25Index.load(index)
    with progress_bar("queries") as update:
        run = bm25.retrieve(queries, depth, on_query=partial(update, total=len(queries), advance=1))
    write_run(output, run, tag=tag, overwrite=overwrite)
    missing = [qid for qid in queries if qid not in run]
    if missing:
        show_notes([f"nothing was found for {len(missing)} queries; the first is {missing[0]!r}"])
    print(f"retrieved for {len(run):,} queries: {output}")
