"""Ranking metrics: exact, and differentiable through any relaxation of sorting.

>>> metrics.get("ndcg@2")(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
tensor([0.2754])
"""

from rankgrad.metrics._base import Metric, Ranked, metrics
from rankgrad.metrics.ap import AP
from rankgrad.metrics.arp import ARP
from rankgrad.metrics.dcg import DCG
from rankgrad.metrics.err import ERR
from rankgrad.metrics.evaluate import Evaluation, evaluate
from rankgrad.metrics.hits import Hits
from rankgrad.metrics.kendall_tau import KendallTau
from rankgrad.metrics.ndcg import NDCG
from rankgrad.metrics.opa import OPA
from rankgrad.metrics.precision import Precision
from rankgrad.metrics.rbp import RBP
from rankgrad.metrics.recall import Recall
from rankgrad.metrics.rr import RR
from rankgrad.metrics.spearman import Spearman

get = metrics.get
names = metrics.names
register = metrics.register

__all__ = [
    "AP",
    "ARP",
    "DCG",
    "ERR",
    "NDCG",
    "OPA",
    "RBP",
    "RR",
    "Evaluation",
    "Hits",
    "KendallTau",
    "Metric",
    "Precision",
    "Ranked",
    "Recall",
    "Spearman",
    "evaluate",
    "get",
    "metrics",
    "names",
    "register",
]
