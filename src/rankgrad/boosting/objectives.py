"""What the tree libraries share: a loss as gradient and Hessian of rows, a metric of rows."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad import losses, metrics
from rankgrad.losses import Loss
from rankgrad.metrics import Metric, evaluate
from rankgrad.quoting import quote
from rankgrad.validation import check_positive

Array = np.ndarray[Any, Any]


def library(name: str) -> Any:
    """A tree library, or an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"{name} is not installed: pip install 'rankgrad[trees]'") from None


class RowLoss:
    """A loss of rows in groups, as gradient and Hessian diagonal of the sum over lists.

    Args:
        loss: the spec of a loss, or a loss.
        label_gain: the gain of each whole label in place of ``2^y - 1``, for losses with gains.
        hessian_scale: the Hessian is multiplied by it.
        min_list_hessian: what the Hessian of a list sums to at tied scores, at least, in the mean
            over lists: for losses whose Hessian is a bound by the gradient
            (:meth:`rankgrad.losses.Loss.derivatives`). Gradient and Hessian are multiplied by the
            same constant where it would be less.

    Raises:
        ValueError: the loss has no gains, the gains fall, or a number is out of its range.
    """

    def __init__(
        self,
        loss: str | Loss,
        *,
        label_gain: Sequence[float] | None = None,
        hessian_scale: float = 1.0,
        min_list_hessian: float = 1.0,
    ) -> None:
        check_positive("hessian_scale", hessian_scale)
        if min_list_hessian != 0:
            check_positive("min_list_hessian", min_list_hessian)
        self.loss = losses.get(loss)
        self.label_gain = LabelGain.of(label_gain, self.loss)
        self.hessian_scale = float(hessian_scale)
        self.min_list_hessian = float(min_list_hessian)
        self._scales: dict[tuple[int, int], float] = {}  # by checksums of labels and offsets

    def __call__(
        self,
        scores: Tensor,
        labels: Array,
        offsets: Array,
        item_weights: Any = None,
        list_weights: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of the rows, on the device of the scores.

        Args:
            scores: ``[N]``.
            labels: ``[N]``.
            offsets: ``[B + 1]``.
            item_weights: ``[N]`` or None.
            list_weights: ``[B]`` or None.
        """
        if self.label_gain is not None:
            labels = self.label_gain(labels)
        gradient, hessian = self.loss.gradient_and_hessian(
            scores, torch.as_tensor(labels), offsets=torch.as_tensor(offsets), weights=item_weights
        )
        scale = self._scale(scores, labels, offsets)
        if scale != 1:
            gradient, hessian = gradient * scale, hessian * scale
        if list_weights is not None:
            weights = _per_row(list_weights, offsets).to(gradient)
            gradient, hessian = gradient * weights, hessian * weights
        return gradient, hessian if self.hessian_scale == 1 else hessian * self.hessian_scale

    def _scale(self, scores: Tensor, labels: Array, offsets: Array) -> float:
        """The constant that multiplies the loss, so that a list has ``min_list_hessian``.

        It is that of tied scores in every round: boosting starts there, and one that followed the
        scores would take the steps that have become small for large ones.
        """
        if type(self.loss).derivatives is not Loss.derivatives or not self.min_list_hessian:
            return 1.0
        key = _checksum(labels), _checksum(offsets)
        if key not in self._scales:
            _, hessian = self.loss.gradient_and_hessian(
                torch.zeros_like(scores), torch.as_tensor(labels), offsets=torch.as_tensor(offsets)
            )
            rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            per_list = np.bincount(rows, hessian.double().cpu().numpy())
            mean = per_list[per_list > 0].mean() if (per_list > 0).any() else self.min_list_hessian
            self._scales[key] = max(1.0, self.min_list_hessian / float(mean))
        return self._scales[key]


def _checksum(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data)


def _numbers(name: str, values: Any) -> Array:
    """An array of numbers, or an error that names the argument."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, found {quote(values)}") from None


def _per_row(list_weights: Any, offsets: Array) -> Tensor:
    weights = _numbers("list_weights", list_weights).reshape(-1)
    lists = len(offsets) - 1
    if len(weights) != lists:
        raise ValueError(f"list_weights has {len(weights)} numbers for {lists} lists")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("list_weights must be finite and not negative")
    return torch.from_numpy(np.repeat(weights, np.diff(offsets)))


class LabelGain:
    """Labels whose gain under the formula of a loss or metric is what a table says.

    Where the gain is ``2^y - 1``, the label y becomes ``log2(1 + table[y])``; where it is linear,
    ``table[y]``.

    >>> from rankgrad.boosting.objectives import LabelGain
    >>> LabelGain.of([0, 1, 3, 15], losses.get("lambdarank"))(np.array([0, 2, 3])).tolist()
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
    def of(cls, table: Sequence[float] | None, owner: Loss | Metric) -> LabelGain | None:
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
        label_gain: as for :class:`RowLoss`.
    """

    def __init__(self, metric: str | Metric, label_gain: Sequence[float] | None = None) -> None:
        self.metric = metrics.get(metric)
        self.label_gain = LabelGain.of(label_gain, self.metric)

    @property
    def name(self) -> str:
        """What the library shows: the spec."""
        return str(self.metric)

    @property
    def __name__(self) -> str:  # scikit-learn estimators ask for it
        return self.name

    @property
    def higher_is_better(self) -> bool:
        """For early stopping: whether the metric is to be maximized."""
        return not self.metric.lower_is_better

    def value(self, scores: Array, labels: Array, offsets: Array, weights: Any = None) -> float:
        """The mean over lists; an error where the metric is undefined on all of them."""
        if self.label_gain is not None:
            labels = self.label_gain(labels)
        found = evaluate(
            np.asarray(scores), labels, offsets=offsets, weights=weights, metrics=self.metric
        )
        mean = float(next(iter(found.mean.values())))
        if np.isnan(mean):
            raise ValueError(undefined(self.metric))
        return mean


def undefined(metric: str | Metric) -> str:
    """The error of a metric that no list of the evaluated data has a value of."""
    return f"{metric} is undefined on every list of the validation data"


def offsets_of(group: Any, rows: int, remedy: str) -> Array:
    """Where each list begins and ends, from the sizes of the groups.

    Args:
        group: the sizes, or None.
        rows: how many there are.
        remedy: what to do if there are no groups, for the error.
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
