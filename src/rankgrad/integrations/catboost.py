"""Why there is no objective for CatBoost: :func:`objective` raises an error that explains it."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["objective"]


def objective(loss: Any, **options: Any) -> NoReturn:
    """Raise an error: CatBoost passes no groups to an objective.

    CatBoost calls ``calc_ders_range(approxes, targets, weights)`` of an objective on ranges of
    rows, without the lists that they belong to (CatBoost's issue 2944). So no loss over lists can
    be computed there.

    Args:
        loss: the loss, for the message.
        options: ignored.

    Raises:
        TypeError: always.
    """
    raise TypeError(
        f"{loss} cannot be an objective of CatBoost: CatBoost calls custom objectives on ranges of "
        "rows and passes no groups, so that which rows are one list is not known there. Use "
        "rankgrad.integrations.lightgbm.objective or rankgrad.integrations.xgboost.objective"
    )
