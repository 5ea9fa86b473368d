"""The papers' tables and figures: protocols with the printed numbers, and running them again.

``protocol`` reads the files of ``protocols/``, one for each table. ``reproduce`` runs a table and
sets it beside the printed numbers; ``_splits`` divides its data as the paper did. ``figures`` draws
some of the papers' figures.
"""

from rankgrad.extras import lazy_modules

__all__ = ["figures", "protocol", "reproduce"]

__getattr__ = lazy_modules(__name__, __all__)
