"""Losses inside other people's trainers, one file per library. Import the file by its name."""

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
