"""Candidates: the documents that a first stage retrieved for each query, to be reranked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankgrad.data.trec import Qrels, RankedList, Run, check_zeros
from rankgrad.text._evaluation import Conventions, RunEvaluation, evaluate_run
from rankgrad.text._teachers import Transform, labels_from_run


@dataclass(frozen=True)
class Candidates:
    """Queries with their candidate documents in flat layout: ``[B]`` queries, ``[N]`` documents.

    Attributes:
        qids: ids of the queries, ``[B]``.
        queries: their texts, ``[B]``.
        offsets: ``[B + 1]``: query b has the documents ``offsets[b]:offsets[b + 1]``, maybe none.
        docids: ids of the documents, ``[N]``.
        texts: their texts, ``[N]``.
        labels: their grades, ``[N]``; 0 where they are not judged or judged below 0.
        first_stage: their scores in the first stage, ``[N]``.
        qrels: the judgments of these queries, also of documents that were not retrieved; without
            judgments, none.
        teacher: labels to train on instead of the grades, or beside them, ``[N]``, where there is a
            teacher.
    """

    qids: tuple[str, ...]
    queries: tuple[str, ...]
    offsets: NDArray[np.int64]
    docids: tuple[str, ...]
    texts: tuple[str, ...]
    labels: NDArray[np.float32]
    first_stage: NDArray[np.float64]
    qrels: Qrels
    teacher: NDArray[np.float32] | None = None

    @classmethod
    def of(
        cls,
        run: Mapping[str, Any],
        documents: Mapping[str, str],
        topics: Mapping[str, str],
        qrels: Mapping[str, Mapping[str, int]] | None = None,
        *,
        depth: int | None = None,
    ) -> Candidates:
        """The candidates of a run, with their texts and judgments.

        With judgments, queries that have none are left out; a judged query that the run does not
        have is there without candidates.

        Args:
            run: ranked lists with ``documents`` and ``scores``, best first, by query.
            documents: texts by document.
            topics: texts by query.
            qrels: grades by query and document.
            depth: take this many documents of each list.

        Raises:
            ValueError: a document of the run has no text, no query of the topics has candidates, or
                ids of queries differ by leading zeros alone.
        """
        check_zeros(topics, run, ("the topics", "the run"))
        if qrels is not None:
            check_zeros(topics, qrels, ("the topics", "the judgments"))
        chosen = [qid for qid in topics if (qid in run if qrels is None else qid in qrels)]
        docids: list[str] = []
        first: list[float] = []
        labels: list[float] = []
        ends = [0]
        for qid in chosen:
            grades = {} if qrels is None else qrels[qid]
            if qid in run:
                names = list(run[qid].documents)[:depth]
                docids += names
                first += np.asarray(run[qid].scores, np.float64)[:depth].tolist()
                labels += [max(0, grades.get(name, 0)) for name in names]
            ends.append(len(docids))
        if not docids:
            raise ValueError(
                f"the run has candidates for none of {len(topics)} topics: its query ids, such as "
                f"{next(iter(run), None)!r}, are not theirs, such as {next(iter(topics), None)!r}"
            )
        missing = next((name for name in docids if name not in documents), None)
        if missing is not None:
            raise ValueError(f"the collection has no document {missing!r}, which the run has")
        return cls(
            qids=tuple(chosen),
            queries=tuple(topics[qid] for qid in chosen),
            offsets=np.array(ends, np.int64),
            docids=tuple(docids),
            texts=tuple(documents[name] for name in docids),
            labels=np.array(labels, np.float32),
            first_stage=np.array(first, np.float64),
            qrels={} if qrels is None else {qid: dict(qrels[qid]) for qid in chosen},
        )

    def with_teacher(self, run: Mapping[str, Any], transform: Transform = "shift") -> Candidates:
        """The same candidates with labels from a teacher's run to train on.

        Evaluation stays with the grades. A document that the teacher does not have gets label 0.

        Args:
            run: the teacher's ranked lists by query; the teacher's labels of queries without one
                are 0.
            transform: see :func:`rankgrad.text.teacher_labels`; ``"rank"`` takes the order alone.

        Raises:
            ValueError: the teacher has none of the queries.
        """
        if not any(qid in run for qid in self.qids):
            raise ValueError(
                f"the teacher's run has none of the {len(self)} queries: its query ids, such as "
                f"{next(iter(run), None)!r}, are not theirs, such as {self.qids[0]!r}"
            )
        labels = np.zeros(len(self.docids), np.float32)
        for qid, first, last in self._bounds():
            if qid in run:
                list_labels = labels_from_run(run[qid], self.docids[first:last], transform)
                labels[first:last] = list_labels.numpy()
        return replace(self, teacher=labels)

    @property
    def targets(self) -> NDArray[np.float32]:
        """What a ranker is trained on, ``[N]``: the teacher's labels, or the grades."""
        return self.labels if self.teacher is None else self.teacher

    def __len__(self) -> int:
        return len(self.qids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many candidates each query has, ``[B]``."""
        return np.diff(self.offsets)

    def pairs(self) -> tuple[list[str], Sequence[str]]:
        """The query and the document of each pair, ``[N]`` each."""
        lengths = self.lengths.tolist()
        repeated = [q for q, n in zip(self.queries, lengths, strict=True) for _ in range(n)]
        return repeated, self.texts

    def items(self, lists: NDArray[np.int64]) -> NDArray[np.int64]:
        """The items of some lists, list after list."""
        ranges = [np.arange(self.offsets[b], self.offsets[b + 1]) for b in lists]
        return np.concatenate([np.empty(0, np.int64), *ranges])

    def select(self, lists: NDArray[np.int64]) -> Candidates:
        """The candidates of some lists, in their order."""
        items = self.items(lists)
        lengths = self.lengths[lists]
        return Candidates(
            qids=tuple(self.qids[b] for b in lists),
            queries=tuple(self.queries[b] for b in lists),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            docids=tuple(self.docids[i] for i in items),
            texts=tuple(self.texts[i] for i in items),
            labels=self.labels[items],
            first_stage=self.first_stage[items],
            qrels={self.qids[b]: self.qrels[self.qids[b]] for b in lists} if self.qrels else {},
            teacher=None if self.teacher is None else self.teacher[items],
        )

    def run(self, scores: NDArray[Any], tag: str = "rankgrad") -> Run:
        """The documents of each query ranked by some scores, ``[N]``.

        Queries without candidates are not in it.
        """
        lists = {
            qid: RankedList.sort(self.docids[first:last], scores[first:last])
            for qid, first, last in self._bounds()
        }
        return Run(lists, tag)

    def _bounds(self) -> Iterator[tuple[str, int, int]]:
        """Of each query with candidates its id, its first item, and the one after its last."""
        for qid, (first, last) in zip(self.qids, pairwise(self.offsets.tolist()), strict=True):
            if last > first:
                yield qid, first, last

    def evaluate(self, scores: NDArray[Any], metrics: Iterable[str]) -> RunEvaluation:
        """Metrics of all queries, in their order, if documents are ranked by some scores.

        As trec_eval does with ``-c``: relevant documents that were not retrieved count, and so do
        queries without candidates.

        Args:
            scores: ``[N]``.
            metrics: their specs.
        """
        if not self.qrels:
            raise ValueError("there are no judgments to evaluate with")
        return evaluate_run(self.run(scores), self.qrels, metrics, Conventions(complete=True))

    def checksum(self) -> str:
        """A digest of all queries, documents, labels and judgments."""
        digest = hashlib.blake2b(digest_size=16)
        for texts in (self.qids, self.queries, self.docids, self.texts):
            for text in texts:
                digest.update(f"{len(text)} {text}".encode())
        for array in (self.offsets, self.labels, self.first_stage):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(json.dumps(self.qrels).encode())
        if self.teacher is not None:
            digest.update(self.teacher.tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Split:
    """The lists of one fold of a cross-validation: each is training, validation or test."""

    train: NDArray[np.int64]
    vali: NDArray[np.int64]
    test: NDArray[np.int64]


def folds(queries: int, count: int = 5, *, seed: int = 0) -> list[Split]:
    """Split queries into folds at random: one to test on, the next one to validate on.

    Args:
        queries: how many there are.
        count: of folds, at least 3: training takes what is left.
        seed: of the random order.

    >>> [split.test.tolist() for split in folds(6, 3, seed=1)]
    [[1, 4], [0, 5], [2, 3]]
    """
    if count < 3:
        raise ValueError(f"there must be 3 folds or more (test, validation, training), not {count}")
    if queries < count:
        raise ValueError(f"{queries} queries are too few for {count} folds")
    order = np.random.default_rng(seed).permutation(queries)
    parts = [np.sort(order[fold::count]) for fold in range(count)]
    return [
        Split(
            train=np.sort(np.concatenate([parts[(fold + k) % count] for k in range(2, count)])),
            vali=parts[(fold + 1) % count],
            test=parts[fold],
        )
        for fold in range(count)
    ]
