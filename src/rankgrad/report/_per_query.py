"""Per-query values and ranked lists for the report's page, as typed arrays in base64.

The dictionaries here are the JSON that ``page.js`` reads. They refer to an entry (what is compared,
such as a loss), a metric and a fold by its index in the :class:`Comparison`. A *row* is the index
of a query among those of all folds. What does not fit on a page of reasonable size is left out, and
the page says so.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankgrad.report._explained import Explained
from rankgrad.results._curves import numbers
from rankgrad.results._groups import Fold
from rankgrad.results.comparison import Comparison
from rankgrad.results.runs import Run

_TOP = 20  # items of a ranked list that are shown
_LISTS = 200  # queries that can be inspected, at most
_CELLS = 1_900_000  # per-query values on the page, at most
_ITEMS = 220_000  # ranked items on the page, at most
_LABELS = 8  # labels of a query that are counted on the page, the highest
_NAN, _STEPS = -32768, 65534  # in 16 bits: the code of NaN, and the steps of a metric's range


def compared(comparison: Comparison) -> list[int]:
    """The indices of the complete entries."""
    return [i for i, name in enumerate(comparison.names) if name in comparison.complete]


def changes(comparison: Comparison) -> dict[str, Any]:
    """The value of every query under every entry in 16 bits, averaged over seeds.

    As many metrics are kept as fit, that of the headline first. If even one metric has too many
    values, queries are drawn at random.
    """
    entries, metrics = compared(comparison), comparison.metrics
    queries = len(comparison.queries) if entries else 0
    rows = np.arange(queries)
    if entries and queries * len(entries) > _CELLS:
        random = np.random.default_rng(0)
        rows = np.sort(random.choice(queries, _CELLS // len(entries), replace=False))
    order = sorted(range(len(metrics)), key=lambda m: metrics[m] != comparison.primary)
    n_metrics = max(1, _CELLS // max(1, len(rows) * len(entries)))
    packed = []
    for m in order[:n_metrics] if entries else []:
        values = {
            entry: comparison.values(comparison.names[entry], metrics[m])[rows]
            for entry in entries
            if comparison.has(comparison.names[entry], metrics[m])
        }
        low, step = _scale(list(values.values()))
        columns = {str(entry): _to_16_bits(column, low, step) for entry, column in values.items()}
        packed.append({"metric": m, "low": low, "step": step, "values": columns})
    return {
        "queries": queries,
        "rows": len(rows),
        "qids": [comparison.queries[row][1] for row in rows],
        "index": None if len(rows) == queries else rows.tolist(),
        "metrics": packed,
    }


def _scale(columns: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """The lowest value of all columns, and the step with which 16 bits reach the highest one."""
    values = np.stack(columns) if columns else np.array([np.nan])
    if np.isnan(values).all():
        return 0.0, 1.0
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return low, (high - low) / _STEPS or 1.0  # not 0 if all values are equal


def _to_16_bits(values: NDArray[np.float64], low: float, step: float) -> str:
    """Values as 16-bit codes: how many steps each is above the middle of the range."""
    codes = np.round((values - low) / step) - _STEPS // 2
    return _pack(np.where(np.isnan(codes), _NAN, codes).astype("<i2"))


def lists(comparison: Comparison, part: str) -> dict[str, Any]:
    """The first items of some queries' ranked lists under every entry.

    A list is as one run ranked it, that of the entry's first seed: no model would rank by the mean
    of the scores of several runs.

    Args:
        comparison: the compared entries.
        part: the part of the data whose explanations are shown, such as ``"test"``.
    """
    entries, metrics = compared(comparison), comparison.metrics
    if not entries or not metrics:
        return {"queries": [], "entries": []}
    # The fold of each row, and the first row of each fold
    fold_of = np.array([comparison.folds.index(fold) for fold, _ in comparison.queries])
    starts = np.searchsorted(fold_of, np.arange(len(comparison.folds))).tolist()
    runs = {
        (entry, f): _first_run(comparison, entry, fold)
        for entry in entries
        for f, fold in enumerate(comparison.folds)
    }
    explained = Explained(runs, part)
    rows = _choose_rows(comparison, entries, explained.rows(starts))
    shape = (len(entries), len(rows), _TOP)
    items, labels = np.zeros(shape, "<u4"), np.zeros(shape, "<f4")
    scores = np.zeros(shape, "<f4")
    values = np.full((len(entries), len(rows), len(metrics)), np.nan, "<f4")
    about: list[dict[str, Any]] = [{} for _ in rows]
    for e, f in product(range(len(entries)), range(len(comparison.folds))):
        evaluated = runs[entries[e], f].with_items()
        for q in np.flatnonzero(fold_of[rows] == f):
            index = rows[q] - starts[f]
            span = slice(evaluated.offsets[index], evaluated.offsets[index + 1])
            top = np.argsort(-evaluated.scores[span], kind="stable")[:_TOP]
            items[e, q, : len(top)] = top + 1  # 0 where a list is shorter than _TOP
            scores[e, q, : len(top)] = evaluated.scores[span][top]
            labels[e, q, : len(top)] = evaluated.labels[span][top]
            for m, metric in enumerate(metrics):
                if metric in evaluated.metrics:  # NaN otherwise
                    values[e, q, m] = evaluated.of_metric(metric)[index]
            about[q] = about[q] or _about(evaluated.labels[span])
    distinct, codes = _distinct(labels)
    return {
        "top": _TOP,
        "entries": entries,
        "seeds": [runs[entry, 0].seed for entry in entries],
        "averaged": any(len(comparison.entries[entry].seeds) > 1 for entry in entries),
        "rows": rows,
        "queries": [
            {"qid": comparison.queries[row][1], "fold": int(fold_of[row]), **about[q]}
            for q, row in enumerate(rows)
        ],
        "labels": distinct,
        "items": _pack(items),
        "scores": _pack(scores),
        "codes": _pack(codes),
        "values": _pack(values),
        "explained": explained.to_json(rows, starts),
    }


def _choose_rows(
    comparison: Comparison, entries: Sequence[int], explained: Sequence[int]
) -> list[int]:
    """The rows of the queries that the page shows.

    At most a quarter are explained queries. Then, until three quarters are chosen, pairs of entries
    take turns to add the query that differs most between the two. The others are drawn at random.
    """
    total = min(_LISTS, len(comparison.queries), max(1, _ITEMS // (_TOP * len(entries))))
    chosen: dict[int, None] = dict.fromkeys(explained[: max(1, total // 4)])
    queues = [_by_change(comparison, pair) for pair in _pairs(comparison, entries)]
    while queues and len(chosen) < total * 3 // 4:
        for queue in list(queues):
            row = next((r for r in queue if r not in chosen), None)
            if row is None:
                queues.remove(queue)
            elif len(chosen) < total * 3 // 4:
                chosen[row] = None
    random = np.random.default_rng(0)
    rest = [int(r) for r in random.permutation(len(comparison.queries)) if int(r) not in chosen]
    return sorted([*chosen, *rest[: total - len(chosen)]])


def _pairs(comparison: Comparison, entries: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of entries; those with the baseline, or else with the best entry, are first."""
    reference = comparison.names.index(
        comparison.reference(_primary(comparison)) or comparison.names[entries[0]]
    )
    pairs = list(combinations(entries, 2))
    return sorted(pairs, key=lambda pair: reference not in pair)[:_LISTS]


def _primary(comparison: Comparison) -> str:
    return comparison.primary or comparison.metrics[0]


def _by_change(comparison: Comparison, pair: tuple[int, int]) -> Iterator[int]:
    """The rows of queries whose values differ between two entries, the largest change first."""
    names, metric = [comparison.names[entry] for entry in pair], _primary(comparison)
    if not all(comparison.has(name, metric) for name in names):
        return iter(())
    first, second = (comparison.values(name, metric) for name in names)
    change = np.nan_to_num(np.abs(first - second))
    order = np.argsort(-change, kind="stable")[: _LISTS * 2]
    return iter([int(row) for row in order if change[row] > 0])


def _first_run(comparison: Comparison, entry: int, fold: Fold) -> Run:
    """The run of an entry on a fold with the lowest seed."""
    by_place = comparison.runs[comparison.names[entry]]  # by fold and seed
    runs = [run for (run_fold, _), run in by_place.items() if run_fold == fold]
    return min(runs, key=lambda run: (run.seed is None, run.seed or 0))


def _about(labels: NDArray[np.float32]) -> dict[str, Any]:
    """The number of items in a list, and of those with each of the highest labels, descending."""
    grades, counts = np.unique(labels, return_counts=True)
    label_counts = [[_round(g), int(n)] for g, n in zip(grades[::-1], counts[::-1], strict=True)]
    return {"items": len(labels), "labels": label_counts[:_LABELS]}


def _distinct(labels: NDArray[np.float32]) -> tuple[list[float], NDArray[np.uint16]]:
    """The distinct labels, and for each item the index of its label among them."""
    grades, codes = np.unique(labels, return_inverse=True)
    if len(grades) > 1 << 16:  # labels that are not grades: each becomes the next of 2^16 of them
        representatives = grades[np.linspace(0, len(grades) - 1, 1 << 16).round().astype(int)]
        grades, codes = representatives, np.searchsorted(representatives, grades)[codes]
    # Before NumPy 2 the indices of a matrix are flat.
    return [_round(grade) for grade in grades], codes.reshape(labels.shape).astype("<u2")


def _round(value: Any) -> float:
    return numbers(np.array([value], np.float64))[0] or 0.0


def _pack(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
