"""Base classes of metrics: exact on a ranking, differentiable through a relaxation of sorting.

Each metric is a file of this package. Users call :meth:`Metric.__call__` and
:meth:`Metric.relaxed`, :func:`rankgrad.metrics.evaluate` calls :func:`list_values`, and relaxed
losses (:mod:`rankgrad.losses.relaxed`) call :meth:`Metric.relax`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from typing_extensions import override

from rankgrad._padded import descending, tie_groups
from rankgrad._shapes import Float, Int, ItemMask, ItemValues, Labels, ListMask, ListValues, Mask
from rankgrad._validation import check_choice, check_cutoff, check_positive
from rankgrad.inputs import as_lists, check_finite, largest_exponent
from rankgrad.kernels import DeclaresKernel, ops, ready
from rankgrad.kernels.arguments import ExactMetric, MetricOptions
from rankgrad.lists import Lists
from rankgrad.metrics import _other_names
from rankgrad.specs import HasSpec, Registry, Spec


class MetricRegistry(Registry["Metric"]):
    """The registry of metrics, which also takes the names that other tools have for them."""

    @override
    def parse(self, text: str) -> Spec:
        return _other_names.parse(text, self.names())


metrics = MetricRegistry("metric")

#: The value of lists without a relevant item.
Empty = Literal[0, 1, "skip"]
#: How tied scores are ranked.
Ties = Literal["average", "stable"]
#: The gain of a label: ``2^y - 1`` or y.
Gain = Literal["exponential", "linear"]
#: The form of a relaxation that a relaxed metric goes through.
Route = Literal["permutation", "ranks"]
#: Whether dcg and ndcg take the expected gain at each rank, or the gain of the expected label.
Expectation = Literal["gain", "label"]


class SortRelaxation(Protocol):
    """What a metric needs of a relaxation (see :class:`rankgrad.sorting.Relaxation`)."""

    @property
    def forms(self) -> tuple[Route, ...]:
        """The forms it comes in, the native one first."""

    @property
    def stochastic(self) -> bool:
        """Whether it adds noise to the scores."""

    def sort(self, values: Tensor, scores: Tensor, mask: Tensor, k: int) -> Tensor:
        """``P[:k] @ values``, ``[b, c, k]`` from values ``[b, c, n]``; scores, mask ``[b, n]``."""

    def rank(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The relaxed ranks, ``[b, n]``."""

    def sample_scores(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The scores to sort, ``[samples, b, n]``."""


@dataclass(frozen=True)
class Ranked:
    """Lists in the order of their scores, padding last, with the groups of tied items.

    Position p of a list has rank p + 1, and its tie group is ``start:end``. With ``ties="stable"``
    every group is a single position.

    Items that were not retrieved come after those that were, as one tie group, before padding. They
    have no rank. A metric counts them only in the best that a ranking could reach, such as the
    number of relevant items.

    Attributes:
        labels: ``[b, n]``.
        weights: ``[b, n]``, 0 on padding.
        mask: ``[b, n]``, True on items.
        start: ``[b, n]``, where the tie group of each position starts.
        end: ``[b, n]``, where it ends, exclusive.
        retrieved: ``[b, n]``, True on items that have a rank; all items, unless a caller says
            otherwise.

    >>> from rankgrad.inputs import as_lists
    >>> Ranked.of(as_lists([0.1, 0.5, 0.1], [2, 0, 1]), "average").end.tolist()
    [[1, 3, 3]]
    """

    labels: ItemValues
    weights: ItemValues
    mask: ItemMask
    start: Int[Tensor, "b n"]
    end: Int[Tensor, "b n"]
    retrieved: ItemMask

    @classmethod
    def of(cls, lists: Lists, ties: Ties, retrieved: ItemMask | None = None) -> Ranked:
        """Sort lists by their scores.

        Args:
            lists: the lists, with their scores and labels.
            ties: how tied scores are ranked, ``"average"`` or ``"stable"``.
            retrieved: ``[b, n]``, True on items that were retrieved; None if all were.

        Returns:
            The lists in the order of their scores.
        """
        has_rank = lists.mask if retrieved is None else lists.mask & retrieved
        order = descending(lists.scores, has_rank)
        if retrieved is not None:  # so far, items that were not retrieved are among the padding
            is_padding = lists.mask.gather(-1, order).logical_not().int()
            order = order.gather(-1, is_padding.argsort(dim=-1, stable=True))
        mask = lists.mask.gather(-1, order)
        has_rank = mask if retrieved is None else has_rank.gather(-1, order)
        scores = lists.scores.detach().gather(-1, order)
        # Items without a rank get -inf below; no item with a rank may tie with them.
        scores = scores.clamp(min=torch.finfo(scores.dtype).min)
        start, end = tie_groups(scores.masked_fill(~has_rank, float("-inf")))
        if ties == "stable":
            position = torch.arange(order.shape[-1], device=order.device).expand_as(order)
            start = torch.where(has_rank, position, start)
            end = torch.where(has_rank, position + 1, end)
        weights = lists.weighted(lists.mask.to(lists.scores.dtype)).gather(-1, order)
        return cls(lists.labels.gather(-1, order), weights, mask, start, end, has_rank)

    @property
    def ranks(self) -> Float[Tensor, " n"]:
        """1, 2, ..., n."""
        return torch.arange(1, self.mask.shape[-1] + 1, device=self.mask.device).to(self.labels)

    def group_sums(self, values: ItemValues) -> ItemValues:
        """At each position, the sum of the values over its tie group.

        Args:
            values: ``[b, n]``, by position.

        Returns:
            ``[b, n]``, equal at all positions of a tie group.
        """
        sums = torch.nn.functional.pad(values.double().cumsum(-1), (1, 0))
        return (sums.gather(-1, self.end) - sums.gather(-1, self.start)).to(values.dtype)

    def group_means(self, values: ItemValues) -> ItemValues:
        """At each position, the mean of the values over its tie group.

        Args:
            values: ``[b, n]``, by position.

        Returns:
            ``[b, n]``, equal at all positions of a tie group.
        """
        return self.group_sums(values) / (self.end - self.start)


@dataclass(frozen=True, kw_only=True)
class Metric(HasSpec, DeclaresKernel):
    """A ranking metric with a cutoff.

    ``metric(scores, labels, ...)`` is exact, ``metric.relaxed(relaxation, scores, labels, ...)``
    differentiable; both give one value per list.

    Args:
        k: count the top k ranks only; None for all.
        empty: the value of lists without a relevant item: 0 (trec_eval, TF-Ranking), 1 (XGBoost,
            LightGBM, the NeuralNDCG paper), or ``"skip"``, which gives NaN and leaves them out of
            means.
        ties: with tied scores, the value is the mean over all orders of the tied items
            (``"average"``), or that of their input order (``"stable"``).

    >>> ndcg = metrics.get("ndcg@10(gain=linear)")
    >>> ndcg(torch.tensor([[0.2, 0.7], [0.4, 0.1]]), torch.tensor([[1, 0], [1, 0]]))
    tensor([0.6309, 1.0000])
    """

    lower_is_better: ClassVar[bool] = False
    has_cutoff: ClassVar[bool] = True
    #: The cutoff that relaxed losses have by default.
    loss_cutoff: ClassVar[int | None] = None
    #: The name of the metric in kernels; None if it has no kernel.
    kernel: ClassVar[str | None] = None
    #: Whether its eager form through ranks never waits for a GPU, so that a CUDA graph can capture
    #: it. It holds for the class that declares it; subclasses do not inherit it.
    capturable: ClassVar[bool] = False

    k: int | None = field(default=None, kw_only=False)
    empty: Empty = 0
    ties: Ties = "average"

    def __post_init__(self) -> None:
        check_cutoff(self.k)
        if self.k is not None and not self.has_cutoff:
            raise ValueError(f"{self.name} takes no cutoff, found {self.name}@{self.k}")
        check_choice("empty", self.empty, (0, 1, "skip"))
        check_choice("ties", self.ties, ("average", "stable"))

    def __call__(
        self,
        scores: Any,
        labels: Any,
        mask: Any = None,
        *,
        offsets: Any = None,
        lengths: Any = None,
        qid: Any = None,
        weights: Any = None,
        retrieved: Any = None,
    ) -> Float[Tensor, "*b"]:
        """The exact value of each list. Per-list weights matter to means only, not here.

        Args:
            scores: of the items, padded or flat, see :mod:`rankgrad.lists`.
            labels: as scores.
            mask: of padded lists.
            offsets: flat lists: ``[B + 1]``, where each begins and ends.
            lengths: flat lists: ``[B]``, the number of items of each, in place of ``offsets``.
            qid: flat lists: ``[N]``, the query of each item, in place of ``offsets``.
            weights: per item or per list.
            retrieved: False on items that were not retrieved, such as a relevant document that is
                not in a run. Whatever their score, they have no rank, but count in the ideal
                ranking and in the number of relevant items. By default all items were retrieved.
        """
        lists = as_lists(
            scores, labels, mask, offsets=offsets, lengths=lengths, qid=qid, weights=weights
        )
        [(values, _)] = list_values([self], lists, retrieved)
        return values.reshape(lists.shape)

    def of(self, ranked: Ranked) -> ListValues:
        """The exact value of lists that are sorted already.

        Args:
            ranked: the lists in the order of their scores.

        Returns:
            ``[b]``, with ``empty`` for lists without a relevant item.
        """
        return self.fill(self._exact(ranked), self.relevant(ranked))

    def relaxed(
        self,
        relaxation: SortRelaxation,
        scores: Any,
        labels: Any,
        mask: Any = None,
        *,
        offsets: Any = None,
        lengths: Any = None,
        qid: Any = None,
        weights: Any = None,
        through: Route | None = None,
        beta: float = 1.0,
        expect: Expectation = "gain",
    ) -> Float[Tensor, "*b"]:
        """The differentiable value of each list, the sort replaced by a relaxation.

        Args:
            relaxation: from :mod:`rankgrad.sorting`.
            scores: as in :meth:`__call__`.
            labels: as in :meth:`__call__`.
            mask: as in :meth:`__call__`.
            offsets: as in :meth:`__call__`.
            lengths: as in :meth:`__call__`.
            qid: as in :meth:`__call__`.
            weights: as in :meth:`__call__`.
            through: the relaxed ``"permutation"`` or ``"ranks"``; by default the relaxation's
                native form, if the metric goes through it.
            beta: through ranks, how sharp comparisons of ranks are. "Is it within the top k?"
                becomes ``sigmoid(beta (k + 1/2 - rank))``, the truncation of Qin et al. 2010 with
                the cut between k and k + 1, so that rank k counts in full in the limit. Past the
                cut it is a power of the distance, which has a gradient at low ranks, too.
            expect: dcg and ndcg through a permutation take the expected ``"gain"`` at each rank, or
                the gain of the expected ``"label"``, as the SmoothI paper writes it.

        Returns:
            One value for each list, with ``empty`` for lists without a relevant item.

        Raises:
            ValueError: an argument is not valid, or the metric has no relaxed form through the
                relaxation.
        """
        lists = as_lists(
            scores, labels, mask, offsets=offsets, lengths=lengths, qid=qid, weights=weights
        )
        check_finite(lists)
        with torch.autocast(lists.scores.device.type, enabled=False):
            values = self.relax(relaxation, lists, through, beta, expect)
        return self.fill(values, self.relevant(lists)).reshape(lists.shape)

    def relax(
        self,
        relaxation: SortRelaxation,
        lists: Lists,
        through: Route | None = None,
        beta: float = 1.0,
        expect: Expectation = "gain",
    ) -> ListValues:
        """:meth:`relaxed` of :class:`Lists`; 0 for lists without a relevant item.

        Args:
            relaxation: from :mod:`rankgrad.sorting`.
            lists: the lists.
            through: as in :meth:`relaxed`.
            beta: as in :meth:`relaxed`.
            expect: as in :meth:`relaxed`.

        Returns:
            ``[b]``, averaged over the samples of a stochastic relaxation.

        Raises:
            ValueError: an option is not valid, or the metric has no relaxed form through the
                relaxation.
        """
        check_positive("beta", beta)
        route = self.check_relaxed(relaxation, through, expect)
        samples = 1
        if relaxation.stochastic:
            noisy_scores = relaxation.sample_scores(lists.scores, lists.mask)
            samples, lists = len(noisy_scores), lists.repeat(noisy_scores)
        if route == "ranks":
            ranks = relaxation.rank(lists.scores, lists.mask)
            values = self._through_ranks(ranks, lists, beta)
        else:
            values = self._through_permutation(relaxation, lists, expect)
        return values.reshape(samples, -1).mean(0)

    @classmethod
    def routes(cls) -> tuple[Route, ...]:
        """The forms of a relaxation that it can go through; empty if it has no relaxed form.

        Returns:
            ``"permutation"``, ``"ranks"``, both or neither.
        """
        methods = {route: f"_through_{route}" for route in get_args(Route)}
        return tuple(r for r, m in methods.items() if getattr(cls, m) is not getattr(Metric, m))

    def kernel_options(self) -> MetricOptions | None:
        """The metric as kernels take it; None if it has no kernel.

        Returns:
            The options that kernels read, or None.
        """
        if self.kernel is None or not self.kernel_applies:
            return None
        # The defaults are for options that this metric lacks. For err, ``threshold`` is the
        # ``max_grade``.
        gain, persistence = getattr(self, "gain", "linear"), getattr(self, "persistence", 0.8)
        threshold = getattr(self, "threshold", getattr(self, "max_grade", 1.0))
        return MetricOptions(self.kernel, self.k or 0, gain, threshold, persistence)

    def relevant(self, lists: Lists | Ranked) -> ListMask:
        """Whether a list has an item that counts, so that the metric is defined on it.

        Args:
            lists: the lists, sorted or not.

        Returns:
            ``[b]``, True for lists with an item of positive weight whose gain is above 0 or NaN.
        """
        # A NaN gain counts, so that the metric of its list is NaN.
        return (~(self.gains(lists.labels) <= 0) & weighted_items(lists)).any(-1)

    def check_labels(self, labels: Labels, mask: Mask | None = None) -> Labels:
        """The labels, or an error if one is too large for the metric's gain.

        Args:
            labels: of the items.
            mask: True on items, of the same shape; None if there is no padding.

        Returns:
            The labels; infinity for those that are too large, if values cannot be read now.
        """
        return labels

    def gains(self, labels: ItemValues) -> ItemValues:
        """The gain of each item, by its label.

        Args:
            labels: ``[b, n]``.

        Returns:
            ``[b, n]``.

        Raises:
            TypeError: the class does not define its gain.
        """
        raise TypeError(f"{type(self).__name__} does not say its gain")

    def cutoff(self, n: int) -> int:
        """The last rank that counts in a batch of width n.

        Args:
            n: the width of the batch.

        Returns:
            The smaller of ``k`` and n; n if ``k`` is None.
        """
        return n if self.k is None else min(self.k, n)

    def _exact(self, ranked: Ranked) -> ListValues:
        raise TypeError(f"{type(self).__name__} does not say its exact value")

    def _through_permutation(
        self, relaxation: SortRelaxation, lists: Lists, expect: Expectation
    ) -> ListValues:
        raise ValueError(_not_relaxed(self))

    def _weighted_at_ranks(
        self, relaxation: SortRelaxation, lists: Lists, values: ItemValues, expect: Expectation
    ) -> Float[Tensor, "b c k"]:
        """Values at each rank up to the cutoff; with item weights, also value × weight."""
        if expect == "label":
            raise ValueError(f'expect="label" is for dcg and ndcg, not for {self.name}')
        channels = [values] if lists.item_weights is None else [values, lists.weighted(values)]
        k = self.cutoff(values.shape[-1])
        return relaxation.sort(torch.stack(channels, 1), lists.scores, lists.mask, k)

    def _through_ranks(self, ranks: ItemValues, lists: Lists, beta: float) -> ListValues:
        raise ValueError(_not_relaxed(self))

    def check_relaxed(
        self,
        relaxation: SortRelaxation,
        through: Route | None = None,
        expect: Expectation = "gain",
    ) -> Route:
        """The form of the relaxation that the metric goes through, or an error if there is none.

        Args:
            relaxation: from :mod:`rankgrad.sorting`.
            through: the form to go through; None for the first form of the relaxation that the
                metric goes through.
            expect: as in :meth:`relaxed`.

        Returns:
            ``"permutation"`` or ``"ranks"``.

        Raises:
            ValueError: the metric has no relaxed form, it or the relaxation does not have this
                form, or ``expect`` is not valid for it.
        """
        check_choice("expect", expect, ("gain", "label"))
        if not hasattr(relaxation, "forms"):
            raise ValueError(
                f"relaxation must be an object of rankgrad.sorting, found {relaxation!r}; "
                "sorting.get makes one of a spec"
            )
        routes = self.routes()
        if not routes:
            raise ValueError(_not_relaxed(self))
        if through is None:
            through = next((form for form in relaxation.forms if form in routes), routes[0])
        check_choice("through", through, ("permutation", "ranks"))
        if through not in relaxation.forms:
            raise ValueError(
                f"{relaxation} gives {' and '.join(relaxation.forms)}, so {self} cannot be relaxed "
                f"through its {through}"
            )
        if through not in routes:
            raise ValueError(f"{self} is relaxed through {' or '.join(routes)}, not {through}")
        if expect == "label" and through == "ranks":
            raise ValueError('expect="label" is for relaxations through a permutation')
        return through

    def fill(self, values: ListValues, relevant: ListMask) -> ListValues:
        """The values, with ``empty`` for lists without a relevant item.

        Args:
            values: ``[b]``.
            relevant: ``[b]``, False for lists without a relevant item.

        Returns:
            ``[b]``; NaN for lists without a relevant item if ``empty`` is ``"skip"``.
        """
        fill = float("nan") if self.empty == "skip" else float(self.empty)
        return torch.where(relevant, values, fill)


metrics.base_class = Metric


def weighted_items(lists: Lists | Ranked) -> ItemMask:
    """True on items of positive weight, ``[b, n]``."""
    weights = lists.weights if isinstance(lists, Ranked) else lists.item_weights
    return lists.mask if weights is None else lists.mask & (weights > 0)


@dataclass(frozen=True, kw_only=True)
class BinaryMetric(Metric):
    """A metric of binary relevance: an item is relevant if its label is ``threshold`` or more."""

    threshold: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("threshold", self.threshold)

    @override
    def gains(self, labels: ItemValues) -> ItemValues:
        return (labels >= self.threshold).to(labels.dtype)


def list_values(
    chosen: Sequence[Metric], lists: Lists, retrieved: Any = None
) -> Iterator[tuple[ListValues, ListMask]]:
    """For each metric, its values ``[b]`` and on which lists it is defined, ``[b]``.

    Kernels compute the metrics that have one. For all other metrics together, each list is sorted
    once for each way of ranking ties.
    """
    ranked: dict[Ties, Ranked] = {}
    has_rank = None if retrieved is None else as_retrieved(retrieved, lists)
    by_kernel = exact_values(chosen, lists) if has_rank is None else [None] * len(chosen)
    for metric, result in zip(chosen, by_kernel, strict=True):
        if result is not None:
            values, relevant = result
            yield metric.fill(values, relevant), relevant
            continue
        if metric.ties not in ranked:
            ranked[metric.ties] = Ranked.of(lists, metric.ties, has_rank)
        yield metric.of(ranked[metric.ties]), metric.relevant(lists)


def exact_values(
    metrics: Sequence[Metric], lists: Lists
) -> list[tuple[ListValues, ListMask] | None]:
    """For each metric, its values ``[b]`` by its kernel, and on which lists it is defined, ``[b]``.

    None for a metric that has no kernel for these lists.
    """
    results: list[tuple[Tensor, Tensor] | None] = [None] * len(metrics)
    scores = lists.flat.scores
    is_traced = torch.compiler.is_compiling() or is_functorch_wrapped_tensor(scores)
    if is_traced or not ready("exact_metrics", scores):
        return results
    options = [_exact_options(metric, lists) for metric in metrics]
    with_kernel = {i: each for i, each in enumerate(options) if each is not None}
    if with_kernel:
        values, relevant = ops.exact_metrics(lists.flat, list(with_kernel.values()))
        for row, i in enumerate(with_kernel):
            results[i] = values[row], relevant[row]
    return results


def _exact_options(metric: Metric, lists: Lists) -> ExactMetric | None:
    """The metric as the kernel of exact metrics takes it; None if that kernel does not compute it.

    Lists with labels that are too large for their gain go to the eager form, which raises the
    error.
    """
    options = metric.kernel_options()
    if options is None or options.name == "spearman":
        return None
    name, k, gain, threshold, persistence = options
    if (name == "err" or gain != "linear") and _any_too_large(lists):
        return None
    linear = gain == "linear" and name in ("ndcg", "dcg")
    return ExactMetric(name, k, metric.ties == "average", linear, threshold, persistence)


def _any_too_large(lists: Lists) -> bool:
    """Whether a label is too large for the gain 2^y - 1."""
    labels, mask = lists.flat.labels, lists.flat.mask
    if labels.is_cuda:  # the check of values set ``large``; reading labels would wait for the GPU
        return lists.large
    real_labels = labels if mask is None else labels[mask]
    return real_labels.numel() > 0 and float(real_labels.max()) > largest_exponent(labels.dtype)


def as_retrieved(retrieved: Any, lists: Lists) -> ItemMask:
    """The caller's ``retrieved``, in the layout of the lists, as padded ``[b, n]`` rows."""
    flags = torch.as_tensor(retrieved, device=lists.mask.device)
    scores = lists.arguments[0]
    assert scores is not None  # only mask and weights may be None
    if flags.dtype != torch.bool or flags.shape != scores.shape:
        raise ValueError(
            f"retrieved must be True or False for each item, of shape {list(scores.shape)}; found "
            f"{flags.dtype} of shape {list(flags.shape)}"
        )
    if lists.ragged:
        return torch.zeros_like(lists.mask).masked_scatter(lists.mask, flags)
    # Lists of width 0 are padded to one item.
    return flags.reshape(lists.mask.shape) if flags.numel() else torch.zeros_like(lists.mask)


def undefined_message(metric: str | Metric) -> str:
    """The error message for a metric that is undefined on every list of the evaluated data."""
    return f"{metric} is undefined on every list of the validation data"


def _not_relaxed(metric: Metric) -> str:
    """The error message for a metric without a relaxed form."""
    factories = {name: metrics.factory(name) for name in metrics.names()}
    relaxed = [name for name in factories if getattr(factories[name], "routes", tuple)()]
    return (
        f"{metric.name} has no relaxed form. Metrics of pairs have pairwise losses, such as "
        f"ranknet; metrics with a relaxed form are {', '.join(relaxed)}"
    )
