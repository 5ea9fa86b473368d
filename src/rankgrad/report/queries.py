"""Per-query values and ranked lists, small enough for a page: typed arrays in base64."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankgrad.report.comparison import Comparison
from rankgrad.report.curves import numbers
from rankgrad.report.reasons import Reasons
from rankgrad.report.runs import Run
from rankgrad.training.evaluations import Evaluated

TOP = 20  # items of a ranked list shown
LISTS = 200  # queries that can be looked into, at most
_CELLS = 1_900_000  # per-query values on the page, at most
_ITEMS = 220_000  # ranked items on the page, at most
_NONE, _STEPS = -32768, 65534  # how NaN is written, and the steps that a metric's range has


def changes(found: Comparison) -> dict[str, Any]:
    """The value of every query under every candidate in 16 bits, seeds averaged.

    Metrics come first to last, the primary first, as long as there is room. If one metric has too
    many queries, some are drawn: the page says how many.
    """
    used = [at for at, ok in enumerate(found.complete) if ok]
    queries = len(found.qids)
    rows = np.arange(queries)
    if used and queries * len(used) > _CELLS:
        random = np.random.default_rng(0)
        rows = np.sort(random.choice(queries, _CELLS // len(used), replace=False))
    order = sorted(range(len(found.metrics)), key=lambda m: m != found.primary)
    room = max(1, _CELLS // max(1, len(rows) * len(used)))
    packed = []
    for metric in order[:room]:
        values = found.values[metric][rows]
        low, step = _scale(values)
        columns = {str(c): _sixteen(values[:, c], low, step) for c in used if found.has(c, metric)}
        packed.append({"metric": metric, "low": low, "step": step, "values": columns})
    return {
        "queries": queries,
        "rows": len(rows),
        "qids": [found.qids[row] for row in rows],
        "index": None if len(rows) == queries else rows.tolist(),
        "metrics": packed,
    }


def _scale(values: NDArray[np.float64]) -> tuple[float, float]:
    if np.isnan(values).all():
        return 0.0, 1.0
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return low, (high - low) / _STEPS or 1.0


def _sixteen(values: NDArray[np.float64], low: float, step: float) -> str:
    codes = np.round((values - low) / step) - _STEPS // 2
    return _pack(np.where(np.isnan(codes), _NONE, codes).astype("<i2"))


def lists(found: Comparison, part: str) -> dict[str, Any]:
    """The ranked lists of some queries under every candidate: the first items of each.

    A list is as one run ranked it, that of the candidate's first seed: an average of the scores of
    several runs would be no model's.
    """
    used = [at for at, ok in enumerate(found.complete) if ok]
    if not used or not found.metrics:
        return {"queries": [], "candidates": []}
    starts = np.searchsorted(found.part_of, np.arange(len(found.parts)))
    reasons = Reasons(
        {(c, p): _first_run(found, c, own) for c in used for p, own in enumerate(found.parts)}, part
    )
    chosen = _chosen(found, used, reasons.rows(starts.tolist()))
    shape = (len(used), len(chosen), TOP)
    items, labels = np.zeros(shape, "<u4"), np.zeros(shape, "<f4")
    scores = np.zeros(shape, "<f4")
    values = np.full((len(used), len(chosen), len(found.metrics)), np.nan, "<f4")
    about: list[dict[str, Any]] = [{} for _ in chosen]
    seeds = []
    for c, candidate in enumerate(used):
        seeds.append(_first_run(found, candidate, found.parts[0]).seed)
        for p, checksum in enumerate(found.parts):
            own = Evaluated.load(_first_run(found, candidate, checksum).path, part)
            for q, row in enumerate(chosen):
                if found.part_of[row] != p:
                    continue
                at = row - starts[p]
                inside = slice(own.offsets[at], own.offsets[at + 1])
                first = np.argsort(-own.scores[inside], kind="stable")[:TOP]
                items[c, q, : len(first)] = first + 1
                scores[c, q, : len(first)] = own.scores[inside][first]
                labels[c, q, : len(first)] = own.labels[inside][first]
                for m, name in enumerate(found.metrics):
                    values[c, q, m] = own.of_metric(name)[at] if name in own.metrics else np.nan
                if not about[q]:
                    about[q] = _about(own.labels[inside])
    distinct, codes = _distinct(labels)
    return {
        "top": TOP,
        "candidates": used,
        "seeds": seeds,
        "averaged": any(len(found.candidates[c].seeds) > 1 for c in used),
        "rows": [int(row) for row in chosen],
        "queries": [
            {"qid": found.qids[row], "part": int(found.part_of[row]), **about[q]}
            for q, row in enumerate(chosen)
        ],
        "labels": distinct,
        "items": _pack(items),
        "scores": _pack(scores),
        "codes": _pack(codes),
        "values": _pack(values),
        "reasons": reasons.packed(chosen, starts.tolist()),
    }


def _chosen(found: Comparison, used: Sequence[int], explained: Sequence[int] = ()) -> list[int]:
    """The queries that the page shows.

    Explained ones, up to a quarter; then in turn the largest changes of each pair, then some at
    random.
    """
    total = min(LISTS, len(found.qids), max(1, _ITEMS // (TOP * len(used))))
    chosen: dict[int, None] = dict.fromkeys(explained[: max(1, total // 4)])
    turns = [_by_change(found, pair) for pair in _pairs(found, used)]
    while turns and len(chosen) < total * 3 // 4:
        for turn in list(turns):
            row = next((r for r in turn if r not in chosen), None)
            if row is None:
                turns.remove(turn)
            elif len(chosen) < total * 3 // 4:
                chosen[row] = None
    random = np.random.default_rng(0)
    rest = [int(r) for r in random.permutation(len(found.qids)) if int(r) not in chosen]
    return sorted([*chosen, *rest[: total - len(chosen)]])


def _pairs(found: Comparison, used: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of candidates, those with the best or the baseline first."""
    against = found.against[found.primary]
    pairs = list(combinations(used, 2))
    return sorted(pairs, key=lambda pair: against not in pair)[:LISTS]


def _by_change(found: Comparison, pair: tuple[int, int]) -> Iterator[int]:
    """Queries by how much their value differs, from the largest change on."""
    values = found.values[found.primary]
    change = np.nan_to_num(np.abs(values[:, pair[0]] - values[:, pair[1]]))
    order = np.argsort(-change, kind="stable")[: LISTS * 2]
    return iter([int(row) for row in order if change[row] > 0])


def _first_run(found: Comparison, candidate: int, part: str) -> Run:
    own = found.candidates[candidate].evaluated
    runs = [run for (checksum, _), run in own.items() if checksum == part]
    return min(runs, key=lambda run: (run.seed is None, run.seed or 0))


def _about(labels: NDArray[np.float32]) -> dict[str, Any]:
    """How many items a list has, and of which labels, the highest first."""
    kinds, counts = np.unique(labels, return_counts=True)
    pairs = [[_short(k), int(n)] for k, n in zip(kinds[::-1], counts[::-1], strict=True)]
    return {"items": len(labels), "labels": pairs[:8]}


def _distinct(labels: NDArray[np.float32]) -> tuple[list[float], NDArray[np.uint16]]:
    kinds, codes = np.unique(labels, return_inverse=True)
    if len(kinds) > 1 << 16:  # labels that are not grades: three digits are enough to look at
        kinds, codes = np.unique(labels.astype(np.float16), return_inverse=True)
    return [_short(kind) for kind in kinds], codes.astype("<u2")


def _short(value: Any) -> float:
    return numbers(np.array([value], np.float64))[0] or 0.0


def _pack(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
