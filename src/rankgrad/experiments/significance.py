"""How sure comparisons are: the room's name for :mod:`rankgrad.significance`."""

from rankgrad.significance import (
    Alternative,
    Correction,
    Interval,
    Significance,
    bonferroni,
    bootstrap_interval,
    check_same_queries,
    correct,
    difference_interval,
    holm,
    paired_t_test,
    randomization_test,
)

__all__ = [
    "Alternative",
    "Correction",
    "Interval",
    "Significance",
    "bonferroni",
    "bootstrap_interval",
    "check_same_queries",
    "correct",
    "difference_interval",
    "holm",
    "paired_t_test",
    "randomization_test",
]
