"""Data: from files to lists of items with features and labels.

:func:`load` reads whatever a path is and gives a :class:`Dataset`; :func:`load_splits` gives all
splits of a folder. The parsers, stores and known data sets are modules of this folder.
"""

from rankgrad.data import catalog, columnar, store
from rankgrad.data._dataset import Dataset
from rankgrad.data._layout import folds, splits
from rankgrad.data.sources import load, load_pair, load_splits

__all__ = [
    "Dataset",
    "catalog",
    "columnar",
    "folds",
    "load",
    "load_pair",
    "load_splits",
    "splits",
    "store",
]
