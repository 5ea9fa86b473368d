"""Losses and metrics with the call signature of LightGBM's objectives and metrics.

Users import them from :mod:`rankgrad.integrations.lightgbm`; :mod:`rankgrad.boosting.boosters`
trains with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankgrad._shapes import Array
from rankgrad.boosting.objectives import CallerLists, RowLists, RowMetric, RowObjective, offsets_of

__all__ = ["Evaluation", "Objective", "metric", "objective"]

_REMEDY = "give lightgbm.Dataset(..., group=sizes), or LGBMRanker.fit(..., group=sizes)"


class Objective(RowObjective):
    """A loss of this library as an objective of LightGBM, native and scikit-learn API alike.

    It is a callable for ``params["objective"]`` of ``lightgbm.train``, which passes
    ``(scores, dataset)``, and for ``objective`` of ``LGBMRanker``, which passes
    ``(y_true, y_pred, weight, group)`` to a callable of four parameters.

    Gradient and Hessian are those of the sum over lists:
    :meth:`rankgrad.losses.Loss.gradient_and_hessian`. Row weights are item weights.

    ``lambdarank@30(norm=true)`` is LightGBM's own ``lambdarank`` with its default truncation.

    Args:
        loss: the spec of a loss, or a loss.
        item_weights: one per row of the training data, if its Dataset has no weights.
        list_weights: one per list of the training data, in their order.
        group: the sizes of the lists, if LightGBM does not pass them on. If it does, they must be
            the same.
        label_gain: the gains of the labels 0, 1, 2, ... in place of ``2^y - 1``, as in LightGBM;
            for losses that have gains.
        hessian_scale: multiplies the Hessian; above 1 the steps are smaller.
        min_list_hessian: a lower bound of the Hessian, summed over a list and averaged over lists,
            when all scores are tied. It applies to losses such as relaxed metrics, whose Hessian is
            only a bound by the gradient. If the mean is lower, one constant multiplies gradient
            and Hessian to reach it: otherwise no leaf of long lists would reach the minimum Hessian
            that LightGBM asks for. With fewer than 100 lists, the Hessian of all N rows must also
            sum to ``min_list_hessian * min(N / 20, 100)``, for every loss except those with
            ``norm=true``. 0 for no scaling: the plain sum over lists.
        device: where the loss is computed: ``"cpu"`` or ``"cuda"``. Scores and gradients are
            copied, since LightGBM has them on the host.

    Raises:
        ValueError: the loss is not known, or an option does not fit it.

    >>> from rankgrad.integrations.lightgbm import objective
    >>> gradient, hessian = objective("ranknet")([1, 0], np.zeros(2), None, [2])
    >>> gradient.tolist(), hessian.tolist()
    ([-0.5, 0.5], [0.25, 0.25])
    """

    def __call__(
        self, y_true: Any, y_pred: Any, weight: Any = None, group: Any = None
    ) -> tuple[Array, Array]:
        """Gradient and Hessian diagonal of the sum over lists, one of each per row."""
        scores, labels, lists = _arguments(self.caller, y_true, y_pred, weight, group)
        gradient, hessian = self.derivatives(scores, labels, lists)
        return gradient.float().cpu().numpy(), hessian.float().cpu().numpy()


class Evaluation(RowMetric):
    """An exact metric of this library for LightGBM's ``feval`` or ``eval_metric``.

    It is called like :class:`Objective`. Its conventions are rankgrad's: see the options ``empty``
    and ``ties`` of each metric. Its name ends in ``_exact``, since LightGBM has metrics of the same
    names with other conventions.

    Args:
        metric: the spec of a metric, or a metric.
        item_weights: one per row of the evaluated data, if it has no weights itself.
        list_weights: one per list of the evaluated data: a weighted mean over lists.
        group: the sizes of the lists, if the data have no groups; for several evaluated data
            sets, the sizes of each.
        label_gain: the gains of the labels 0, 1, 2, ... in place of ``2^y - 1``.

    >>> from rankgrad.integrations.lightgbm import metric
    >>> metric("ndcg@10")([1, 0], np.array([0.2, 0.1]), None, [2])
    ('ndcg@10_exact', 1.0, True)
    """

    def __call__(
        self, y_true: Any, y_pred: Any, weight: Any = None, group: Any = None
    ) -> tuple[str, float, bool]:
        """The name, the mean over lists, and whether higher is better."""
        scores, labels, lists = _arguments(self.caller, y_true, y_pred, weight, group)
        return self.name, self.value(scores, labels, lists), self.higher_is_better


objective = Objective
"""A loss as an objective of LightGBM: :class:`Objective` as users call it."""
metric = Evaluation
"""An exact metric for LightGBM's evaluation: :class:`Evaluation` as users call it."""


def _arguments(
    caller: CallerLists, first: Any, second: Any, weight: Any, group: Any
) -> tuple[Array, Array, RowLists]:
    """Scores ``[N]``, labels ``[N]`` and lists from the arguments of either API of LightGBM.

    The native API passes ``(scores, Dataset)``; the scikit-learn one labels, scores, weights and
    groups.
    """
    if hasattr(second, "get_label"):
        weight, group = second.get_weight(), second.get_group()
        scores, labels = np.asarray(first), np.asarray(second.get_label())
    elif np.ndim(second) == 0:
        raise TypeError(
            f"expected (scores, lightgbm.Dataset) or (y_true, y_pred, weight, group), found a "
            f"{type(second).__name__} in the second place"
        )
    else:
        scores, labels = np.asarray(second), np.asarray(first)
    offsets = None if group is None else offsets_of(group, len(scores), _REMEDY)
    return scores, labels, caller.complete(len(scores), _REMEDY, offsets, weight)
