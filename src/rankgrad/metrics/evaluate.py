"""Several metrics on one set of lists, in one table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankgrad._shapes import Float, ListMask, ListValues
from rankgrad._validation import DEFAULT_METRICS
from rankgrad.inputs import as_lists
from rankgrad.metrics._base import Metric, list_values
from rankgrad.metrics._base import metrics as known_metrics

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """The values of several metrics: per list, and their means.

    Printing it shows the means as a table, with the conventions they follow.

    Attributes:
        metrics: that were evaluated.
        per_list: the values of each metric by its spec, in the caller's batch shape.
        mean: of each metric, by its spec.
        lists: how many there are.
        without_relevant: the number of lists without a relevant item, by the metric's spec.

    >>> evaluate([0.3, 0.2], [0, 1], metrics="rr").mean
    {'rr': 0.5}
    """

    metrics: tuple[Metric, ...]
    per_list: Mapping[str, Float[Tensor, "*b"]]
    mean: Mapping[str, float]
    lists: int
    without_relevant: Mapping[str, int]

    def __getitem__(self, metric: str | Metric) -> float:
        """The mean of a metric, by the metric or its spec in any spelling.

        >>> evaluate([0.3, 0.2], [0, 1], metrics="ndcg@2( gain=linear )")["ndcg@2(gain=linear)"]
        0.6309297680854797
        """
        try:
            name = str(known_metrics.get(metric))
        except ValueError:  # no metric at all
            name = str(metric)
        if name not in self.mean:
            raise KeyError(f"{name!r} was not evaluated; there are: {', '.join(self.mean)}")
        return self.mean[name]

    def __str__(self) -> str:
        names = [str(metric) for metric in self.metrics]
        width = max((len(name) for name in names), default=0)
        rows = [f"{name:<{width}}  {self.mean[name]:.4f}" for name in names]
        return "\n".join([*rows, *self.conventions])

    @property
    def conventions(self) -> tuple[str, ...]:
        """What the numbers mean: the number of lists, and the rules for empty ones and ties."""
        lines = [f"mean over {self.lists} lists", *self.empty_rules()]
        ties = {metric.ties for metric in self.metrics}
        gains = {metric.gain for metric in self.metrics if hasattr(metric, "gain")}
        lines.append(f"tied scores: {', '.join(sorted(ties))}")
        if gains:
            named = {"exponential": "2^y - 1", "linear": "y"}
            lines.append(f"gain: {', '.join(named[gain] for gain in sorted(gains))}")
        return tuple(lines)

    def empty_rules(self) -> list[str]:
        """How lists without relevant items count, in a line for each rule."""
        lines = []
        for rule in dict.fromkeys(metric.empty for metric in self.metrics):
            under = [str(metric) for metric in self.metrics if metric.empty == rule]
            how = "are left out" if rule == "skip" else f"count {rule}"
            counts = {self.without_relevant[name] for name in under}
            most = f"up to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
            whose = "" if len(under) == len(self.metrics) else f" for {', '.join(under)}"
            lines.append(f"lists without relevant items ({most}) {how}{whose}")
        return lines


def evaluate(
    scores: Any,
    labels: Any,
    mask: Any = None,
    *,
    offsets: Any = None,
    lengths: Any = None,
    qid: Any = None,
    weights: Any = None,
    retrieved: Any = None,
    metrics: str | Metric | Iterable[str | Metric] = DEFAULT_METRICS,
) -> Evaluation:
    """Evaluate metrics on lists, each list sorted once. Per-list weights weigh the means.

    Args:
        scores: ``[..., n]`` padded, or ``[N]`` flat.
        labels: of the same shape, not negative.
        mask: padded lists: True on real items.
        offsets: flat lists: ``[B + 1]``, where each begins and ends.
        lengths: flat lists: ``[B]``, the number of items of each, in place of ``offsets``.
        qid: flat lists: ``[N]``, the query of each item, in place of ``offsets``.
        weights: one per list (weighted means), or one per item.
        retrieved: False on items without a rank, as :meth:`Metric.__call__` says.
        metrics: one or several, or their specs.

    Returns:
        The means and the values per list.

    Raises:
        ValueError: a metric is unknown, or the lists are not valid.

    >>> print(evaluate([0.3, 0.2, 0.1, 0.5, 0.4], [1, 0, 2, 0, 0], offsets=[0, 3, 5],
    ...                metrics=["ndcg@2", "rr"]))
    ndcg@2  0.1377
    rr      0.5000
    mean over 2 lists
    lists without relevant items (1) count 0
    tied scores: average
    gain: 2^y - 1
    """
    if isinstance(metrics, str | Metric):
        metrics = [metrics]
    chosen = tuple(known_metrics.get(metric) for metric in metrics)
    lists = as_lists(
        scores, labels, mask, offsets=offsets, lengths=lengths, qid=qid, weights=weights
    )
    with torch.no_grad():
        found = list(list_values(chosen, lists, retrieved))
        sums = [_sums(values, relevant, lists.list_weights) for values, relevant in found]
    rows = torch.stack(sums).tolist() if sums else []  # a GPU is waited for here alone
    per_list, mean, without = {}, {}, {}
    for metric, (values, _), (total, weight, empty) in zip(chosen, found, rows, strict=True):
        name = str(metric)
        per_list[name] = values.reshape(lists.shape)
        mean[name] = total / weight if weight > 0 else math.nan
        without[name] = int(empty)
    return Evaluation(chosen, per_list, mean, len(lists.flat.offsets) - 1, without)


def _sums(
    values: ListValues, relevant: ListMask, weights: ListValues | None
) -> Float[Tensor, " 3"]:
    """Over the lists that are in, the weighted values and the weights; and lists without relevant.

    NaN marks lists that are skipped.
    """
    defined = ~values.isnan()
    weights = defined.double() if weights is None else weights.double() * defined
    total = torch.where(defined, values.double(), 0.0) @ weights
    return torch.stack([total, weights.sum(), (~relevant).sum().double()])
