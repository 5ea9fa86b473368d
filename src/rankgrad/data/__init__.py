"""Data: from files to lists of items with features and labels.

:func:`load` reads any path that holds data and returns a :class:`Dataset`; :func:`load_splits`
returns all splits of a folder. Both are in ``sources.py``, which calls the reader of the format:
``letor.py``, ``columnar.py`` or ``store.py``. ``transforms.py`` and ``batches.py`` turn a data set
into the inputs of a network; ``synthetic.py`` makes data, ``catalog.py`` recognizes public sets,
and ``trec.py`` reads and writes runs and qrels.
"""

from rankgrad.data import catalog, columnar, store, synthetic
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
    "synthetic",
]
