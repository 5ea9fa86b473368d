"""What the adapters for LightGBM and XGBoost share.

Both libraries call an objective with the scores and labels of all rows (items), and expect the
gradient and the diagonal of the Hessian for each row; they call a metric with the same and expect
one number. :class:`RowObjective` and :class:`RowMetric` compute these from a loss and a metric of
rankgrad; :mod:`rankgrad.boosting.lightgbm` and :mod:`rankgrad.boosting.xgboost` subclass them with
the call signature of each library. :class:`CallerLists` finds out which rows form a list.
"""

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
from rankgrad.metrics import Metric
from rankgrad.metrics._base import undefined_message

__all__ = ["CallerLists", "RowLists", "RowMetric", "RowObjective", "library", "offsets_of"]


#: With fewer than ``_FEW_LISTS`` lists, :class:`RowObjective` scales the loss so that the Hessian
#: of all N rows sums to at least ``min(N / _ROWS_PER_LEAF, _ENOUGH_HESSIAN)`` (times
#: ``min_list_hessian``). By default a leaf needs a Hessian of 1 in XGBoost and 20 rows in LightGBM:
#: at a Hessian of 1 per 20 rows, the two requirements are about the same.
_FEW_LISTS, _ROWS_PER_LEAF, _ENOUGH_HESSIAN = 100, 20, 100.0


def library(name: str) -> Any:
    """Import LightGBM or XGBoost.

    Args:
        name: the name of the package.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed; the message has the install line.
    """
    return load(name, "trees")


class RowLists(NamedTuple):
    """Which rows form a list, and their weights.

    Attributes:
        offsets: ``[B + 1]``: list b is the rows ``offsets[b]:offsets[b + 1]``.
        item_weights: ``[N]``, or None.
        list_weights: ``[B]``, or None.
    """

    offsets: Array
    item_weights: Any
    list_weights: Array | None


@dataclass(frozen=True)
class CallerLists:
    """Groups and weights that the user gave to an objective or metric.

    The tree library passes groups and weights, too, but not with every API and not of every kind;
    :meth:`complete` puts the two together.

    Args:
        item_weights: one per row.
        list_weights: one per list.
        group: the sizes of the lists; or the sizes for each of several data sets, which are
            distinguished by their numbers of rows.
    """

    item_weights: Any = None
    list_weights: Any = None
    group: Any = None

    def complete(
        self, rows: int, remedy: str, offsets: Any, item_weights: Any, list_weights: Any = None
    ) -> RowLists:
        """The lists and weights of a data set, from the user and from the library.

        Args:
            rows: the number of rows of the data set.
            remedy: for the error if there are no groups: what to do about it.
            offsets: the library's ``[B + 1]``, or None.
            item_weights: the library's ``[N]``, or None.
            list_weights: the library's ``[B]``, or None.

        Returns:
            Which rows form a list, and their weights.

        Raises:
            ValueError: there are no groups, or they do not fit the rows; both the user and the
                library have weights of one kind, or there is a wrong number of weights.
        """
        if offsets is None:
            offsets = offsets_of(self._group_with(rows), rows, remedy)
        elif self.group is not None:
            from_user = offsets_of(self._group_with(rows), rows, remedy)
            # Unique offsets leave out empty lists, which LightGBM and XGBoost do not have.
            if not np.array_equal(np.unique(from_user), np.unique(offsets)):
                raise ValueError("group and the data say different lists: leave out group")
        of_rows = _single_source("item_weights", "rows", self.item_weights, item_weights)
        # Losses and metrics would take B weights, one per list, for list weights.
        if of_rows is not None and len(of_rows) != rows:
            raise ValueError(f"item_weights has {len(of_rows)} numbers for {rows} rows")
        of_lists = _single_source("list_weights", "lists", self.list_weights, list_weights)
        return RowLists(offsets, of_rows, _check_list_weights(of_lists, len(offsets) - 1))

    def _group_with(self, rows: int) -> Any:
        """The user's list sizes for the data set with this number of rows."""
        group = self.group
        # The first element by iteration: a Series of pandas would look up 0 in its index.
        if group is None or isinstance(group, str) or not np.ndim(next(iter(group), 0)):
            return group
        matches = [sizes for sizes in group if np.sum(sizes) == rows]
        if not matches or any(not np.array_equal(sizes, matches[0]) for sizes in matches):
            raise ValueError(
                f"group has the sizes of {len(group)} data sets, {len(matches)} of them with "
                f"{rows} rows: one must be"
            )
        return matches[0]


def _single_source(name: str, unit: str, from_user: Any, from_library: Any) -> Any:
    """The weights of the user or of the library, or None; an error if both have some."""
    if from_user is not None and from_library is not None:
        raise ValueError(
            f"there are weights of {unit} twice: {name} and those of the data; leave one of them "
            "out"
        )
    return from_library if from_user is None else from_user


def _check_list_weights(values: Any, lists: int) -> Array | None:
    """The weights as an array, ``[B]``."""
    if values is None:
        return None
    weights = _numbers("list_weights", values).reshape(-1)
    if len(weights) != lists:
        raise ValueError(f"list_weights has {len(weights)} numbers for {lists} lists")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("list_weights must be finite and not negative")
    return weights


class RowObjective:
    """A loss as an objective: gradient and Hessian diagonal, per row, of the sum over lists.

    Args:
        loss: the spec of a loss, or a loss.
        item_weights: one per row, if the library does not pass them on.
        list_weights: one per list, if the library does not pass them on.
        group: the sizes of the lists, if the library does not pass them on.
        label_gain: the gain of each whole label in place of ``2^y - 1``, for losses with gains.
        hessian_scale: multiplies the Hessian.
        min_list_hessian: the least that the Hessian of a list sums to at tied scores, in the mean
            over lists. It applies to losses whose Hessian is a bound computed from the gradient
            (the default :meth:`rankgrad.losses.Loss.derivatives`). With fewer than 100 lists, the
            Hessian of all N rows must also sum to at least
            ``min_list_hessian * min(N / 20, 100)``, for every loss except the libraries' own
            (``norm=true``). If a sum is less, one constant multiplies gradient and Hessian. 0 turns
            this scaling off.
        device: where the loss is computed: ``"cpu"`` or ``"cuda"``.

    Raises:
        ValueError: the loss has no gains, the gains decrease, a number is out of its range, or
            there is no such device.
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
        self._labels_by_gain = _labels_by_gain(label_gain, self.loss)
        check_choice("device", device, ("cpu", "cuda"))
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device must be 'cpu' here: PyTorch finds no GPU")
        self.caller, self.device = CallerLists(item_weights, list_weights, group), device
        self.hessian_scale = float(hessian_scale)
        self.min_list_hessian = float(min_list_hessian)
        self.__name__ = str(self.loss)  # LightGBM's scikit-learn estimators read it
        self._scales: dict[tuple[int, int], float] = {}  # by checksums of labels and offsets

    def derivatives(self, row_scores: Any, labels: Array, lists: RowLists) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian diagonal of the rows, ``[N]`` each, on the device.

        Args:
            row_scores: ``[N]``.
            labels: ``[N]``.
            lists: which rows belong together, and their weights.

        Returns:
            The gradient and the Hessian diagonal.
        """
        scores = torch.as_tensor(np.asarray(row_scores)).reshape(-1).to(self.device)
        offsets = lists.offsets
        labels = _replace_labels(labels, self._labels_by_gain)
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
            weights = torch.from_numpy(np.repeat(lists.list_weights, np.diff(offsets))).to(gradient)
            gradient, hessian = gradient * weights, hessian * weights
        return gradient, hessian if self.hessian_scale == 1 else hessian * self.hessian_scale

    def _scale(self, scores: Tensor, labels: Array, offsets: Array) -> float:
        """The constant that multiplies the loss, so that it reaches ``min_list_hessian``.

        It is computed at tied scores, where boosting starts, and is the same in every round. A
        constant computed from the current scores would grow as the Hessian shrinks, and so enlarge
        the steps that should become small.
        """
        uses_gradient_bound = type(self.loss).derivatives is Loss.derivatives
        few_lists = len(offsets) - 1 < _FEW_LISTS
        if not self.min_list_hessian or not (uses_gradient_bound or few_lists):
            return 1.0
        if getattr(self.loss, "norm", False):
            return 1.0  # a library's own objective, which is not scaled there either
        key = _checksum(labels), _checksum(offsets)
        if key not in self._scales:
            per_list = self._tied_list_hessians(scores, labels, offsets)
            scale = 1.0
            if uses_gradient_bound and len(per_list):
                scale = max(scale, self.min_list_hessian / float(per_list.mean()))
            if few_lists and len(per_list):
                least = min(_ENOUGH_HESSIAN, len(labels) / _ROWS_PER_LEAF) * self.min_list_hessian
                scale = max(scale, least / float(per_list.sum()))
            self._scales[key] = scale
        return self._scales[key]

    def _tied_list_hessians(self, scores: Tensor, labels: Array, offsets: Array) -> Array:
        """The sum of the Hessian over each list at tied scores, for lists where it is not 0."""
        with _at_start(self.loss):
            _, hessian = self.loss.gradient_and_hessian(
                torch.zeros_like(scores), torch.as_tensor(labels), offsets=torch.as_tensor(offsets)
            )
        list_of_row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        per_list = np.bincount(list_of_row, hessian.double().cpu().numpy())
        return per_list[per_list > 0]


@contextmanager
def _at_start(loss: Loss) -> Iterator[None]:
    """Within this context, schedules and random numbers of a loss are as at the start of training.

    Afterwards they are as before, so that resuming from a checkpoint gives the same trees.
    """
    random_parts, progress = list(randomness_of(loss).values()), loss.progress
    saved_generators = [dict(part._generators) for part in random_parts]
    for part in random_parts:
        part._generators.clear()
    loss.progress = 0.0
    try:
        yield
    finally:
        loss.progress = progress
        for part, generators in zip(random_parts, saved_generators, strict=True):
            part._generators.clear()
            part._generators.update(generators)


def _checksum(array: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data)


def _numbers(name: str, values: Any) -> Array:
    """An array of numbers, or an error that names the argument."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be numbers, found {quote(values)}") from None


def _labels_by_gain(table: Sequence[float] | None, owner: Loss | Metric) -> Array | None:
    """LightGBM's ``label_gain`` for losses and metrics of rankgrad, which have a formula for gains.

    Returns:
        For each label y, the label whose gain by the formula is ``table[y]``: that is
        ``log2(1 + table[y])`` if the gain is ``2^y - 1``, and ``table[y]`` if it is linear. None
        without a table.

    >>> from rankgrad.boosting.objectives import _labels_by_gain
    >>> _labels_by_gain([0, 1, 3, 15], losses.get("lambdarank")).tolist()
    [0.0, 1.0, 2.0, 4.0]
    """
    if table is None:
        return None
    metric = getattr(owner, "metric", None)
    gain = getattr(owner, "gain", None) or getattr(metric, "gain", None)
    # A lambda loss always has the option ``gain``, but uses it with these metrics only.
    ignores_gain = isinstance(metric, str) and metric not in ("ndcg", "dcg")
    if gain is None or ignores_gain:
        raise ValueError(f"{owner} has no gains of labels: leave out label_gain")
    gains = _numbers("label_gain", table)
    if gains.ndim != 1 or not len(gains) or not np.isfinite(gains).all() or gains[0] < 0:
        raise ValueError("label_gain must be the gains of labels 0, 1, ..., none negative")
    if (np.diff(gains) < 0).any():
        raise ValueError("label_gain must not fall: a higher label is more relevant")
    return gains if gain == "linear" else np.log2(1 + gains)


def _replace_labels(labels: Array, replacements: Array | None) -> Array:
    """The labels ``[N]``, or in place of each label y ``replacements[y]``."""
    if replacements is None:
        return labels
    index = np.asarray(labels).astype(np.int64)
    is_invalid = (index != labels) | (index < 0) | (index >= len(replacements))
    if is_invalid.any():
        row = int(np.flatnonzero(is_invalid)[0])
        raise ValueError(
            f"label_gain has gains for labels 0 to {len(replacements) - 1}; the label of row "
            f"{row} is {labels[row]:g}"
        )
    return np.asarray(replacements[index])


class RowMetric:
    """An exact metric of rankgrad as an evaluation metric of a tree library.

    Args:
        metric: the spec of a metric, or a metric.
        item_weights: one per row, if the library does not pass them on.
        list_weights: one per list, if the library does not pass them on.
        group: the sizes of the lists, if the library does not pass them on.
        label_gain: the gain of each whole label in place of ``2^y - 1``.

    Attributes:
        name: the name that the library shows: the spec with a suffix that the library's own metrics
            lack, without spaces, since XGBoost splits its line of metrics at spaces.
        higher_is_better: whether the metric is to be maximized, for early stopping.
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
        self._labels_by_gain = _labels_by_gain(label_gain, self.metric)
        self.name = f"{''.join(str(self.metric).split())}_exact"
        self.__name__ = self.name  # the libraries' scikit-learn estimators read it
        self.higher_is_better = not self.metric.lower_is_better

    def value(self, scores: Any, labels: Array, lists: RowLists) -> float:
        """The mean over the lists on which the metric is defined.

        Args:
            scores: ``[N]``.
            labels: ``[N]``.
            lists: which rows form a list, and their weights.

        Returns:
            The mean, weighted by the list weights where there are any.

        Raises:
            ValueError: the metric is undefined on all lists.
        """
        labels = _replace_labels(labels, self._labels_by_gain)
        values = self.metric(
            np.asarray(scores), labels, offsets=lists.offsets, weights=lists.item_weights
        )
        per_list = values.double().numpy()
        weights = np.ones(len(per_list)) if lists.list_weights is None else lists.list_weights
        is_counted = ~np.isnan(per_list) & (weights > 0)
        if not is_counted.any():
            raise ValueError(undefined_message(self.metric))
        return float(np.average(per_list[is_counted], weights=weights[is_counted]))


def offsets_of(group: Any, rows: int, remedy: str) -> Array:
    """The offsets of lists, from the sizes of the groups.

    Args:
        group: the sizes ``[B]``, or None.
        rows: the number of rows of the data.
        remedy: for the error if there are no groups: what to do about it.

    Returns:
        The offsets ``[B + 1]``.

    Raises:
        ValueError: there are no groups, or their sizes do not add up to the rows.
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
