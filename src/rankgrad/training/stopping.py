"""When training has waited long enough for a better epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from rankgrad.training.settings import AUTO_PATIENCE

_EPOCHS = 3  # of which values are averaged
_RISE = 0.005  # relative, of the average
_FEWEST_EPOCHS, _FEWEST_STEPS = 3, 60  # to wait


def is_over(patience: int | Literal["auto"] | None, values: Sequence[float], steps: int) -> bool:
    """Whether training stops after these epochs.

    A number of epochs is how many may pass without a better value than the best one. ``auto`` asks
    for a lasting gain: the average of three values in a row, of fewer at first, is to rise by half
    a percent within two thirds as many epochs as led to the last such rise, and three more. It
    waits for 60 steps at least and 20 epochs at most. How the rule was found:
    ``docs/results/recipe.md``.

    Args:
        patience: as of :class:`~rankgrad.training.Settings`.
        values: validation values of all epochs so far, higher ones better.
        steps: of an epoch.

    >>> rising, flat = [0.1 * n for n in range(1, 9)], [0.8, 0.803, 0.796, 0.801, 0.804, 0.8]
    >>> [is_over("auto", rising + flat[:n], steps=20) for n in (0, 1, 6)]
    [False, False, False]
    >>> is_over("auto", flat, steps=20), is_over("auto", flat, steps=1), is_over(4, flat, steps=20)
    (True, False, False)
    """
    if patience is None or not values:
        return False
    if patience != "auto":
        return len(values) - 1 - values.index(max(values)) >= patience
    last, highest = 0, -math.inf
    for epoch in range(1, len(values) + 1):
        average = math.fsum(values[max(0, epoch - _EPOCHS) : epoch]) / min(epoch, _EPOCHS)
        if last == 0 or average > highest + _RISE * abs(highest):
            last, highest = epoch, average
    fewest = max(2 * last // 3 + _FEWEST_EPOCHS, math.ceil(_FEWEST_STEPS / max(1, steps)))
    return len(values) - last >= min(AUTO_PATIENCE, fewest)
