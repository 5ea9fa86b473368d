"""CatBoost cannot take ranking losses of others; this file says why."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["objective"]


def objective(loss: Any, **options: Any) -> NoReturn:
    """Always an error: CatBoost passes no groups to an objective.

    Its ``calc_ders_range(approxes, targets, weights)`` is called on ranges of rows, without saying
    which rows are one list (CatBoost's issue 2944), so no loss over lists can be computed there.

    Args:
        loss: the loss, for the message.
        options: any.

    Raises:
        TypeError: always.
    """
    raise TypeError(
        f"{loss} cannot be an objective of CatBoost: CatBoost calls custom objectives on ranges of "
        "rows and passes no groups, so that which rows are one list is not known there. Use "
        "rankgrad.integrations.lightgbm.objective or rankgrad.integrations.xgboost.objective"
    )
