"""The names of :mod:`rankgrad.files` and :mod:`rankgrad.training.tensors`, as before."""

from rankgrad.files import damaged as damaged
from rankgrad.files import folder as folder
from rankgrad.files import read_json as read_json
from rankgrad.files import recover as recover
from rankgrad.files import standing as standing
from rankgrad.files import sync as sync
from rankgrad.files import write as write
from rankgrad.training.tensors import read as read_tensors
from rankgrad.training.tensors import write as write_tensors

__all__ = [
    "damaged",
    "folder",
    "read_json",
    "read_tensors",
    "recover",
    "standing",
    "sync",
    "write",
    "write_tensors",
]
