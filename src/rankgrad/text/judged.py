"""Exact metrics of reranked candidates against all judgments, retrieved or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankgrad.metrics import evaluate as evaluate_lists
from rankgrad.metrics import metrics as known_metrics
from rankgrad.metrics.ndcg import NDCG


def evaluate(
    scores: NDArray[Any],
    labels: NDArray[np.float32],
    offsets: NDArray[np.int64],
    judged: Sequence[NDArray[np.float32]],
    metrics: Iterable[str],
) -> dict[str, NDArray[np.float64]]:
    """The metrics of each list, ``[B]``."""
    found = {}
    for spec in metrics:
        metric = known_metrics.get(spec)
        if metric.name == "ndcg":
            assert isinstance(metric, NDCG)
            dcg = known_metrics.get(str(metric).replace("ndcg", "dcg", 1))
            values = evaluate_lists(scores, labels, offsets=offsets, metrics=[dcg]).per_list
            own = values[str(dcg)].double().numpy()
            ends = np.cumsum([0, *map(len, judged)])
            flat = np.concatenate([np.empty(0, np.float32), *judged])
            ideal = evaluate_lists(flat, flat, offsets=ends, metrics=[dcg]).per_list[str(dcg)]
            best = ideal.double().numpy()
            found[spec] = np.divide(own, best, out=np.zeros_like(own), where=best > 0)
        elif metric.name in ("ap", "recall"):
            values = evaluate_lists(scores, labels, offsets=offsets, metrics=[metric]).per_list
            counts = np.array([len(own) for own in judged])
            there = np.add.reduceat(np.append(labels > 0, False), offsets[:-1]).astype(float)
            there[np.diff(offsets) == 0] = 0
            part = np.divide(there, counts, out=np.zeros(len(counts)), where=counts > 0)
            found[spec] = values[str(metric)].double().numpy() * part
        else:
            values = evaluate_lists(scores, labels, offsets=offsets, metrics=[metric]).per_list
            found[spec] = values[str(metric)].double().numpy()
    return found
