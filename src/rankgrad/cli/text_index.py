"""``rankgrad text index``: indexes a collection of documents for BM25."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["index"]


def index(
    collection: Annotated[str, typer.Argument(metavar="COLLECTION")],
    output: Annotated[Path, typer.Option("--output", "-o")],
    format: Literal["jsonl", "tsv", "trec", "smart"] | None = None,
    stop_words: Literal["english", "none"] = "english",
    stemmer: str | None = None,
    k1: Annotated[float, typer.Option("--k1")] = 1.5,
    b: Annotated[float, typer.Option("--b")] = 0.75,
    overwrite: bool = False,
) -> None:
    """Index a collection for BM25.

    Inputs:
        collection: Documents: JSONL, TSV (MS MARCO), TREC/SGML or SMART, also .gz; a folder of such
            files; the folder of Cranfield or CISI; ir_datasets:ID or datasets:NAME where that
            package is installed.

    Options:
        format: Of the files. [default: by their names and first lines]
        output: The index to write, a folder.
        stop_words: Words that are left out.
        stemmer: A Snowball stemmer, such as english; needs PyStemmer.
        k1: How fast repeated terms stop counting.
        b: How much long documents are discounted.

    \b
    Examples:
      rankgrad text index collection.tsv -o msmarco.index
      rankgrad text index corpus.jsonl.gz --stemmer english -o corpus.index
      rankgrad text index cranfield -o cranfield.index
    """  # noqa: D301
    from rankgrad.text._collections import read_documents
    from rankgrad.text._first_stage import BM25Index, BM25Settings, check_target

    settings = BM25Settings(stop_words=stop_words, stemmer=stemmer, k1=k1, b=b)
    check_target(output, overwrite)
    documents = read_documents(collection, format)
    bm25 = BM25Index.build(documents, settings, progress=sys.stderr.isatty())
    bm25.save(output, overwrite=overwrite)
    empty = sum(not text for text in documents.values())
    empty_note = f", {empty:,} of them empty" if empty else ""
    print(f"indexed {len(documents):,} documents{empty_note}: {output}")
