"""Boosted trees: rankgrad's losses as objectives of LightGBM and XGBoost, and training with them.

``objectives`` turns a loss into the gradient and Hessian that both libraries ask for; ``lightgbm``
and ``xgboost`` adapt it to the way each library calls an objective (users import these from
:mod:`rankgrad.integrations`); ``boosters`` grows trees with them, for
:func:`rankgrad.training.fit`.
"""

from rankgrad.extras import lazy_modules

__all__ = ["boosters", "lightgbm", "objectives", "xgboost"]

__getattr__ = lazy_modules(__name__, __all__)
