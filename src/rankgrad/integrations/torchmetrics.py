"""Any metric of the library as a metric of torchmetrics, all queries computed at once.

torchmetrics computes retrieval metrics query by query in Python. Here the queries are sorted
together once and the metric is computed over the flat lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from rankgrad._threads import for_work
from rankgrad._validation import check_choice
from rankgrad.extras import requires
from rankgrad.kernels.cpu._grouping import group, index_range
from rankgrad.metrics import Metric, metrics

with requires("torchmetrics"):
    import torchmetrics
    from torchmetrics.utilities import dim_zero_cat

__all__ = ["RankingMetric", "ranking_metrics"]

_EmptyTargetAction = Literal["neg", "pos", "skip", "error"]
_Aggregation = Literal["mean", "median", "min", "max"]

_EMPTY: dict[_EmptyTargetAction, Literal[0, 1, "skip"]] = {
    "neg": 0, "pos": 1, "skip": "skip", "error": "skip",
}  # fmt: skip
_FEW = 1 << 16  # queries that are always counted


class RankingMetric(torchmetrics.Metric):
    """A ranking metric over queries that arrive in any order, split over batches and processes.

    ``update(preds, target, indexes)`` collects items, ``compute()`` groups them by query and gives
    the mean of the metric over the queries, as torchmetrics' retrieval metrics do. What the metric
    counts is said by its spec, and differs from torchmetrics' in this:

    - ``ndcg`` has the gain 2^y - 1 here; ``ndcg(gain=linear)`` is ``RetrievalNormalizedDCG``.
    - Tied predictions earn the mean over their orders in every metric, in torchmetrics in nDCG
      alone; elsewhere it takes them in the order in which they happen to be sorted.
    - Every item has a rank. torchmetrics' average precision, reciprocal rank, precision and recall
      take items with a prediction of 0 or less as not retrieved.
    - ``ap@k`` divides by the number of relevant items of the query, as trec_eval does;
      ``RetrievalMAP(top_k=k)`` by the number of those within the top k.

    Args:
        metric: the spec of a metric, as ``"ndcg@10"``, or a metric.
        empty_target_action: how queries without a relevant item count: ``"neg"`` as 0, ``"pos"`` as
            1, ``"skip"`` not at all (0 if all are skipped), ``"error"`` raises. None: as the metric
            says, which is 0 unless its spec has ``empty=``.
        ignore_index: leave out items whose target is this number.
        aggregation: over the queries: ``"mean"``, ``"median"``, ``"min"``, ``"max"``, or a function
            of the values ``[B]``.
        **options: of ``torchmetrics.Metric``, such as ``dist_sync_on_step``.

    Raises:
        ValueError: an option is wrong, or both ``empty_target_action`` and the spec say how empty
            queries count, and differ.

    >>> metric = RankingMetric("ndcg@10(gain=linear)")
    >>> metric.update(torch.tensor([0.2, 0.3]), torch.tensor([0, 1]), torch.tensor([0, 0]))
    >>> metric.update(torch.tensor([0.5, 0.1]), torch.tensor([0, 1]), torch.tensor([1, 1]))
    >>> metric.compute()
    tensor(0.8155)
    """

    is_differentiable = False
    full_state_update = False

    indexes: list[Tensor]
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(
        self,
        metric: str | Metric = "ndcg@10",
        empty_target_action: _EmptyTargetAction | None = None,
        ignore_index: int | None = None,
        aggregation: _Aggregation | Callable[[Tensor], Tensor] = "mean",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.metric = _with_rule(metrics.get(metric), empty_target_action)
        self.empty_target_action = empty_target_action
        if ignore_index is not None and not isinstance(ignore_index, int):
            raise ValueError(f"ignore_index must be a whole number or None, found {ignore_index!r}")
        self.ignore_index = ignore_index
        if not callable(aggregation):
            check_choice("aggregation", aggregation, get_args(_Aggregation))
        self.aggregation = aggregation if callable(aggregation) else getattr(torch, aggregation)
        for name in ("indexes", "preds", "target"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]  # torchmetrics has an attribute
        """False for ``arp``."""
        return not self.metric.lower_is_better

    def extra_repr(self) -> str:
        """The arguments in ``repr``: the spec, and options that are not the default."""
        parts = [repr(str(self.metric))]
        for name in ("empty_target_action", "ignore_index"):
            if getattr(self, name) is not None:
                parts.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(parts)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one value or several, as other metrics of torchmetrics do; this needs matplotlib.

        Args:
            val: what ``compute`` or the metric itself gave, or a list of such values; None for
                ``compute()``.
            ax: an axis of matplotlib to plot on.

        Returns:
            The figure and its axis, titled with the spec.
        """
        plotted: Any = self._plot(val, ax)
        plotted[1].set_title(str(self.metric))
        return plotted

    def update(self, preds: Tensor, target: Tensor, indexes: Tensor | None = None) -> None:
        """Add items.

        Args:
            preds: ``[N, ...]`` scores, floating.
            target: ``[N, ...]`` labels, at least 0, of any type of number.
            indexes: ``[N, ...]`` the query of each item, whole numbers in any order. They are
                needed; None is an error that says so.
        """
        _check(preds, target, indexes)
        assert indexes is not None
        preds, target, indexes = preds.flatten(), target.flatten(), indexes.flatten()
        if self.ignore_index is not None:
            used = target != self.ignore_index
            preds, target, indexes = preds[used], target[used], indexes[used]
        if preds.dtype != torch.float64:
            preds = preds.float()
        self.preds.append(preds)
        self.target.append(target.float())
        self.indexes.append(indexes.long())

    def compute(self) -> Tensor:
        """The aggregated value of the metric, a scalar."""
        with for_work(0):  # threads are not worth their start in any step but the metric
            queries, lengths, preds, target = _by_query(self.indexes, self.preds, self.target)
            offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
            values = self.metric(preds, target, offsets=offsets)
        defined = ~values.isnan()
        if self.empty_target_action == "error" and not defined.all():
            query, count = int(queries[~defined][0]), int((~defined).sum())
            raise ValueError(
                f"{self._why_undefined(query)}, one of {count} such queries: "
                "choose another empty_target_action than 'error'"
            )
        if not defined.any():
            return values.new_zeros(())
        return self.aggregation(values[defined])

    def _why_undefined(self, query: int) -> str:
        if type(self.metric).relevant is Metric.relevant:
            return f"query {query} has no relevant item"
        return f"{self.metric.name} is undefined on query {query}"  # opa: no pair to order

    def sync(self, *arguments: Any, **options: Any) -> None:
        """Bring together the items of all processes; one without any takes part with no items."""
        if not self.preds:
            self.preds.append(torch.zeros(0, device=self.device))
            self.target.append(torch.zeros(0, device=self.device))
            self.indexes.append(torch.zeros(0, dtype=torch.int64, device=self.device))
        super().sync(*arguments, **options)


def ranking_metrics(specs: Iterable[str | Metric], **options: Any) -> torchmetrics.MetricCollection:
    """Several metrics as one collection, whose items are stored once.

    A collection of torchmetrics names the metrics of a list by their class, so that two of one
    class must be given as a dictionary; this is that, with the specs as names.

    Args:
        specs: of the metrics. A point, as in ``rbp(persistence=0.9)``, is ``_`` in the name.
        **options: of :class:`RankingMetric`.

    Returns:
        The collection.

    Raises:
        ValueError: an unknown metric or option.

    >>> metrics = ranking_metrics(["ndcg@10", "rr"])
    >>> metrics.update(torch.tensor([0.2, 0.3]), torch.tensor([1, 0]), torch.tensor([0, 0]))
    >>> metrics.compute()
    {'ndcg@10': tensor(0.6309), 'rr': tensor(0.5000)}
    """
    collected: dict[str, Any] = {
        str(spec).replace(".", "_"): RankingMetric(spec, **options) for spec in specs
    }
    return torchmetrics.MetricCollection(collected)


def _with_rule(metric: Metric, action: _EmptyTargetAction | None) -> Metric:
    """The metric with torchmetrics' rule for queries without relevant items."""
    if action is None:
        return metric
    check_choice("empty_target_action", action, tuple(_EMPTY))
    if metric.empty not in (0, _EMPTY[action]):
        raise ValueError(
            f"{metric} says empty={metric.empty} and empty_target_action is {action!r}: give one"
        )
    return replace(metric, empty=_EMPTY[action])


_Collected = list[Tensor] | Tensor  # as they were added; one tensor where processes were synced


def _by_query(
    indexes: _Collected, preds: _Collected, target: _Collected
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The queries, their numbers of items, and the scores and labels query by query."""
    counted = _count_by_query(indexes, preds, target)
    if counted is not None:
        return counted
    ids = dim_zero_cat(indexes)
    scores, labels = dim_zero_cat(preds), dim_zero_cat(target)
    if not (ids[1:] >= ids[:-1]).all():
        ids, order = ids.sort(stable=True)
        scores, labels = scores[order], labels[order]
    queries, counts = ids.unique_consecutive(return_counts=True)
    return queries, counts, scores, labels


def _count_by_query(
    indexes: _Collected, preds: _Collected, target: _Collected
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """:func:`_by_query` by counting, without concatenating the batches first.

    None where they are on a GPU, are in order already, or have indexes so far apart that counting
    would take much memory.
    """
    states = ([state] if isinstance(state, Tensor) else state for state in (indexes, preds, target))
    parts = [each for each in zip(*states, strict=True) if len(each[0])]
    if not parts or parts[0][0].is_cuda or len({each[1].dtype for each in parts}) > 1:
        return None
    arrays = [tuple(one.detach().numpy() for one in each) for each in parts]
    ranges = [index_range(each[0]) for each in arrays]
    lowest, highest = min(r[0] for r in ranges), max(r[1] for r in ranges)
    in_order = all(r[2] for r in ranges) and all(a[1] <= b[0] for a, b in pairwise(ranges))
    total = sum(len(each[0]) for each in arrays)
    if in_order or highest - lowest >= 4 * total + _FEW:
        return None
    grouped = group(arrays, lowest, highest - lowest + 1)
    scores, labels, counts = map(torch.from_numpy, grouped)
    queries = counts.nonzero()[:, 0]
    return queries + lowest, counts[queries], scores, labels


def _check(preds: Tensor, target: Tensor, indexes: Tensor | None) -> None:
    if indexes is None:
        raise ValueError("indexes must say the query of each item, found None")
    if not preds.shape == target.shape == indexes.shape:
        raise ValueError(
            f"preds, target and indexes must have one shape, found {list(preds.shape)}, "
            f"{list(target.shape)} and {list(indexes.shape)}"
        )
    if not preds.is_floating_point():
        raise ValueError(f"preds must be floating, found {preds.dtype}")
    if indexes.is_floating_point() or indexes.dtype == torch.bool:
        raise ValueError(f"indexes must be whole numbers, found {indexes.dtype}")
