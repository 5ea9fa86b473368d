"""Training: data, a model and a loss in, a fitted ranker out.

:func:`fit` (``_fitting.py``) takes :class:`Settings` and data sets, and runs the loop of
``trainer.py`` for networks or of ``_tree_fitting.py`` for boosted trees. Both write a
:class:`RunFolder` and return a :class:`FitResult` with a :class:`FittedRanker`.

The names below are imported when first used, so that the command line can read the settings without
importing PyTorch.

>>> from rankgrad import training
>>> training.Settings(loss="lambdarank").loss
'lambdarank'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankgrad.extras import lazy_names

if TYPE_CHECKING:
    from rankgrad.training._fitted import FitResult, FittedRanker
    from rankgrad.training._fitting import fit
    from rankgrad.training._loggers import MLflow, TensorBoard, WandB
    from rankgrad.training._settings import Settings
    from rankgrad.training.run import RunFolder

__all__ = [
    "FitResult",
    "FittedRanker",
    "MLflow",
    "RunFolder",
    "Settings",
    "TensorBoard",
    "WandB",
    "fit",
]

__getattr__ = lazy_names(
    __name__,
    {
        "_fitted": ("FitResult", "FittedRanker"),
        "_fitting": ("fit",),
        "_loggers": ("MLflow", "TensorBoard", "WandB"),
        "run": ("RunFolder",),
        "_settings": ("Settings",),
    },
    extra="train",
)


def __dir__() -> list[str]:
    return __all__
