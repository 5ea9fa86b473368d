"""Losses, metrics and rankers in other libraries, one module per library.

A module needs its library, so it is imported by its name: ``rankgrad.integrations.lightgbm``.
"""

from rankgrad.extras import lazy_modules

__all__ = [
    "catboost",
    "citations",
    "lightgbm",
    "pyterrier",
    "sentence_transformers",
    "torchmetrics",
    "transformers",
    "xgboost",
]

__getattr__ = lazy_modules(__name__, __all__)
