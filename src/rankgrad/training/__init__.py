"""Training: data, a model and a loss in, a fitted ranker out.

The names below are imported when first asked for, so that the command line can read the settings
without importing PyTorch.

>>> from rankgrad import training
>>> training.Settings(loss="lambdarank").loss
'lambdarank'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankgrad.extras import requires

if TYPE_CHECKING:
    from rankgrad.training.fitted import FitResult, FittedRanker
    from rankgrad.training.fitting import fit
    from rankgrad.training.run import RunFolder
    from rankgrad.training.settings import Settings

__all__ = ["FitResult", "FittedRanker", "RunFolder", "Settings", "fit"]

_MODULES = {
    **dict.fromkeys(("FitResult", "FittedRanker"), "fitted"),
    **{"fit": "fitting", "RunFolder": "run", "Settings": "settings"},
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rankgrad.training' has no attribute {name!r}")
    with requires("train"):
        module = import_module(f"rankgrad.training.{_MODULES[name]}")
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    return __all__
