"""Boosted trees: losses as objectives of LightGBM and XGBoost, and a training with either."""

from rankgrad.extras import lazy_modules

__all__ = ["boosters", "lightgbm", "objectives", "xgboost"]

__getattr__ = lazy_modules(__name__, __all__)
