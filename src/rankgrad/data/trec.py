"""TREC files: runs, which are ranked documents by query, and qrels, which are judgments.

A run has lines ``qid Q0 docid rank score tag``. Documents are ordered by score; their ranks are
ignored, as in trec_eval. Qrels have lines ``qid iteration docid grade``. Both may be compressed
with gzip, bzip2 or xz; :func:`write_run` and :func:`write_qrels` compress files whose names end in
``.gz``.

:mod:`rankgrad.text` reads and writes them; ``_scores.py`` reads and writes the scores of a data set
as a run.
"""

from __future__ import annotations

import gzip
import math
import operator
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rankgrad import _files
from rankgrad.data import _text_lines, columnar

__all__ = [
    "Qrels",
    "RankedList",
    "Run",
    "best_first",
    "check_tag",
    "check_zeros",
    "format_run",
    "looks_like_qrels",
    "read_qrels",
    "read_run",
    "run_lines",
    "write_qrels",
    "write_run",
]

Qrels: TypeAlias = dict[str, dict[str, int]]  #: grades by query and document

_RUN_COLUMNS, _QRELS_COLUMNS = 6, 4
_SPACE = re.compile(r"[ \t\n\r\f\v]")  # between columns; other Unicode spaces may be in an id


class _RunLine(NamedTuple):
    """One line of a run file.

    Attributes:
        number: of the line in its file, from 1.
        query: the query's id.
        document: the document's id.
        score: higher is better; finite.
        tag: the name of the run.
    """

    number: int
    query: str
    document: str
    score: float
    tag: str


@dataclass(frozen=True)
class RankedList:
    """The documents retrieved for one query, best first.

    Args:
        documents: ids, without duplicates.
        scores: ``[n]``, descending. Documents with equal scores are in descending order of their
            ids, which is how trec_eval breaks ties.
    """

    documents: list[str]
    scores: NDArray[np.floating[Any]]

    def __len__(self) -> int:
        return len(self.documents)

    @classmethod
    def sort(cls, documents: Iterable[str], scores: Any) -> RankedList:
        """Rank documents, which may come in any order.

        Args:
            documents: their ids.
            scores: ``[n]``, one for each document.

        Returns:
            The documents, best first.

        Raises:
            ValueError: there is not one score for each document, or a score is not finite.

        >>> from rankgrad.data.trec import RankedList
        >>> RankedList.sort(["a", "b", "c"], [0.5, 2.0, 0.5]).documents
        ['b', 'c', 'a']
        """
        documents, values = list(documents), np.asarray(scores)
        if not np.issubdtype(values.dtype, np.floating):
            values = values.astype(np.float64)
        if values.shape != (len(documents),):
            raise ValueError(
                f"there must be a score for each of {len(documents)} documents, found the shape "
                f"{list(values.shape)}"
            )
        if not np.isfinite(values).all():
            i = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(f"the score of document {documents[i]!r} is {values[i]}")
        order = best_first(documents, values)
        return cls([documents[i] for i in order.tolist()], values[order])


def best_first(documents: Sequence[str], scores: NDArray[np.floating[Any]]) -> NDArray[np.intp]:
    """The order of documents by descending score; as in trec_eval, ties by descending id.

    Args:
        documents: their ids.
        scores: ``[n]``.

    Returns:
        The positions of the documents, best first.

    >>> from rankgrad.data.trec import best_first
    >>> best_first(["a", "b", "c"], np.array([0.5, 2.0, 0.5])).tolist()
    [1, 2, 0]
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    score_changes = np.flatnonzero(ranked[1:] != ranked[:-1]) + 1
    bounds = np.concatenate([[0], score_changes, [len(order)]])  # of the tie groups
    for group in np.flatnonzero(np.diff(bounds) > 1).tolist():
        tied = slice(bounds[group], bounds[group + 1])
        order[tied] = sorted(order[tied].tolist(), key=documents.__getitem__, reverse=True)
    return order


class Run(Mapping[str, RankedList]):
    """The ranked lists of a run by query; immutable.

    Args:
        lists: by query, in the order of the queries.
        tag: the name of the run.

    >>> from rankgrad.data.trec import RankedList, Run
    >>> run = Run({"301": RankedList.sort(["a", "b"], [0.5, 2.0])}, "bm25")
    >>> run.queries, run["301"].documents, run.tag
    (['301'], ['b', 'a'], 'bm25')
    """

    def __init__(self, lists: Mapping[str, RankedList], tag: str = "rankgrad") -> None:
        self._lists = dict(lists)
        self._tag = tag

    @property
    def queries(self) -> list[str]:
        """The ids of the queries."""
        return list(self._lists)

    @property
    def tag(self) -> str:
        """The name of the run."""
        return self._tag

    def __getitem__(self, query: str) -> RankedList:
        return self._lists[query]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)

    def __repr__(self) -> str:
        documents = sum(map(len, self._lists.values()))
        return f"Run({self.tag!r}, {len(self)} queries, {documents} documents)"


def run_lines(
    path: str | os.PathLike[str], numbered: Iterable[tuple[int, bytes]] | None = None
) -> Iterator[_RunLine]:
    """The lines of a run file, checked one by one.

    Columns after the tag are ignored, as in trec_eval; so are blank lines.

    Args:
        path: the file, which may be compressed.
        numbered: its lines with their numbers, if they were read before.

    Returns:
        An iterator over the lines.

    Raises:
        ValueError: a line has fewer than six columns, a score that is not a finite number, or a
            document that its query has already; the line is named.
    """
    queries: dict[bytes, tuple[str, set[str]]] = {}  # by encoded id: the id, its documents so far
    for number, line in _text_lines.numbered(path) if numbered is None else numbered:
        columns = line.split(None, _RUN_COLUMNS)
        if len(columns) < _RUN_COLUMNS:
            if not columns:
                continue
            raise ValueError(
                f"{path}, line {number}: expected six columns (qid Q0 docid rank score tag), found "
                f"{len(columns)}"
            )
        try:
            if columns[0] not in queries:
                queries[columns[0]] = columns[0].decode(), set()
            document, tag = columns[2].decode(), columns[5].decode()
        except UnicodeDecodeError:
            _text_lines.decode(path, number, line)  # raises an error that names the byte
            raise
        query, documents = queries[columns[0]]
        if document in documents:
            raise ValueError(
                f"{path}, line {number}: query {query!r} has document {document!r} twice; a "
                "document has one rank"
            )
        documents.add(document)
        yield _RunLine(number, query, document, _parse_score(path, number, columns[4]), tag)


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a TREC run; queries are in the order of the file.

    Args:
        path: the file, which may be compressed.

    Returns:
        The run, with scores in float64 and the tag of the first line.

    Raises:
        ValueError: as :func:`run_lines`, or the file is empty.
    """
    by_query: dict[str, tuple[list[str], list[float]]] = {}
    tag = ""
    for line in run_lines(path):
        tag = tag or line.tag
        documents, scores = by_query.setdefault(line.query, ([], []))
        documents.append(line.document)
        scores.append(line.score)
    if not by_query:
        raise ValueError(f"{path} has no ranked documents in it")
    return Run(
        {
            query: RankedList.sort(documents, np.array(scores, np.float64))
            for query, (documents, scores) in by_query.items()
        },
        tag,
    )


def write_run(
    path: str | os.PathLike[str],
    run: Mapping[str, RankedList | Mapping[str, float]],
    *,
    tag: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a TREC run atomically, best documents first.

    Scores are written with the fewest digits that read back as the same numbers.

    Args:
        path: the file; it is compressed if its name ends in ``.gz``.
        run: for each query, a ranked list or the scores by document.
        tag: the name of the run; by default the run's own, or ``rankgrad``.
        overwrite: replace a file that exists.

    Raises:
        ValueError: an id or the tag has white space in it, a query has a document twice, or a
            score is not finite.
        FileExistsError: the file exists, and ``overwrite`` is False.
    """
    name = tag if tag is not None else run.tag if isinstance(run, Run) else "rankgrad"
    _write_lines(Path(path), format_run(run, name), overwrite)


def format_run(
    run: Mapping[str, RankedList | Mapping[str, float]], tag: str = "rankgrad"
) -> Iterator[str]:
    """The lines of a run file, without line ends; see :func:`write_run`.

    Args:
        run: for each query, a ranked list or the scores by document.
        tag: the name of the run.

    Returns:
        An iterator over the lines.

    Raises:
        ValueError: an id or the tag has white space in it, a query has a document twice, or a
            score is not finite.

    >>> from rankgrad.data.trec import format_run
    >>> list(format_run({"7": {"a": 0.5, "b": 2.0}}, "bm25"))
    ['7 Q0 b 1 2.0 bm25', '7 Q0 a 2 0.5 bm25']
    """
    check_tag(tag)
    for query, retrieved in run.items():
        _check_id("query", query)
        if isinstance(retrieved, RankedList):
            ranked = RankedList.sort(retrieved.documents, retrieved.scores)
            if len(set(ranked.documents)) < len(ranked):
                raise ValueError(f"query {query!r} has a document twice; a document has one rank")
        else:
            ranked = RankedList.sort(retrieved, np.array(list(retrieved.values())))
        texts = ranked.scores.astype(np.str_).tolist()
        for rank, (document, text) in enumerate(zip(ranked.documents, texts, strict=True), start=1):
            _check_id("document", document)
            yield f"{query} Q0 {document} {rank} {text} {tag}"


def read_qrels(path: str | os.PathLike[str]) -> Qrels:
    """Read TREC relevance judgments.

    Args:
        path: the file, which may be compressed.

    Returns:
        Grades by query and document. They may be negative; a grade below 1 is not relevant.

    Raises:
        ValueError: the file is empty; or a line, which is named, does not have four columns, has a
            grade that is not a whole number, or judges a document a second time for its query.
    """
    qrels: Qrels = {}
    for number, line in _text_lines.numbered(path):
        columns = [_text_lines.decode(path, number, column) for column in line.split()]
        if not columns:
            continue
        if len(columns) != _QRELS_COLUMNS:
            raise ValueError(
                f"{path}, line {number}: expected four columns (qid iteration docid grade), found "
                f"{len(columns)}{_beir_hint(columns)}"
            )
        query, _, document, grade = columns
        if not re.fullmatch(r"[+-]?[0-9]+", grade):
            raise ValueError(f"{path}, line {number}: the grade {grade!r} is not a whole number")
        grades = qrels.setdefault(query, {})
        if document in grades:
            raise ValueError(
                f"{path}, line {number}: document {document!r} is judged twice for query {query!r}"
            )
        grades[document] = int(grade)
    if not qrels:
        raise ValueError(f"{path} has no judgments in it")
    return qrels


def check_zeros(first: Collection[str], second: Collection[str], names: tuple[str, str]) -> None:
    """Raise an error if query ids of two sources do not match because of leading zeros alone.

    Args:
        first: query ids.
        second: query ids.
        names: what the error calls the two.

    >>> check_zeros({"051": "a"}, {"51": {}}, ("topics", "qrels"))
    Traceback (most recent call last):
    ValueError: query '051' of topics is '51' in qrels: leading zeros differ; write them alike
    """
    without_zeros = {query.lstrip("0"): query for query in second if query not in first}
    for query in first:
        match = None if query in second else without_zeros.get(query.lstrip("0"))
        if match is not None and query.isdigit():
            raise ValueError(
                f"query {query!r} of {names[0]} is {match!r} in {names[1]}: leading zeros differ; "
                "write them alike"
            )


def check_tag(tag: str) -> None:
    """Raise ``ValueError`` if the tag of a run is not one word."""
    if not tag or _SPACE.search(tag):
        raise ValueError(f"the tag of a run must be one word, found {tag!r}")


def looks_like_qrels(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds qrels, rather than a data set of features.

    The first line that is not blank decides. In LETOR and LibSVM files its second column is a pair,
    such as ``qid:10`` or ``1:0.5``. CSV and TSV files, known by their suffix, start with a header:
    they are qrels only if the line has four columns and ends in a whole number. Any other text file
    of two columns or more counts as qrels, unless it starts with ``#``, so that :func:`read_qrels`
    reports what is wrong with it.

    Args:
        path: any path.

    Returns:
        Whether it is a file of qrels.
    """
    path = Path(path)
    if not path.is_file() or columnar.suffix(path) in (*columnar.PARQUET, *columnar.ARROW):
        return False
    first = next((line for _, line in _text_lines.numbered(path) if line.strip()), b"")
    columns = first.split()
    if columnar.is_columnar(path):  # MS MARCO's qrels.dev.tsv
        return len(columns) == _QRELS_COLUMNS and columns[-1].lstrip(b"+-").isdigit()
    return len(columns) > 1 and b":" not in columns[1] and not first.startswith(b"#")


def write_qrels(
    path: str | os.PathLike[str], qrels: Mapping[str, Mapping[str, int]], *, overwrite: bool = False
) -> None:
    """Write TREC relevance judgments atomically.

    Args:
        path: the file; it is compressed if its name ends in ``.gz``.
        qrels: grades by query and document.
        overwrite: replace a file that exists.

    Raises:
        ValueError: an id has white space in it, or a grade is not a whole number.
        FileExistsError: the file exists, and ``overwrite`` is False.
    """

    def lines() -> Iterator[str]:
        for query, grades in qrels.items():
            _check_id("query", query)
            for document, grade in grades.items():
                _check_id("document", document)
                if not hasattr(grade, "__index__"):
                    raise ValueError(f"the grade {grade!r} of document {document!r} is not whole")
                yield f"{query} 0 {document} {operator.index(grade)}"

    _write_lines(Path(path), lines(), overwrite)


def _beir_hint(columns: Sequence[str]) -> str:
    """For an error: how to convert judgments in BEIR's three columns; empty for other lines."""
    is_header = columns[0].lower().replace("_", "-") == "query-id"
    if len(columns) != _QRELS_COLUMNS - 1 or not (is_header or columns[2].lstrip("+-").isdigit()):
        return ""
    return (
        ". Three columns (query-id corpus-id score) are BEIR's: drop the header and put a column "
        "of 0 in between, as with awk 'NR > 1 {print $1, 0, $2, $3}'"
    )


def _write_lines(path: Path, lines: Iterable[str], overwrite: bool) -> None:
    _files.check_file_free(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = (f"{line}\n".encode() for line in lines)
    with _files.atomic_write(path) as file:
        if path.suffix.lower() != ".gz":
            file.writelines(encoded)
            return
        # The header has no file name and no time, so that equal runs are equal bytes.
        with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
            compressed.writelines(encoded)


def _parse_score(path: str | os.PathLike[str], number: int, text: bytes) -> float:
    score = _text_lines.number_at(path, number, text.decode(errors="replace"))
    if not math.isfinite(score):
        raise ValueError(f"{path}, line {number}: the score {text.decode()!r} is not finite")
    return score


def _check_id(kind: str, name: str) -> None:
    if not name or _SPACE.search(name):
        raise ValueError(f"a {kind}'s id in a TREC file must be one word, found {name!r}")
