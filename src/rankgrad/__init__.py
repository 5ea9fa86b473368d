"""Train a ranker directly on the metric you report.

``import rankgrad`` imports nothing heavy. Its names, packages included, are imported when they are
first used: ``rankgrad.losses`` imports PyTorch, ``rankgrad.training`` what ``rankgrad[train]``
installs.

>>> import rankgrad
>>> rankgrad.losses.get("lambdaloss@5")
LambdaLoss('lambdaloss@5')
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankgrad._threads import wait_passively

if TYPE_CHECKING:
    from rankgrad import (
        boosting,
        data,
        experiments,
        explanations,
        export,
        integrations,
        kernels,
        lists,
        losses,
        metrics,
        models,
        papers,
        report,
        results,
        serving,
        significance,
        sorting,
        specs,
        text,
        training,
    )
    from rankgrad.estimator import Ranker
    from rankgrad.losses import (
        ApproxNDCG,
        LambdaLoss,
        LambdaRank,
        ListMLE,
        ListNet,
        NeuralNDCG,
        PiRank,
        RankNet,
        RelaxedMetric,
        SmoothI,
    )
    from rankgrad.metrics import evaluate  # type: ignore[no-redef]
    from rankgrad.sorting import soft_rank, soft_sort

__version__ = "0.1.0"

# Before anything imports PyTorch: OpenMP reads its environment variables once, at that import.
wait_passively()

__all__ = [
    "ApproxNDCG",
    "LambdaLoss",
    "LambdaRank",
    "ListMLE",
    "ListNet",
    "NeuralNDCG",
    "PiRank",
    "RankNet",
    "Ranker",
    "RelaxedMetric",
    "SmoothI",
    "__version__",
    "boosting",
    "data",
    "evaluate",
    "experiments",
    "explanations",
    "export",
    "integrations",
    "kernels",
    "lists",
    "losses",
    "metrics",
    "models",
    "papers",
    "report",
    "results",
    "serving",
    "significance",
    "soft_rank",
    "soft_sort",
    "sorting",
    "specs",
    "text",
    "training",
]

#: The modules of public names that are neither losses nor packages. Other capitalized names are
#: losses, and other names are packages.
_MODULES = {
    "Ranker": "rankgrad.estimator",
    "evaluate": "rankgrad.metrics",
    "soft_rank": "rankgrad.sorting",
    "soft_sort": "rankgrad.sorting",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rankgrad' has no attribute {name!r}")
    if name in _MODULES or name[0].isupper():
        value = getattr(import_module(_MODULES.get(name, "rankgrad.losses")), name)
    else:
        value = import_module(f"rankgrad.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
