"""Experiments: several trainings on the same data, compared with care."""

from rankgrad.extras import lazy_modules

__all__ = ["compare", "demo", "plans", "tuning"]

__getattr__ = lazy_modules(__name__, __all__)
