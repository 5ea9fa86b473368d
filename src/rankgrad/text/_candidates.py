"""Candidates: the documents that a first stage retrieved for each query, to be reranked.

``rankgrad text`` builds them from a run, a collection, topics and judgments. They are what text
rankers are trained (``_training``) and evaluated on. :func:`folds` splits them for
cross-validation.
"""

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

RankedLists = Mapping[str, RankedList]  # by query id


@dataclass(frozen=True)
class Candidates:
    """Queries with their candidate documents in flat layout: ``[B]`` queries, ``[N]`` documents.

    The candidates of one query are a list.

    Attributes:
        qids: ids of the queries, ``[B]``.
        queries: texts of the queries, ``[B]``.
        offsets: ``[B + 1]``: query b has the documents ``offsets[b]:offsets[b + 1]``, maybe none.
        docids: ids of the documents, ``[N]``.
        texts: texts of the documents, ``[N]``.
        labels: grades of the documents, ``[N]``; 0 for unjudged ones and negative grades.
        first_stage: scores of the first stage, ``[N]``.
        qrels: the judgments of these queries, also of documents that were not retrieved; empty if
            there are no judgments.
        teacher: a teacher's labels, ``[N]``, to train on instead of the grades or beside them; None
            without a teacher.
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
        run: RankedLists,
        documents: Mapping[str, str],
        topics: Mapping[str, str],
        qrels: Mapping[str, Mapping[str, int]] | None = None,
        *,
        depth: int | None = None,
    ) -> Candidates:
        """The candidates of a run, with their texts and judgments.

        If there are judgments, unjudged queries are left out, and a judged query that is not in
        the run has no candidates.

        Args:
            run: ranked lists by query id, best first.
            documents: texts by document id.
            topics: texts by query id.
            qrels: grades by query id and document id.
            depth: take at most this many documents of each list.

        Raises:
            ValueError: a document of the run has no text, no query of the topics has candidates, or
                ids of queries differ by leading zeros alone.
        """
        check_zeros(topics, run, ("the topics", "the run"))
        if qrels is not None:
            check_zeros(topics, qrels, ("the topics", "the judgments"))
        qids = [qid for qid in topics if (qid in run if qrels is None else qid in qrels)]
        docids: list[str] = []
        first_stage: list[float] = []
        labels: list[float] = []
        offsets = [0]
        for qid in qids:
            grades = {} if qrels is None else qrels[qid]
            if qid in run:
                retrieved = list(run[qid].documents)[:depth]
                docids += retrieved
                first_stage += np.asarray(run[qid].scores, np.float64)[:depth].tolist()
                labels += [max(0, grades.get(docid, 0)) for docid in retrieved]
            offsets.append(len(docids))
        if not docids:
            raise ValueError(
                f"the run has candidates for none of {len(topics)} topics: its query ids, such as "
                f"{next(iter(run), None)!r}, are not theirs, such as {next(iter(topics), None)!r}"
            )
        missing = next((docid for docid in docids if docid not in documents), None)
        if missing is not None:
            raise ValueError(f"the collection has no document {missing!r}, which the run has")
        return cls(
            qids=tuple(qids),
            queries=tuple(topics[qid] for qid in qids),
            offsets=np.array(offsets, np.int64),
            docids=tuple(docids),
            texts=tuple(documents[docid] for docid in docids),
            labels=np.array(labels, np.float32),
            first_stage=np.array(first_stage, np.float64),
            qrels={} if qrels is None else {qid: dict(qrels[qid]) for qid in qids},
        )

    def with_teacher(self, run: RankedLists, transform: Transform = "shift") -> Candidates:
        """The same candidates with labels from a teacher's run to train on.

        Evaluation still uses the grades. Documents and queries that are not in the teacher's run
        get the label 0.

        Args:
            run: the teacher's ranked lists by query id.
            transform: see :func:`rankgrad.text.teacher_labels`; ``"rank"`` takes the order alone.

        Raises:
            ValueError: the teacher has none of the queries, or ids of queries differ by leading
                zeros alone.
        """
        check_zeros(self.qids, run, ("the candidates", "the teacher's run"))
        if not any(qid in run for qid in self.qids):
            raise ValueError(
                f"the teacher's run has none of the {len(self)} queries: its query ids, such as "
                f"{next(iter(run), None)!r}, are not theirs, such as {self.qids[0]!r}"
            )
        labels = np.zeros(len(self.docids), np.float32)
        for qid, start, stop in self._bounds():
            if qid in run:
                list_labels = labels_from_run(run[qid], self.docids[start:stop], transform)
                labels[start:stop] = list_labels.numpy()
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
        """The texts of the pairs: ``[N]`` queries, each repeated, and ``[N]`` documents."""
        lengths = self.lengths.tolist()
        repeated = [q for q, n in zip(self.queries, lengths, strict=True) for _ in range(n)]
        return repeated, self.texts

    def items(self, lists: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices ``[n]`` of the documents of some ``lists`` ``[b]``, list after list."""
        ranges = [np.arange(self.offsets[b], self.offsets[b + 1]) for b in lists]
        return np.concatenate([np.empty(0, np.int64), *ranges])

    def select(self, lists: NDArray[np.int64]) -> Candidates:
        """The candidates of some ``lists`` ``[b]``, in that order."""
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
        """Rank the documents of each query by ``scores`` ``[N]``.

        The run lacks queries without candidates.
        """
        lists = {
            qid: RankedList.sort(self.docids[start:stop], scores[start:stop])
            for qid, start, stop in self._bounds()
        }
        return Run(lists, tag)

    def _bounds(self) -> Iterator[tuple[str, int, int]]:
        """For each query with candidates: its id, and its documents as ``start`` and ``stop``."""
        for qid, (start, stop) in zip(self.qids, pairwise(self.offsets.tolist()), strict=True):
            if stop > start:
                yield qid, start, stop

    def evaluate(self, scores: NDArray[Any], metrics: Iterable[str]) -> RunEvaluation:
        """Metrics of all queries, in their order, with documents ranked by ``scores``.

        As with trec_eval's option ``-c``, relevant documents that were not retrieved count, and so
        do queries without candidates.

        Args:
            scores: ``[N]``.
            metrics: specs of the metrics.

        Raises:
            ValueError: there are no judgments.
        """
        if not self.qrels:
            raise ValueError("there are no judgments to evaluate with")
        return evaluate_run(self.run(scores), self.qrels, metrics, Conventions(complete=True))

    def checksum(self) -> str:
        """A digest of everything above: queries, documents, labels, scores and judgments."""
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
    """Indices of the lists of one fold, ``[b]`` each: for training, validation and test."""

    train: NDArray[np.int64]
    vali: NDArray[np.int64]
    test: NDArray[np.int64]


def folds(queries: int, count: int = 5, *, seed: int = 0) -> list[Split]:
    """Split queries into folds at random, and give each fold its turn as the test set.

    The fold after the test fold is for validation, and all others are for training.

    Args:
        queries: the number of queries.
        count: the number of folds, at least 3.
        seed: the seed of the random order.

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
