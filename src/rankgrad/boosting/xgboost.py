"""Losses and metrics with the call signature of XGBoost's objectives and metrics.

Users import them from :mod:`rankgrad.integrations.xgboost`; :mod:`rankgrad.boosting.boosters`
trains with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad._shapes import Array
from rankgrad.boosting.objectives import CallerLists, RowLists, RowMetric, RowObjective, library
from rankgrad.losses import Loss

__all__ = ["Evaluation", "Objective", "metric", "objective", "tree_objective"]

#: The end of the error for missing groups; ``{}`` is ``objective`` or ``metric``.
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
        item_weights: one per row of the training data. A DMatrix with groups cannot hold them: its
            weights are list weights.
        list_weights: one per list of the training data, in their order, if its DMatrix has no
            weights.
        group: the sizes of the lists, if XGBoost does not pass them on. If the data have groups,
            they must agree.
        label_gain: the gain of each whole label in place of ``2^y - 1``, as in LightGBM; for losses
            that have gains.
        hessian_scale: multiplies the Hessian; above 1 the steps are smaller.
        min_list_hessian: the smallest sum of a list's Hessian at tied scores, in the mean over
            lists, for losses such as relaxed metrics, whose Hessian is a bound by the gradient.
            With fewer than 100 lists, the Hessian of all N rows must also sum to
            ``min_list_hessian * min(N / 20, 100)``, for every loss except those with ``norm=true``.
            If a sum is less, one constant multiplies gradient and Hessian: otherwise no leaf of
            long lists would reach the minimum Hessian that the library asks for. 0 for the plain
            sum over lists.
        device: where the loss is computed: ``"cpu"`` or ``"cuda"``. Scores are copied to the GPU,
            since XGBoost has them on the host; XGBoost reads the gradients on the GPU.

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
    ``eval_metric`` of ``XGBRegressor``; to stop its training early, pass it the callback that
    :meth:`early_stopping` returns. The metric's name ends in ``_exact``, since XGBoost has metrics
    of the same names with other conventions.

    Args:
        metric: the spec of a metric, or a metric.
        item_weights: one per row of the evaluated data. A DMatrix with groups cannot hold them.
        list_weights: one per list of the evaluated data, for a weighted mean over lists, if its
            DMatrix has no weights.
        group: the sizes of the lists, if XGBoost does not pass them on; for several evaluated data
            sets, the sizes of each.
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

        Use it in place of ``early_stopping_rounds`` of the scikit-learn estimators, with which
        XGBoost guesses the direction from the metric's name and would minimize ``rr``.

        Args:
            rounds: how many rounds to wait for a better value.
            options: further arguments of ``EarlyStopping``, such as ``save_best=True``.

        Returns:
            The callback.
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
        options: further arguments of :class:`Objective`.

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
    function = objective(loss, **options)

    class RankingObjective(TreeObjective):
        """A ranking loss, called with the iteration first."""

        def __call__(self, iteration: int, y_pred: Any, dtrain: Any) -> tuple[Any, Any]:
            return function(y_pred, dtrain)

        def __reduce__(self) -> Any:  # pickle does not find a class defined in a function
            return _tree_objective, (loss, options)

    return RankingObjective()


def _tree_objective(loss: str | Loss, options: dict[str, Any]) -> Any:
    """:func:`tree_objective` as pickle calls it, without keyword arguments."""
    return tree_objective(loss, **options)


def _arguments(
    caller: CallerLists, remedy: str, first: Any, second: Any, sample_weight: Any
) -> tuple[Any, Array, RowLists]:
    """Scores ``[N]``, labels ``[N]`` and lists from the arguments of either API of XGBoost.

    The native API passes ``(scores, DMatrix)``; the scikit-learn one labels, scores and weights.
    """
    if not hasattr(second, "get_label"):
        labels = np.asarray(first)
        return second, labels, caller.complete(len(labels), remedy, None, sample_weight)
    labels, weights = np.asarray(second.get_label()), np.asarray(second.get_weight())
    offsets = np.asarray(second.get_uint_info("group_ptr"), np.int64)
    has_groups = len(offsets) >= 2
    # If every list is a single row, there are as many lists as rows: weights are list weights.
    are_item_weights = len(weights) == len(labels) and not (
        has_groups and len(offsets) - 1 == len(labels)
    )
    lists = caller.complete(
        len(labels),
        remedy,
        offsets=offsets if has_groups else None,
        item_weights=weights if len(weights) and are_item_weights else None,
        list_weights=weights if len(weights) and not are_item_weights else None,
    )
    return first, labels, lists


def _hand_over(gradient: Tensor, hessian: Tensor) -> tuple[Any, Any]:
    """Gradient and Hessian ``[N]`` as XGBoost reads them: CUDA tensors, or NumPy arrays.

    XGBoost reads a CUDA tensor through its ``__cuda_array_interface__``. PyTorch's does not name
    the stream that the tensor is computed on, so the computation must have finished.
    """
    gradient, hessian = (tensor.detach().float().contiguous() for tensor in (gradient, hessian))
    if not gradient.is_cuda:
        return gradient.numpy(), hessian.numpy()
    torch.cuda.current_stream(gradient.device).synchronize()
    return gradient, hessian
