"""The papers' tables and figures: protocols with the printed numbers, and running them again."""

from rankgrad.extras import lazy_modules

__all__ = ["figures", "protocol", "reproduce"]

__getattr__ = lazy_modules(__name__, __all__)
