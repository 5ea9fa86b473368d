"""Per-query values and ranked lists, small enough for a page: typed arrays in base64."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankgrad.report._explained import Explained
from rankgrad.results._curves import numbers
from rankgrad.results._groups import Fold
from rankgrad.results.comparison import Comparison
from rankgrad.results.runs import Run

TOP = 20  # items of a ranked list shown
LISTS = 200  # queries that can be inspected, at most
_CELLS = 1_900_000  # per-query values on the page, at most
_ITEMS = 220_000  # ranked items on the page, at most
_NONE, _STEPS = -32768, 65534  # how NaN is written, and the steps that a metric's range has


def compared(comparison: Comparison) -> list[int]:
    """The entries that are complete, by number."""
    return [at for at, name in enumerate(comparison.names) if name in comparison.complete]


def changes(comparison: Comparison) -> dict[str, Any]:
    """The value of every query under every entry in 16 bits, seeds averaged.

    As many metrics as fit, that of the headline first. If one metric has too many queries, some are
    drawn: the page says how many.
    """
    used = compared(comparison)
    queries = len(comparison.queries) if used else 0
    rows = np.arange(queries)
    if used and queries * len(used) > _CELLS:
        random = np.random.default_rng(0)
        rows = np.sort(random.choice(queries, _CELLS // len(used), replace=False))
    order = sorted(
        range(len(comparison.metrics)), key=lambda m: comparison.metrics[m] != comparison.primary
    )
    fitting = max(1, _CELLS // max(1, len(rows) * len(used)))
    packed = []
    for at in order[:fitting] if used else []:
        metric = comparison.metrics[at]
        values = {
            c: comparison.values(comparison.names[c], metric)[rows]
            for c in used
            if comparison.has(comparison.names[c], metric)
        }
        low, step = _scale(list(values.values()))
        columns = {str(c): _sixteen(column, low, step) for c, column in values.items()}
        packed.append({"metric": at, "low": low, "step": step, "values": columns})
    return {
        "queries": queries,
        "rows": len(rows),
        "qids": [comparison.queries[row][1] for row in rows],
        "index": None if len(rows) == queries else rows.tolist(),
        "metrics": packed,
    }


def _scale(columns: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    values = np.stack(columns) if columns else np.array([np.nan])
    if np.isnan(values).all():
        return 0.0, 1.0
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return low, (high - low) / _STEPS or 1.0


def _sixteen(values: NDArray[np.float64], low: float, step: float) -> str:
    codes = np.round((values - low) / step) - _STEPS // 2
    return _pack(np.where(np.isnan(codes), _NONE, codes).astype("<i2"))


def lists(comparison: Comparison, part: str) -> dict[str, Any]:
    """The ranked lists of some queries under every entry: the first items of each.

    A list is as one run ranked it, that of the entry's first seed: an average of the scores of
    several runs would be no model's.
    """
    used = compared(comparison)
    if not used or not comparison.metrics:
        return {"queries": [], "entries": []}
    fold_of = np.array([comparison.folds.index(fold) for fold, _ in comparison.queries])
    starts = np.searchsorted(fold_of, np.arange(len(comparison.folds)))
    runs = {
        (c, f): _first_run(comparison, c, fold)
        for c in used
        for f, fold in enumerate(comparison.folds)
    }
    explained = Explained(runs, part)
    chosen = _chosen(comparison, used, explained.rows(starts.tolist()))
    shape = (len(used), len(chosen), TOP)
    items, labels = np.zeros(shape, "<u4"), np.zeros(shape, "<f4")
    scores = np.zeros(shape, "<f4")
    values = np.full((len(used), len(chosen), len(comparison.metrics)), np.nan, "<f4")
    about: list[dict[str, Any]] = [{} for _ in chosen]
    for c, entry in enumerate(used):
        for f in range(len(comparison.folds)):
            evaluated = runs[entry, f].with_items()
            for q, row in enumerate(chosen):
                if fold_of[row] != f:
                    continue
                at = row - starts[f]
                inside = slice(evaluated.offsets[at], evaluated.offsets[at + 1])
                first = np.argsort(-evaluated.scores[inside], kind="stable")[:TOP]
                items[c, q, : len(first)] = first + 1
                scores[c, q, : len(first)] = evaluated.scores[inside][first]
                labels[c, q, : len(first)] = evaluated.labels[inside][first]
                for m, name in enumerate(comparison.metrics):
                    if name in evaluated.metrics:  # NaN otherwise
                        values[c, q, m] = evaluated.of_metric(name)[at]
                if not about[q]:
                    about[q] = _about(evaluated.labels[inside])
    distinct, codes = _distinct(labels)
    return {
        "top": TOP,
        "entries": used,
        "seeds": [runs[c, 0].seed for c in used],
        "averaged": any(len(comparison.entries[c].seeds) > 1 for c in used),
        "rows": [int(row) for row in chosen],
        "queries": [
            {"qid": comparison.queries[row][1], "fold": int(fold_of[row]), **about[q]}
            for q, row in enumerate(chosen)
        ],
        "labels": distinct,
        "items": _pack(items),
        "scores": _pack(scores),
        "codes": _pack(codes),
        "values": _pack(values),
        "explained": explained.packed(chosen, starts.tolist()),
    }


def _chosen(
    comparison: Comparison, used: Sequence[int], explained: Sequence[int] = ()
) -> list[int]:
    """The queries that the page shows.

    Explained ones, up to a quarter; then in turn the largest changes of each pair, then some at
    random.
    """
    total = min(LISTS, len(comparison.queries), max(1, _ITEMS // (TOP * len(used))))
    chosen: dict[int, None] = dict.fromkeys(explained[: max(1, total // 4)])
    turns = [_by_change(comparison, pair) for pair in _pairs(comparison, used)]
    while turns and len(chosen) < total * 3 // 4:
        for turn in list(turns):
            row = next((r for r in turn if r not in chosen), None)
            if row is None:
                turns.remove(turn)
            elif len(chosen) < total * 3 // 4:
                chosen[row] = None
    random = np.random.default_rng(0)
    rest = [int(r) for r in random.permutation(len(comparison.queries)) if int(r) not in chosen]
    return sorted([*chosen, *rest[: total - len(chosen)]])


def _pairs(comparison: Comparison, used: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of entries, those with the best or the baseline first."""
    reference = comparison.names.index(
        comparison.reference(_primary(comparison)) or comparison.names[used[0]]
    )
    pairs = list(combinations(used, 2))
    return sorted(pairs, key=lambda pair: reference not in pair)[:LISTS]


def _primary(comparison: Comparison) -> str:
    return comparison.primary or comparison.metrics[0]


def _by_change(comparison: Comparison, pair: tuple[int, int]) -> Iterator[int]:
    """Queries by how much their value differs, from the largest change on."""
    names, metric = [comparison.names[c] for c in pair], _primary(comparison)
    if not all(comparison.has(name, metric) for name in names):
        return iter(())
    one, other = (comparison.values(name, metric) for name in names)
    change = np.nan_to_num(np.abs(one - other))
    order = np.argsort(-change, kind="stable")[: LISTS * 2]
    return iter([int(row) for row in order if change[row] > 0])


def _first_run(comparison: Comparison, entry: int, fold: Fold) -> Run:
    places = comparison.runs[comparison.names[entry]]
    runs = [run for (other, _), run in places.items() if other == fold]
    return min(runs, key=lambda run: (run.seed is None, run.seed or 0))


def _about(labels: NDArray[np.float32]) -> dict[str, Any]:
    """How many items a list has, and of which labels, the highest first."""
    kinds, counts = np.unique(labels, return_counts=True)
    pairs = [[_short(k), int(n)] for k, n in zip(kinds[::-1], counts[::-1], strict=True)]
    return {"items": len(labels), "labels": pairs[:8]}


def _distinct(labels: NDArray[np.float32]) -> tuple[list[float], NDArray[np.uint16]]:
    kinds, codes = np.unique(labels, return_inverse=True)
    if len(kinds) > 1 << 16:  # labels that are not grades: three digits are enough
        kinds, codes = np.unique(labels.astype(np.float16), return_inverse=True)
    return [_short(kind) for kind in kinds], codes.astype("<u2")


def _short(value: Any) -> float:
    return numbers(np.array([value], np.float64))[0] or 0.0


def _pack(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
