"""Cranfield and CISI: small test collections with texts, queries and judgments.

Their judgments are not in TREC's format and do not mean what they seem to:

- Cranfield's queries are judged by their position in ``cran.qry``, 1 to 225, and not by the ids in
  it, which have gaps. Its codes go down: 1 is a complete answer, 4 of minimum interest. Here the
  grade is 5 - code, 4 being the best; the one document per query with the code -1 has the grade 0.
- CISI's judgments are binary; 76 of its 112 queries have any.
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
        topics: texts by query id; queries without judgments are there too.
        qrels: grades by query and document; 0 is not relevant.
    """

    documents: dict[str, str]
    topics: dict[str, str]
    qrels: Qrels


def load_cranfield(folder: Path) -> JudgedCollection:
    """Cranfield, of ``cran.all.1400``, ``cran.qry`` and ``cranqrel``.

    Raises:
        ValueError: a judgment that cannot be read, with its line.
    """
    records = _smart.text_records(folder / "cran.qry")
    topics = {str(position): record.text for position, record in enumerate(records, start=1)}
    qrels = _judgments(folder / "cranqrel", topics, {1: 4, 2: 3, 3: 2, 4: 1, -1: 0})
    return JudgedCollection(_texts(folder / "cran.all.1400"), topics, qrels)


def load_cisi(folder: Path) -> JudgedCollection:
    """CISI, of ``CISI.ALL``, ``CISI.QRY`` and ``CISI.REL``.

    Raises:
        ValueError: a judgment that cannot be read, with its line.
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
        ValueError: the folder holds none of them, or a file cannot be read, with the line.
    """
    for name, loader in _LOADERS.items():
        if Path(folder, name).is_file():
            return loader(Path(folder))
    raise ValueError(f"{folder} is not the folder of a known collection: no {', '.join(_LOADERS)}")


_LOADERS = {"cran.all.1400": load_cranfield, "CISI.ALL": load_cisi}


def _texts(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for line, name, text in _smart.text_records(path):
        if name in texts:
            raise ValueError(f"{path}, line {line}: {name!r} comes twice")
        texts[name] = text
    return texts


def _judgments(path: Path, topics: dict[str, str], grades: dict[int, int]) -> Qrels:
    """Lines of a query, a document and a code; columns after it are passed over."""
    qrels: Qrels = {}
    for number, line in _text_lines.numbered(path):
        columns = _text_lines.decode(path, number, line).split()
        if not columns:
            continue
        has_grade = len(columns) >= 3 and columns[2] in map(str, grades)
        if not has_grade or columns[0] not in topics:
            raise ValueError(
                f"{path}, line {number}: expected a query, a document and a code of "
                f"{', '.join(map(str, grades))}, found {' '.join(columns)!r}"
            )
        judged = qrels.setdefault(columns[0], {})
        if columns[1] in judged:
            raise ValueError(
                f"{path}, line {number}: document {columns[1]} is judged twice for {columns[0]}"
            )
        judged[columns[1]] = grades[int(columns[2])]
    return qrels
