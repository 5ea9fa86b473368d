"""What the tree libraries share: a loss as gradient and Hessian of rows, a metric of rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rankgrad import losses, metrics
from rankgrad._quoting import quote
from rankgrad._shapes import Array
from rankgrad._validation import check_choice, check_positive
from rankgrad.extras import load
from rankgrad.losses import Loss
from rankgrad.losses._base import randomness_of
from rankgrad.metrics import Metric, evaluate

__all__ = [
    "CallerLists",
    "RowLists",
    "RowMetric",
    "RowObjective",
    "library",
    "offsets_of",
    "undefined_message",
]


#: With fewer lists, the Hessian of all rows sums to at least 1 for this many rows, up to a maximum:
#: a minimum Hessian of 1 in a leaf is some 20 rows, LightGBM's minimum of rows.
_FEW_LISTS, _ROWS, _LEAST_HESSIAN = 100, 20, 100.0


def library(name: str) -> Any:
    """A tree library, or an error that says how to get it.

    Args:
        name: of its package.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed; the message has the install line.
    """
    return load(name, "trees")


class RowLists(NamedTuple):
    """Lists of rows: ``offsets [B + 1]``, and weights ``[N]`` of items and ``[B]`` of lists."""

    offsets: Array
    item_weights: Any
    list_weights: Array | None


@dataclass(frozen=True)
class CallerLists:
    """What the caller says of the lists of an objective or metric, beside what its library passes.

    Args:
        item_weights: one per row.
        list_weights: one per list.
        group: the sizes of the lists; or those of several data sets, one of which is meant by its
            number of rows.
    """

    item_weights: Any = None
    list_weights: Any = None
    group: Any = None

    def complete(
        self, rows: int, remedy: str, offsets: Any, item_weights: Any, list_weights: Any = None
    ) -> RowLists:
        """The lists of a data set.

        Args:
            rows: how many there are.
            remedy: what to do if there are no groups, for the error.
            offsets: what the library says of the lists, or None.
            item_weights: the library's, or None.
            list_weights: the library's, or None.

        Raises:
            ValueError: there are no groups, or they are not those of the rows; there are weights
                of one kind twice, or of another number.
        """
        if offsets is None:
            offsets = offsets_of(self._group(rows), rows, remedy)
        elif self.group is not None:
            stated = offsets_of(self._group(rows), rows, remedy)
            if not np.array_equal(np.unique(stated), np.unique(offsets)):  # but for empty lists
                raise ValueError("group and the data say different lists: leave out group")
        items = _either("item_weights", "rows", self.item_weights, item_weights)
        if items is not None and len(items) != rows:  # as many as there are lists would weigh them
            raise ValueError(f"item_weights has {len(items)} numbers for {rows} rows")
        per_list = _either("list_weights", "lists", self.list_weights, list_weights)
        return RowLists(offsets, items, _list_weights(per_list, len(offsets) - 1))

    def _group(self, rows: int) -> Any:
        """The sizes of the lists of the data set with this number of rows."""
        group = self.group
        if group is None or not len(group) or isinstance(group, str) or not np.ndim(group[0]):
            return group
        fitting = [sizes for sizes in group if np.sum(sizes) == rows]
        if not fitting or any(not np.array_equal(one, fitting[0]) for one in fitting):
            raise ValueError(
                f"group has the sizes of {len(group)} data sets, {len(fitting)} of them with "
                f"{rows} rows: one must be"
            )
        return fitting[0]


def _either(name: str, what: str, stated: Any, passed: Any) -> Any:
    """The weights that are there; those of a caller and of a library at once are an error."""
    if stated is not None and passed is not None:
        raise ValueError(
            f"there are weights of {what} twice: {name} and those of the data; leave one of them "
            "out"
        )
    return passed if stated is None else stated


def _list_weights(values: Any, lists: int) -> Array | None:
    if values is None:
        return None
    weights = _numbers("list_weights", values).reshape(-1)
    if len(weights) != lists:
        raise ValueError(f"list_weights has {len(weights)} numbers for {lists} lists")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("list_weights must be finite and not negative")
    return weights


class RowObjective:
    """A loss of rows in groups, as gradient and Hessian diagonal of the sum over lists.

    Args:
        loss: the spec of a loss, or a loss.
        item_weights: one per row, if the library does not pass them on.
        list_weights: one per list, if the library does not pass them on.
        group: the sizes of the lists, likewise.
        label_gain: the gain of each whole label in place of ``2^y - 1``, for losses with gains.
        hessian_scale: the Hessian is multiplied by it.
        min_list_hessian: what the Hessian of a list sums to at tied scores, at least, in the mean
            over lists: for losses whose Hessian is a bound by the gradient
            (:meth:`rankgrad.losses.Loss.derivatives`). With fewer than 100 lists, for every loss
            but the libraries' own (``norm=true``), the Hessian of all rows sums to at least this
            times the rows over 20, or times 100 if that is less. Gradient and Hessian are
            multiplied by the same constant where it would be less.
        device: where the loss is computed: ``"cpu"`` or ``"cuda"``.

    Raises:
        ValueError: the loss has no gains, the gains fall, a number is out of its range, or there is
            no such device.
    """

    def __init__(
        self,
        loss: str | Loss,
        *,
        item_weights: Any = None,
        list_weights: Any = None,
        group: Any = None,
        label_gain: Sequence[float] | None = None,
        hessian_scale: float = 1.0,
        min_list_hessian: float = 1.0,
        device: str = "cpu",
    ) -> None:
        check_positive("hessian_scale", hessian_scale)
        if min_list_hessian != 0:
            check_positive("min_list_hessian", min_list_hessian)
        self.loss = losses.get(loss)
        self.label_gain = _LabelGain.of(label_gain, self.loss)
        check_choice("device", device, ("cpu", "cuda"))
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device must be 'cpu' here: PyTorch finds no GPU")
        self.caller, self.device = CallerLists(item_weights, list_weights, group), device
        self.hessian_scale = float(hessian_scale)
        self.min_list_hessian = float(min_list_hessian)
        self.__name__ = str(self.loss)  # LightGBM's scikit-learn estimators ask for it
        self._scales: dict[tuple[int, int], float] = {}  # by checksums of labels and offsets

    def derivatives(self, row_scores: Any, labels: Array, lists: RowLists) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian diagonal of the rows, on the device.

        Args:
            row_scores: ``[N]``.
            labels: ``[N]``.
            lists: which rows belong together, and their weights.
        """
        scores = torch.as_tensor(np.asarray(row_scores)).reshape(-1).to(self.device)
        offsets = lists.offsets
        if self.label_gain is not None:
            labels = self.label_gain(labels)
        gradient, hessian = self.loss.gradient_and_hessian(
            scores,
            torch.as_tensor(labels),
            offsets=torch.as_tensor(offsets),
            weights=lists.item_weights,
        )
        scale = self._scale(scores, labels, offsets)
        if scale != 1:
            gradient, hessian = gradient * scale, hessian * scale
        if lists.list_weights is not None:
            rows = np.repeat(lists.list_weights, np.diff(offsets))
            weights = torch.from_numpy(rows).to(gradient)
            gradient, hessian = gradient * weights, hessian * weights
        return gradient, hessian if self.hessian_scale == 1 else hessian * self.hessian_scale

    def _scale(self, scores: Tensor, labels: Array, offsets: Array) -> float:
        """The constant that multiplies the loss, so that there is ``min_list_hessian``.

        It is that of tied scores in every round: boosting starts there, and one that followed the
        scores would take the steps that have become small for large ones.
        """
        is_bound = type(self.loss).derivatives is Loss.derivatives
        if not self.min_list_hessian or not (is_bound or len(offsets) <= _FEW_LISTS):
            return 1.0
        if getattr(self.loss, "norm", False):
            return 1.0  # which is a library's own objective
        key = _checksum(labels), _checksum(offsets)
        if key not in self._scales:
            per_list = self._list_hessians(scores, labels, offsets)
            lacking = 1.0
            if is_bound and len(per_list):
                lacking = max(lacking, self.min_list_hessian / float(per_list.mean()))
            if len(offsets) <= _FEW_LISTS and len(per_list):
                least = min(_LEAST_HESSIAN, len(labels) / _ROWS) * self.min_list_hessian
                lacking = max(lacking, least / float(per_list.sum()))
            self._scales[key] = lacking
        return self._scales[key]

    def _list_hessians(self, scores: Tensor, labels: Array, offsets: Array) -> Array:
        """The sum of the Hessian over each list at tied scores, where it is not 0."""
        with _at_start(self.loss):
            _, hessian = self.loss.gradient_and_hessian(
                torch.zeros_like(scores), torch.as_tensor(labels), offsets=torch.as_tensor(offsets)
            )
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        per_list = np.bincount(rows, hessian.double().cpu().numpy())
        return per_list[per_list > 0]


@contextmanager
def _at_start(loss: Loss) -> Iterator[None]:
    """A context in which a loss is as at the start of training: its schedules and its random draws.

    At the end its state is restored, so that boosting can resume from a checkpoint.
    """
    drawing, progress = list(randomness_of(loss).values()), loss.progress
    before = [dict(one._generators) for one in drawing]
    for one in drawing:
        one._generators.clear()
    loss.progress = 0.0
    try:
        yield
    finally:
        loss.progress = progress
        for one, generators in zip(drawing, before, strict=True):
            one._generators.clear()
            one._generators.update(generators)


def _checksum(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data)


def _numbers(name: str, values: Any) -> Array:
    """An array of numbers, or an error that names the argument."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, found {quote(values)}") from None


class _LabelGain:
    """Labels whose gain under the formula of a loss or metric is what a table says.

    Where the gain is ``2^y - 1``, the label y becomes ``log2(1 + table[y])``; where it is linear,
    ``table[y]``.

    >>> from rankgrad.boosting.objectives import _LabelGain
    >>> _LabelGain.of([0, 1, 3, 15], losses.get("lambdarank"))(np.array([0, 2, 3])).tolist()
    [0.0, 2.0, 4.0]
    """

    def __init__(self, table: Sequence[float], linear: bool) -> None:
        gains = _numbers("label_gain", table)
        if gains.ndim != 1 or not len(gains) or not np.isfinite(gains).all() or gains[0] < 0:
            raise ValueError("label_gain must be the gains of labels 0, 1, ..., none negative")
        if (np.diff(gains) < 0).any():
            raise ValueError("label_gain must not fall: a higher label is more relevant")
        self.labels = gains if linear else np.log2(1 + gains)

    @classmethod
    def of(cls, table: Sequence[float] | None, owner: Loss | Metric) -> _LabelGain | None:
        """The table for a loss or metric that has gains; None without a table."""
        if table is None:
            return None
        metric = getattr(owner, "metric", None)
        gain = getattr(owner, "gain", None) or getattr(metric, "gain", None)
        # A lambda loss has the option with every metric, and uses it with these alone.
        unused = isinstance(metric, str) and metric not in ("ndcg", "dcg")
        if gain is None or unused:
            raise ValueError(f"{owner} has no gains of labels: leave out label_gain")
        return cls(table, gain == "linear")

    def __call__(self, labels: Array) -> Array:
        """The gains of the labels, ``[N]``."""
        whole = np.asarray(labels).astype(np.int64)
        wrong = (whole != labels) | (whole < 0) | (whole >= len(self.labels))
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"label_gain has gains for labels 0 to {len(self.labels) - 1}; the label of row "
                f"{at} is {labels[at]:g}"
            )
        return np.asarray(self.labels[whole])


class RowMetric:
    """An exact metric of rows in groups, with this library's conventions.

    Args:
        metric: the spec of a metric, or a metric.
        item_weights: as for :class:`RowObjective`, as are the others.
        list_weights: one per list.
        group: the sizes of the lists.
        label_gain: the gain of each whole label.
    """

    def __init__(
        self,
        metric: str | Metric,
        *,
        item_weights: Any = None,
        list_weights: Any = None,
        group: Any = None,
        label_gain: Sequence[float] | None = None,
    ) -> None:
        self.metric = metrics.get(metric)
        self.caller = CallerLists(item_weights, list_weights, group)
        self.label_gain = _LabelGain.of(label_gain, self.metric)

    @property
    def name(self) -> str:
        """What the library shows: the spec, marked, so that its own metrics have other names.

        It has no spaces: XGBoost splits its line of metrics at them.
        """
        return f"{''.join(str(self.metric).split())}_exact"

    @property
    def __name__(self) -> str:  # scikit-learn estimators ask for it
        return self.name

    @property
    def higher_is_better(self) -> bool:
        """For early stopping: whether the metric is to be maximized."""
        return not self.metric.lower_is_better

    def value(self, scores: Any, labels: Array, lists: RowLists) -> float:
        """The mean over lists; an error where the metric is undefined on all of them."""
        if self.label_gain is not None:
            labels = self.label_gain(labels)
        evaluation = evaluate(
            np.asarray(scores),
            labels,
            offsets=lists.offsets,
            weights=lists.item_weights,
            metrics=self.metric,
        )
        per_list = next(iter(evaluation.per_list.values())).double().numpy()
        weights = np.ones(len(per_list)) if lists.list_weights is None else lists.list_weights
        counted = ~np.isnan(per_list) & (weights > 0)
        if not counted.any():
            raise ValueError(undefined_message(self.metric))
        return float(np.average(per_list[counted], weights=weights[counted]))


def undefined_message(metric: str | Metric) -> str:
    """The error of a metric that no list of the evaluated data has a value of.

    Args:
        metric: or its spec.

    Returns:
        The message.
    """
    return f"{metric} is undefined on every list of the validation data"


def offsets_of(group: Any, rows: int, remedy: str) -> Array:
    """Where each list begins and ends, from the sizes of the groups.

    Args:
        group: the sizes, or None.
        rows: how many there are.
        remedy: what to do if there are no groups, for the error.

    Returns:
        The offsets ``[B + 1]``.

    Raises:
        ValueError: there are no groups, or they are not those of the rows.
    """
    if group is None or len(group) == 0:
        raise ValueError(f"a ranking loss needs to know which rows belong together: {remedy}")
    sizes = _numbers("group", group)
    if (sizes < 0).any() or (sizes != np.floor(sizes)).any():
        raise ValueError("group must have the sizes of the lists, whole numbers of at least 0")
    offsets = np.concatenate([[0], np.cumsum(sizes.astype(np.int64))])
    if offsets[-1] != rows:
        raise ValueError(f"the groups have {int(offsets[-1])} rows together, the data {rows}")
    return offsets
