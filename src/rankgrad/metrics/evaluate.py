"""``rankgrad.evaluate``: several metrics on one set of lists, and their means as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankgrad._shapes import Float, ListMask, ListValues
from rankgrad._validation import DEFAULT_METRICS
from rankgrad.inputs import as_lists, largest_exponent
from rankgrad.kernels.ops import LINEAR_GAIN
from rankgrad.metrics._base import Metric, list_values
from rankgrad.metrics._base import metrics as known_metrics
from rankgrad.specs import Registry

__all__ = ["Evaluation", "check_labels", "default_metrics", "evaluate", "metrics_for"]


@dataclass(frozen=True)
class Evaluation:
    """The values of several metrics: per list, and their means.

    Printing it shows the means as a table, with the conventions they follow.

    Attributes:
        metrics: the metrics that were evaluated.
        per_list: the values of each metric by its spec, in the caller's batch shape.
        mean: the mean of each metric, by its spec.
        lists: the number of lists.
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
        except ValueError:  # not the name of a metric
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
        """The number of lists, and the rules for lists without relevant items, ties and gains."""
        lines = [f"mean over {self.lists} lists", *self.empty_rules()]
        ties = {metric.ties for metric in self.metrics}
        gains = {metric.gain for metric in self.metrics if hasattr(metric, "gain")}
        lines.append(f"tied scores: {', '.join(sorted(ties))}")
        if gains:
            formulas = {"exponential": "2^y - 1", "linear": "y"}
            lines.append(f"gain: {', '.join(formulas[gain] for gain in sorted(gains))}")
        return tuple(lines)

    def empty_rules(self) -> list[str]:
        """How lists without relevant items count, in a line for each rule.

        Returns:
            The lines, with the number of such lists.
        """
        lines = []
        for rule in dict.fromkeys(metric.empty for metric in self.metrics):
            names = [str(metric) for metric in self.metrics if metric.empty == rule]
            effect = "are left out" if rule == "skip" else f"count {rule}"
            counts = {self.without_relevant[name] for name in names}
            number = f"up to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
            scope = "" if len(names) == len(self.metrics) else f" for {', '.join(names)}"
            lines.append(f"lists without relevant items ({number}) {effect}{scope}")
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
    """Evaluate metrics on lists, each of which is sorted once. List weights weight the means.

    Args:
        scores: ``[..., n]`` padded, or ``[N]`` flat.
        labels: of the same shape, not negative.
        mask: padded lists: True on real items.
        offsets: flat lists: ``[B + 1]``, where each begins and ends.
        lengths: flat lists: ``[B]``, the number of items of each, in place of ``offsets``.
        qid: flat lists: ``[N]``, the query of each item, in place of ``offsets``.
        weights: one per list (weighted means), or one per item.
        retrieved: False on items without a rank; see :meth:`Metric.__call__`.
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
        try:
            results = list(list_values(chosen, lists, retrieved))
        except ValueError:
            check_labels(chosen, lists.flat.labels, lists.flat.mask)  # which names the metric
            raise
        sums = [_sums(values, has_relevant, lists.list_weights) for values, has_relevant in results]
    rows = torch.stack(sums).tolist() if sums else []  # the only wait for a GPU
    per_list, mean, without_relevant = {}, {}, {}
    for metric, (values, _), (total, weight, empty) in zip(chosen, results, rows, strict=True):
        name = str(metric)
        per_list[name] = values.reshape(lists.shape)
        mean[name] = total / weight if weight > 0 else math.nan
        without_relevant[name] = int(empty)
    return Evaluation(chosen, per_list, mean, len(lists.flat.offsets) - 1, without_relevant)


def default_metrics(metric: str | Metric) -> tuple[str, ...]:
    """The metrics of a training for which the user names only one, with the gain of that one.

    So labels that are too large for ``2^y - 1`` need one ``gain=linear``.

    Args:
        metric: the one that the user names, or its spec.

    Returns:
        The specs of ``DEFAULT_METRICS``, with this gain where they have one.

    >>> from rankgrad.metrics.evaluate import default_metrics
    >>> default_metrics("ndcg@10(gain=linear)")
    ('ndcg@5(gain=linear)', 'ndcg@10(gain=linear)', 'ap', 'rr')
    """
    is_linear = getattr(known_metrics.get(metric), "gain", None) == "linear"
    return _defaults(is_linear)


def metrics_for(labels: Tensor) -> tuple[str, ...]:
    """The metrics of an evaluation for which the user names none.

    Args:
        labels: of the items.

    Returns:
        The specs of ``DEFAULT_METRICS``, with a linear gain if labels are too large for another.

    >>> from rankgrad.metrics.evaluate import metrics_for
    >>> metrics_for(torch.tensor([0.0, 1000.0]))
    ('ndcg@5(gain=linear)', 'ndcg@10(gain=linear)', 'ap', 'rr')
    """
    is_large = bool((labels > largest_exponent(labels.dtype)).any())
    return _defaults(is_large)


def _defaults(is_linear: bool) -> tuple[str, ...]:
    """``DEFAULT_METRICS``, with a linear gain where they have one if ``is_linear``."""
    if not is_linear:
        return DEFAULT_METRICS
    return tuple(_linear(spec, known_metrics) or spec for spec in DEFAULT_METRICS)


def check_labels(
    owners: Iterable[Any],
    labels: Tensor,
    mask: Tensor | None = None,
    registry: Registry[Any] = known_metrics,
) -> None:
    """Raise if a label is too large for the gain of a metric or loss; the error names it.

    Args:
        owners: metrics of an evaluation, or losses.
        labels: of the items.
        mask: True on items, of the same shape; None if there is no padding.
        registry: that of metrics or of losses.

    Raises:
        ValueError: a label is too large.

    >>> from rankgrad.metrics.evaluate import check_labels
    >>> check_labels([known_metrics.get("ndcg@5")], torch.tensor([1000.0]))
    Traceback (most recent call last):
    ValueError: ndcg@5: a label of 1000 is too large ... on a small scale, or ndcg@5(gain=linear)
    """
    for owner in owners:
        try:
            owner.check_labels(labels, mask)
        except ValueError as error:
            linear = _linear(str(owner), registry)
            remedy = "" if linear is None else f", or {linear}"
            message = str(error).removesuffix(LINEAR_GAIN)
            raise ValueError(f"{owner}: {message}{remedy}") from None


def _linear(spec: str, registry: Registry[Any]) -> str | None:
    """The spec with a linear gain; None for a metric or loss without the option."""
    try:
        return str(registry.get(spec, gain="linear"))
    except ValueError:
        return None


def _sums(
    values: ListValues, has_relevant: ListMask, weights: ListValues | None
) -> Float[Tensor, " 3"]:
    """The weighted sum of the values, the sum of weights, and the number of empty lists.

    Both sums leave out skipped lists, whose value is NaN. Empty lists have no relevant item.
    """
    defined = ~values.isnan()
    weights = defined.double() if weights is None else weights.double() * defined
    total = torch.where(defined, values.double(), 0.0) @ weights
    return torch.stack([total, weights.sum(), (~has_relevant).sum().double()])
