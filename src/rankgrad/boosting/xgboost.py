"""Losses and metrics as XGBoost calls them; for users: :mod:`rankgrad.integrations.xgboost`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad._shapes import Array
from rankgrad.boosting.objectives import CallerLists, RowLists, RowMetric, RowObjective, library
from rankgrad.losses import Loss

__all__ = ["Evaluation", "Objective", "metric", "objective", "tree_objective"]

_REMEDY = (
    "give xgboost.DMatrix(..., qid=qid) to xgboost.train; XGBoost's scikit-learn estimators pass "
    "no groups (XGBRanker takes no objective of your own): give {}(..., group=sizes)"
)


class Objective(RowObjective):
    """A loss of this library as an objective of ``xgboost.train`` or ``XGBRegressor``.

    It is a callable for ``obj`` of ``xgboost.train``, which passes ``(scores, dmatrix)``; the
    scikit-learn estimator passes ``(y_true, y_pred, sample_weight=...)``.

    Gradient and Hessian are those of the sum over lists:
    :meth:`rankgrad.losses.Loss.gradient_and_hessian`. Weights of a DMatrix are list weights.

    ``lambdarank@32(norm=true)`` with ``hessian_scale=2`` is XGBoost's own ``rank:ndcg`` with its
    default pairs.

    Args:
        loss: the spec of a loss, or a loss.
        item_weights: one per row of the training data. A DMatrix with groups takes weights of
            lists alone.
        list_weights: one per list of the training data, in their order. Weights of a
            DMatrix with groups are such weights.
        group: the sizes of the lists, where the library does not pass them on; those of data
            with groups must be the same.
        label_gain: the gain of each whole label in place of ``2^y - 1``, as in LightGBM; for losses
            that have gains.
        hessian_scale: multiplies the Hessian, to take smaller steps.
        min_list_hessian: for losses whose Hessian is a bound by the gradient, as relaxed metrics:
            what a list's Hessian sums to at tied scores, at least, in the mean over lists. On
            long lists it would be so little that no leaf has what the library asks for; gradient
            and Hessian are multiplied by one constant then. With fewer than 100 lists, for every
            loss, also what the Hessian of 20 rows sums to (up to 100 times this in all).
            0 for the plain sum over lists.
        device: ``"cuda"`` computes on the GPU and hands CUDA arrays over without a copy. Scores
            come from the host, as XGBoost has them there.

    Raises:
        ValueError: the loss is not known, or an option does not fit it.

    >>> from rankgrad.integrations.xgboost import objective
    >>> gradient, hessian = objective("ranknet", group=[2])([1, 0], np.zeros(2))
    >>> gradient.tolist(), hessian.tolist()
    ([-0.5, 0.5], [0.25, 0.25])
    """

    def __call__(self, predt: Any, dtrain: Any, sample_weight: Any = None) -> tuple[Any, Any]:
        """Gradient and Hessian diagonal of the sum over lists, one of each per row."""
        remedy = _REMEDY.format("objective")
        scores, labels, lists = _arguments(self.caller, remedy, predt, dtrain, sample_weight)
        return _hand_over(*self.derivatives(scores, labels, lists))


class Evaluation(RowMetric):
    """An exact metric of this library: ``custom_metric`` of ``xgboost.train``.

    ``metric(...).higher_is_better`` is for ``maximize=``. With ``group`` it is also an
    ``eval_metric`` of ``XGBRegressor``; stop there with the callback that :meth:`early_stopping`
    gives. Its name ends in ``_exact``, as XGBoost has metrics of the same names with other
    conventions.

    Args:
        metric: the spec of a metric, or a metric.
        item_weights: one per row of the evaluated data; those of a DMatrix are of lists.
        list_weights: one per list of the evaluated data, where its DMatrix has none: a weighted
            mean over lists.
        group: the sizes of the lists, where XGBoost does not pass them on; for several evaluated
            data sets, the sizes of each.
        label_gain: the gain of each whole label in place of ``2^y - 1``.

    >>> from rankgrad.integrations.xgboost import metric
    >>> metric("ndcg@10", group=[2])([1, 0], np.array([0.2, 0.1]))
    1.0
    """

    def __call__(self, predt: Any, dmatrix: Any, sample_weight: Any = None) -> Any:
        """The name and the mean over lists; the mean alone for scikit-learn estimators."""
        remedy = _REMEDY.format("metric")
        scores, labels, lists = _arguments(self.caller, remedy, predt, dmatrix, sample_weight)
        value = self.value(scores, labels, lists)
        return (self.name, value) if hasattr(dmatrix, "get_label") else value

    def early_stopping(self, rounds: int, **options: Any) -> Any:
        """``xgboost.callback.EarlyStopping`` by this metric, in its direction.

        XGBoost guesses the direction of a metric by its name, and ``early_stopping_rounds`` of its
        scikit-learn estimators takes that: ``rr`` would be minimized.

        Args:
            rounds: to wait for a better value.
            options: of ``EarlyStopping``, such as ``save_best=True``.
        """
        return library("xgboost").callback.EarlyStopping(
            rounds=rounds, metric_name=self.name, maximize=self.higher_is_better, **options
        )


objective = Objective
"""A loss as an objective of XGBoost: :class:`Objective` as users call it."""
metric = Evaluation
"""An exact metric for XGBoost's evaluation: :class:`Evaluation` as users call it."""


def tree_objective(loss: str | Loss, **options: Any) -> Any:
    """:class:`Objective` as an instance of ``xgboost.objective.TreeObjective`` (XGBoost 3.2).

    Args:
        loss: the spec of a loss, or a loss.
        options: of :class:`Objective`.

    Returns:
        The objective, which can be pickled.

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

        def __reduce__(self) -> Any:  # its class is made where XGBoost is imported
            return _tree_objective, (loss, options)

    return RankingObjective()


def _tree_objective(loss: str | Loss, options: dict[str, Any]) -> Any:
    return tree_objective(loss, **options)


def _arguments(
    caller: CallerLists, remedy: str, first: Any, second: Any, sample_weight: Any
) -> tuple[Any, Array, RowLists]:
    """Scores, labels and lists, of either API."""
    if not hasattr(second, "get_label"):
        labels = np.asarray(first)
        return second, labels, caller.complete(len(labels), remedy, None, sample_weight)
    labels, weights = np.asarray(second.get_label()), np.asarray(second.get_weight())
    offsets = np.asarray(second.get_uint_info("group_ptr"), np.int64)
    has_groups = len(offsets) >= 2
    of_items = len(weights) == len(labels) and not (has_groups and len(offsets) - 1 == len(labels))
    lists = caller.complete(
        len(labels),
        remedy,
        offsets=offsets if has_groups else None,
        item_weights=weights if len(weights) and of_items else None,
        list_weights=weights if len(weights) and not of_items else None,
    )
    return first, labels, lists


def _hand_over(gradient: Tensor, hessian: Tensor) -> tuple[Any, Any]:
    """Results in a form that XGBoost reads: CUDA tensors as they are, others as NumPy arrays.

    XGBoost takes the address of an object with ``__cuda_array_interface__``, which CUDA tensors
    have. That interface of PyTorch names no stream, so the work must be done by then.
    """
    gradient, hessian = (one.detach().to(torch.float32).contiguous() for one in (gradient, hessian))
    if not gradient.is_cuda:
        return gradient.numpy(), hessian.numpy()
    torch.cuda.current_stream(gradient.device).synchronize()
    return gradient, hessian
