"""Losses and metrics as XGBoost calls them; for users: :mod:`rankgrad.integrations.xgboost`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad.boosting.objectives import Array, RowLoss, RowMetric, library, offsets_of
from rankgrad.losses import Loss
from rankgrad.metrics import Metric
from rankgrad.validation import check_choice

_REMEDY = (
    "give xgboost.DMatrix(..., qid=qid) to xgboost.train; XGBoost's scikit-learn estimators pass "
    "no groups (XGBRanker takes no objective of your own): give objective(..., group=sizes)"
)


class Objective:
    """A loss as XGBoost calls it; made by :func:`objective`.

    ``xgboost.train`` passes ``(scores, dmatrix)``, scikit-learn estimators
    ``(y_true, y_pred, sample_weight=...)``.
    """

    def __init__(self, loss: RowLoss, item_weights: Any, group: Any, device: str) -> None:
        check_choice("device", device, ("cpu", "cuda"))
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device must be 'cpu' here: PyTorch finds no GPU")
        self.row_loss = loss
        self.item_weights = item_weights
        self.group = group
        self.device = device

    def __call__(self, predt: Any, dtrain: Any, sample_weight: Any = None) -> tuple[Any, Any]:
        """Gradient and Hessian diagonal of the sum over lists, one of each per row."""
        if hasattr(dtrain, "get_label"):
            return self._of_matrix(predt, dtrain)
        labels, scores = np.asarray(predt), dtrain
        if sample_weight is not None and self.item_weights is not None:
            raise ValueError("there are weights of rows twice: item_weights and sample_weight")
        weights = self.item_weights if sample_weight is None else sample_weight
        offsets = offsets_of(self.group, len(labels), _REMEDY)
        return self._derivatives(scores, labels, offsets, weights, None)

    def _of_matrix(self, scores: Any, matrix: Any) -> tuple[Any, Any]:
        labels = matrix.get_label()
        offsets = _offsets(matrix, self.group, len(labels), _REMEDY)
        weights = np.asarray(matrix.get_weight())
        list_weights, item_weights = (weights if len(weights) else None), self.item_weights
        if list_weights is not None and len(list_weights) == len(labels) != len(offsets) - 1:
            if item_weights is not None:
                raise ValueError(
                    "there are weights of rows twice: item_weights and those of the DMatrix"
                )
            list_weights, item_weights = None, list_weights
        return self._derivatives(scores, labels, offsets, item_weights, list_weights)

    def _derivatives(
        self, scores: Any, labels: Array, offsets: Array, item_weights: Any, list_weights: Any
    ) -> tuple[Any, Any]:
        _check_item_weights(item_weights, len(labels))
        found = self.row_loss(
            to_device(scores, self.device), labels, offsets, item_weights, list_weights
        )
        return hand_over(*found)


class Evaluation(RowMetric):
    """A metric as XGBoost calls it; made by :func:`metric`."""

    def __init__(
        self, metric: str | Metric, item_weights: Any, label_gain: Sequence[float] | None
    ) -> None:
        super().__init__(metric, label_gain)
        self.item_weights = item_weights

    @property
    def name(self) -> str:
        """What XGBoost shows: the spec without spaces."""
        return name_of_metric(self.metric)

    def __call__(self, predt: Any, dmatrix: Any) -> tuple[str, float]:
        """The name, and the mean over lists."""
        if not hasattr(dmatrix, "get_label"):
            raise ValueError(
                "XGBoost's scikit-learn estimators pass no groups to a metric: give it to "
                "xgboost.train as custom_metric"
            )
        labels = dmatrix.get_label()
        offsets = _offsets(dmatrix, None, len(labels), "give xgboost.DMatrix(..., qid=qid)")
        weights = np.asarray(dmatrix.get_weight())
        if self.item_weights is not None and len(weights):
            raise ValueError(
                "there are weights twice: item_weights of the metric and those of the evaluated "
                "DMatrix; leave one of them out"
            )
        _check_item_weights(self.item_weights, len(labels))
        chosen = self.item_weights if not len(weights) else weights
        return self.name, self.value(np.asarray(predt), labels, offsets, chosen)


def objective(
    loss: str | Loss,
    *,
    item_weights: Any = None,
    group: Any = None,
    label_gain: Sequence[float] | None = None,
    hessian_scale: float = 1.0,
    min_list_hessian: float = 1.0,
    device: str = "cpu",
) -> Objective:
    """A loss of this library as an objective of ``xgboost.train`` or ``XGBRegressor``.

    Gradient and Hessian are those of the sum over lists:
    :meth:`rankgrad.losses.Loss.gradient_and_hessian`. Weights of a DMatrix are list weights.

    ``lambdarank@32(norm=true)`` with ``hessian_scale=2`` is XGBoost's own ``rank:ndcg`` with its
    default pairs.

    Args:
        loss: the spec of a loss, or a loss.
        item_weights: one per row. A DMatrix with groups takes weights of lists alone.
        group: the sizes of the lists, where XGBoost does not pass them on; those of a DMatrix with
            groups must be the same.
        label_gain: the gain of each whole label in place of ``2^y - 1``, for losses with gains.
        hessian_scale: multiplies the Hessian.
        min_list_hessian: for losses whose Hessian is a bound by the gradient, as relaxed metrics:
            what a list's Hessian sums to at tied scores, at least, in the mean over lists. On
            long lists it would be so little that no leaf has what the library asks for; gradient
            and Hessian are multiplied by one constant then. 0 for the plain sum over lists.
        device: ``"cuda"`` computes on the GPU and hands CUDA arrays over without a copy. Scores
            come from the host, as XGBoost has them there.

    Returns:
        A callable for ``obj`` of ``xgboost.train``.

    Raises:
        ValueError: the loss is not known, or an option does not fit it.

    >>> from rankgrad.integrations.xgboost import objective
    >>> gradient, hessian = objective("ranknet", group=[2])([1, 0], np.zeros(2))
    >>> gradient.tolist(), hessian.tolist()
    ([-0.5, 0.5], [0.25, 0.25])
    """
    row_loss = RowLoss(
        loss,
        label_gain=label_gain,
        hessian_scale=hessian_scale,
        min_list_hessian=min_list_hessian,
    )
    return Objective(row_loss, item_weights, group, device)


def tree_objective(loss: str | Loss, **options: Any) -> Any:
    """:func:`objective` as an instance of ``xgboost.objective.TreeObjective`` (XGBoost 3.2).

    Args:
        loss: the spec of a loss, or a loss.
        options: of :func:`objective`.

    Raises:
        ImportError: the installed XGBoost has no such classes.
    """
    library("xgboost")
    try:
        from xgboost.objective import TreeObjective
    except ImportError:
        raise ImportError(
            "this XGBoost has no xgboost.objective: pip install 'xgboost>=3.2', or use objective()"
        ) from None
    called = objective(loss, **options)

    class RankingObjective(TreeObjective):
        """A ranking loss, called with the iteration first."""

        def __call__(self, iteration: int, y_pred: Any, dtrain: Any) -> tuple[Any, Any]:
            return called(y_pred, dtrain)

    return RankingObjective()


def metric(
    metric: str | Metric,
    *,
    item_weights: Any = None,
    label_gain: Sequence[float] | None = None,
) -> Evaluation:
    """An exact metric of this library for ``custom_metric`` of ``xgboost.train``.

    ``metric(...).higher_is_better`` is for ``maximize=``.

    Args:
        metric: the spec of a metric, or a metric.
        item_weights: one per row of the evaluated data, whose DMatrix then has no weights; those of
            a DMatrix are of lists.
        label_gain: the gain of each whole label in place of ``2^y - 1``.
    """
    return Evaluation(metric, item_weights, label_gain)


def _offsets(matrix: Any, group: Any, rows: int, remedy: str) -> Array:
    """Where each list begins and ends: the groups of a DMatrix, or those given if it has none."""
    offsets = np.asarray(matrix.get_uint_info("group_ptr"), np.int64)
    if len(offsets) < 2:
        return offsets_of(group, rows, remedy)
    if group is None:
        return offsets
    given = offsets_of(group, rows, remedy)
    if not np.array_equal(np.unique(given), np.unique(offsets)):  # but for empty lists
        raise ValueError("group and the qid of the DMatrix say different lists: leave out group")
    return offsets


def _check_item_weights(weights: Any, rows: int) -> None:
    """One weight per row: as many as there are lists would weigh the lists."""
    if weights is not None and len(weights) != rows:
        raise ValueError(f"item_weights has {len(weights)} numbers for {rows} rows")


def name_of_metric(metric: str | Metric) -> str:
    """The spec without spaces, as XGBoost splits its line of metrics at them."""
    return "".join(str(metric).split())


def to_device(scores: Any, device: str) -> Tensor:
    """XGBoost's scores as a tensor where the loss is to be computed."""
    return torch.as_tensor(np.asarray(scores)).reshape(-1).to(device)


def hand_over(gradient: Tensor, hessian: Tensor) -> tuple[Any, Any]:
    """Results in a form that XGBoost reads: CUDA tensors as they are, others as NumPy arrays.

    XGBoost takes the address of an object with ``__cuda_array_interface__``, which CUDA tensors
    have. That interface of PyTorch names no stream, so the work must be done by then.
    """
    gradient, hessian = (one.detach().to(torch.float32).contiguous() for one in (gradient, hessian))
    if not gradient.is_cuda:
        return gradient.numpy(), hessian.numpy()
    torch.cuda.current_stream(gradient.device).synchronize()
    return gradient, hessian
