"""Train a ranker directly on the metric you report.

The names below are imported when first asked for: PyTorch alone takes seconds to import, and
``rankgrad --help`` is not to wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankgrad.threads import wait_passively

if TYPE_CHECKING:
    from rankgrad import (
        data,
        experiments,
        explanations,
        lists,
        losses,
        metrics,
        models,
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

__version__ = "0.1.0"

wait_passively()  # PyTorch is not loaded yet, or it is too late

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
    "data",
    "evaluate",
    "experiments",
    "explanations",
    "lists",
    "losses",
    "metrics",
    "models",
    "sorting",
    "specs",
    "text",
    "training",
]

_ELSEWHERE = {"Ranker": "rankgrad.estimator", "evaluate": "rankgrad.metrics"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rankgrad' has no attribute {name!r}")
    if name in _ELSEWHERE or name[0].isupper():
        found = getattr(import_module(_ELSEWHERE.get(name, "rankgrad.losses")), name)
    else:
        found = import_module(f"rankgrad.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
