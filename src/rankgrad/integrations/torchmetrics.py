"""RankingMetric: any metric of the library as a metric of torchmetrics.

torchmetrics computes retrieval metrics query by query in Python. Here all items are sorted by query
once, and the metric is computed over all queries at once, in flat layout.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

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

#: A metric's option ``empty`` for each action. "skip" gives NaN, which ``compute`` leaves out, or
#: raises an error for if the action is "error".
_EMPTY: dict[_EmptyTargetAction, Literal[0, 1, "skip"]] = {
    "neg": 0, "pos": 1, "skip": "skip", "error": "skip",
}  # fmt: skip
# A counting sort is used if the range of indexes is below 4 times the number of items + 2^16.
_COUNTERS_PER_ITEM, _MIN_COUNTERS = 4, 1 << 16


class RankingMetric(torchmetrics.Metric):
    """A ranking metric over queries that arrive in any order, split over batches and processes.

    ``update(preds, target, indexes)`` collects items, ``compute()`` groups them by query and
    returns the mean of the metric over the queries, as torchmetrics' retrieval metrics do. The
    definitions are those of this library. They differ from torchmetrics':

    - ``ndcg`` has the gain 2^y - 1; ``ndcg(gain=linear)`` is ``RetrievalNormalizedDCG``.
    - Tied predictions earn the mean over their orders in every metric. In torchmetrics they do so
      in nDCG only; other metrics depend on the order in which ties happen to be sorted.
    - Every item has a rank. torchmetrics' average precision, reciprocal rank, precision and recall
      treat items with a prediction of 0 or less as not retrieved.
    - ``ap@k`` divides by the number of relevant items of the query, as trec_eval does;
      ``RetrievalMAP(top_k=k)`` divides by the number of relevant items within the top k.

    Args:
        metric: the spec of a metric, such as ``"ndcg@10"``, or a metric.
        empty_target_action: how queries without a relevant item count: ``"neg"`` as 0, ``"pos"`` as
            1, ``"skip"`` not at all (0 if all are skipped); ``"error"`` raises. None for the option
            ``empty`` of the metric, which is 0 by default.
        ignore_index: leave out items whose target is this number.
        aggregation: of the values of queries: ``"mean"``, ``"median"``, ``"min"``, ``"max"``, or a
            function of the values ``[B]``.
        **options: options of ``torchmetrics.Metric``, such as ``dist_sync_on_step``.

    Raises:
        ValueError: an option is wrong, or ``empty_target_action`` contradicts the metric's option
            ``empty``.

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
        """The arguments in ``repr``: the spec, and options that are not None.

        Returns:
            The text between the parentheses.
        """
        parts = [repr(str(self.metric))]
        for name in ("empty_target_action", "ignore_index"):
            if getattr(self, name) is not None:
                parts.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(parts)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one value or several, as other metrics of torchmetrics do; this needs matplotlib.

        Args:
            val: a value of ``compute`` or of a call of the metric, or a list of values; None for
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
            preds: ``[N, ...]``, the scores, of a floating type.
            target: ``[N, ...]``, the labels, at least 0, of any numerical type.
            indexes: ``[N, ...]``, the query of each item, whole numbers in any order; required.
        """
        _check_items(preds, target, indexes)
        assert indexes is not None
        # Detached, so that the graph of a batch is not stored until compute
        preds, target, indexes = preds.detach().flatten(), target.flatten(), indexes.flatten()
        if self.ignore_index is not None:
            is_used = target != self.ignore_index
            preds, target, indexes = preds[is_used], target[is_used], indexes[is_used]
        if preds.dtype != torch.float64:
            preds = preds.float()
        self.preds.append(preds)
        self.target.append(target.to(preds.dtype))
        self.indexes.append(indexes.long())

    def compute(self) -> Tensor:
        """The aggregated value of the metric, a scalar.

        Returns:
            The value; 0 if the metric is undefined on all queries.

        Raises:
            ValueError: ``empty_target_action`` is ``"error"``, and the metric is undefined on a
                query.
        """
        # One thread of PyTorch, as starting more costs more than it saves; the kernels of metrics
        # start threads of their own.
        with for_work(0):
            lists = _sort_by_query(self.indexes, self.preds, self.target)
            offsets = torch.nn.functional.pad(lists.lengths.cumsum(0), (1, 0))
            values = self.metric(lists.scores, lists.labels, offsets=offsets)
        defined = ~values.isnan()
        if self.empty_target_action == "error" and not defined.all():
            query, count = int(lists.queries[~defined][0]), int((~defined).sum())
            raise ValueError(
                f"{self._why_undefined(query)}, one of {count} such queries: "
                "choose another empty_target_action than 'error'"
            )
        if not defined.any():
            return values.new_zeros(())
        return self.aggregation(values[defined])

    def _why_undefined(self, query: int) -> str:
        """Why the metric has no value for a query, for the error."""
        if type(self.metric).relevant is Metric.relevant:
            return f"query {query} has no relevant item"
        # Such as opa, on a list without a pair to order
        return f"{self.metric.name} is undefined on query {query}"

    def sync(self, *arguments: Any, **options: Any) -> None:
        """Gather the items of all processes, also of those that have none."""
        if not self.preds:  # gathering needs a tensor from each process
            self.preds.append(torch.zeros(0, device=self.device))
            self.target.append(torch.zeros(0, device=self.device))
            self.indexes.append(torch.zeros(0, dtype=torch.int64, device=self.device))
        super().sync(*arguments, **options)


def ranking_metrics(specs: Iterable[str | Metric], **options: Any) -> torchmetrics.MetricCollection:
    """Several metrics as one collection, which stores the items once.

    ``MetricCollection`` names the metrics of a list by their class, so metrics of one class need a
    dictionary of names. Here the names are the specs.

    Args:
        specs: the metrics. A point in a spec, as in ``rbp(persistence=0.9)``, is ``_`` in the name.
        **options: options of :class:`RankingMetric`.

    Returns:
        The collection.

    Raises:
        ValueError: a metric or an option is unknown.

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


class _SortedItems(NamedTuple):
    """The N items of B queries, sorted by query."""

    queries: Tensor  # [B], ascending
    lengths: Tensor  # [B], the number of items of each query
    scores: Tensor  # [N]
    labels: Tensor  # [N]


_Collected = list[Tensor] | Tensor  # a tensor per update; a single one after sync


def _sort_by_query(indexes: _Collected, preds: _Collected, target: _Collected) -> _SortedItems:
    """Sort all items by query."""
    result = _count_by_query(indexes, preds, target)
    if result is not None:
        return result
    ids = dim_zero_cat(indexes)
    scores, labels = dim_zero_cat(preds), dim_zero_cat(target)
    if not (ids[1:] >= ids[:-1]).all():
        ids, order = ids.sort(stable=True)
        scores, labels = scores[order], labels[order]
    queries, lengths = ids.unique_consecutive(return_counts=True)
    return _SortedItems(queries, lengths, scores, labels)


def _count_by_query(
    indexes: _Collected, preds: _Collected, target: _Collected
) -> _SortedItems | None:
    """:func:`_sort_by_query` by a counting sort, without concatenating the batches first.

    None if there are no items, or if another way is better: items are not on the CPU, are of half
    precision or several types, are sorted already, or have indexes so far apart that counting would
    take much memory.
    """
    states = ([state] if isinstance(state, Tensor) else state for state in (indexes, preds, target))
    batches = [batch for batch in zip(*states, strict=True) if len(batch[0])]
    if {batch[1].device.type for batch in batches} != {"cpu"}:
        return None
    if {batch[1].dtype for batch in batches} not in ({torch.float32}, {torch.float64}):
        return None
    arrays = [tuple(state.detach().numpy() for state in batch) for batch in batches]
    # Of each batch the lowest and the highest index, and whether it is sorted
    lows, highs, are_sorted = zip(*(index_range(batch[0]) for batch in arrays), strict=True)
    lowest, highest = min(lows), max(highs)
    in_order = all(are_sorted) and all(map(operator.le, highs[:-1], lows[1:]))
    total = sum(len(batch[0]) for batch in arrays)
    if in_order or highest - lowest >= _COUNTERS_PER_ITEM * total + _MIN_COUNTERS:
        return None
    scores, labels, counts = map(torch.from_numpy, group(arrays, lowest, highest - lowest + 1))
    queries = counts.nonzero()[:, 0]
    return _SortedItems(queries + lowest, counts[queries], scores, labels)


def _check_items(preds: Tensor, target: Tensor, indexes: Tensor | None) -> None:
    """Check the arguments of ``update``."""
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
