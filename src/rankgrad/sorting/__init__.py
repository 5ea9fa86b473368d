"""Relaxations of sorting: scores to a relaxed permutation, or to relaxed ranks.

>>> sorting.get("neuralsort(temperature=0.1)")(torch.tensor([0.2, 0.9, 0.5]), k=1).argmax().item()
1
"""

from rankgrad._validation import Constant, Exponential, Linear, Schedule, schedules
from rankgrad.sorting._base import Relaxation, relaxations
from rankgrad.sorting._families import FAMILIES, register
from rankgrad.sorting.exact import Exact, StraightThrough
from rankgrad.sorting.fastsort import FastSort, soft_rank, soft_sort, soft_topk_mask
from rankgrad.sorting.gumbel import Gumbel
from rankgrad.sorting.lapsum import LapSum
from rankgrad.sorting.neuralsort import NeuralSort
from rankgrad.sorting.optimal_transport import OptimalTransport
from rankgrad.sorting.sigmoid import SigmoidRanks
from rankgrad.sorting.sinkhorn import Sinkhorn
from rankgrad.sorting.smoothi import SmoothI
from rankgrad.sorting.softsort import SoftSort
from rankgrad.sorting.standardized import Standardized
from rankgrad.sorting.tree import Tree

get = relaxations.get
names = relaxations.names

__all__ = [
    "FAMILIES",
    "Constant",
    "Exact",
    "Exponential",
    "FastSort",
    "Gumbel",
    "LapSum",
    "Linear",
    "NeuralSort",
    "OptimalTransport",
    "Relaxation",
    "Schedule",
    "SigmoidRanks",
    "Sinkhorn",
    "SmoothI",
    "SoftSort",
    "Standardized",
    "StraightThrough",
    "Tree",
    "get",
    "names",
    "register",
    "relaxations",
    "schedules",
    "soft_rank",
    "soft_sort",
    "soft_topk_mask",
]
