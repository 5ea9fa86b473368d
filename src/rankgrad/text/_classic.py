"""Cranfield and CISI: small test collections with texts, queries and judgments, one folder each.

``_collections`` and the commands that take judgments read such folders through this module. The
judgments are not in TREC's format, and their columns are easily misread:

- Cranfield's judgments name a query by its position in ``cran.qry``, 1 to 225, not by its id in
  that file. Lower codes are better: 1 is a complete answer, 4 is of minimum interest. Here the
  grade is 5 - code, so that 4 is the best; the one document per query with the code -1 has the
  grade 0.
- CISI's judgments are binary: each line names a relevant document, with the code 0. 76 of its 112
  queries have any.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from rankgrad.data import _text_lines
from rankgrad.data.trec import Qrels
from rankgrad.text import _smart


class JudgedCollection(NamedTuple):
    """Documents, topics and judgments.

    Attributes:
        documents: texts by document id.
        topics: texts by query id, also of queries without judgments.
        qrels: grades by query and document; 0 is not relevant.
    """

    documents: dict[str, str]
    topics: dict[str, str]
    qrels: Qrels


def load_cranfield(folder: Path) -> JudgedCollection:
    """Read Cranfield from ``cran.all.1400``, ``cran.qry`` and ``cranqrel``.

    Raises:
        ValueError: a judgment cannot be read; the message names its line.
    """
    records = _smart.text_records(folder / "cran.qry")
    topics = {str(position): record.text for position, record in enumerate(records, start=1)}
    qrels = _judgments(folder / "cranqrel", topics, {1: 4, 2: 3, 3: 2, 4: 1, -1: 0})
    return JudgedCollection(_texts(folder / "cran.all.1400"), topics, qrels)


def load_cisi(folder: Path) -> JudgedCollection:
    """Read CISI from ``CISI.ALL``, ``CISI.QRY`` and ``CISI.REL``.

    Raises:
        ValueError: a judgment cannot be read; the message names its line.
    """
    topics = _texts(folder / "CISI.QRY")
    qrels = _judgments(folder / "CISI.REL", topics, {0: 1})
    return JudgedCollection(_texts(folder / "CISI.ALL"), topics, qrels)


def is_known(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds one of these collections, by the names of its files."""
    return any(Path(folder, name).is_file() for name in _LOADERS)


def load(folder: str | os.PathLike[str]) -> JudgedCollection:
    """The collection that a folder holds.

    Raises:
        ValueError: the folder holds none of them, or a line of a file cannot be read.
    """
    for name, loader in _LOADERS.items():
        if Path(folder, name).is_file():
            return loader(Path(folder))
    raise ValueError(f"{folder} is not the folder of a known collection: no {', '.join(_LOADERS)}")


_LOADERS = {"cran.all.1400": load_cranfield, "CISI.ALL": load_cisi}


def _texts(path: Path) -> dict[str, str]:
    """The texts of a file by id."""
    texts: dict[str, str] = {}
    for line, id, text in _smart.text_records(path):
        if id in texts:
            raise ValueError(f"{path}, line {line}: {id!r} comes twice")
        texts[id] = text
    return texts


def _judgments(path: Path, topics: dict[str, str], grades: dict[int, int]) -> Qrels:
    """Read lines of a query, a document and a code; further columns are ignored.

    Args:
        path: the file.
        topics: the queries that may be judged.
        grades: the grade of each code.
    """
    qrels: Qrels = {}
    for number, line in _text_lines.numbered(path):
        columns = _text_lines.decode(path, number, line).split()
        if not columns:
            continue
        has_code = len(columns) >= 3 and columns[2] in map(str, grades)
        if not has_code or columns[0] not in topics:
            raise ValueError(
                f"{path}, line {number}: expected a query, a document and a code of "
                f"{', '.join(map(str, grades))}, found {' '.join(columns)!r}"
            )
        query, document, code = columns[:3]
        query_grades = qrels.setdefault(query, {})
        if document in query_grades:
            raise ValueError(
                f"{path}, line {number}: document {document} is judged twice for {query}"
            )
        query_grades[document] = grades[int(code)]
    return qrels
