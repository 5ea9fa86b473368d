"""Ranking losses: the grid of relaxed metrics, and the pointwise, pairwise and listwise ones.

>>> loss = losses.get("neural_ndcg@10(temperature=0.5)")
>>> loss(torch.tensor([[0.3, 0.2, 0.1]]), torch.tensor([[1, 0, 2]]))
tensor(0.2519)
"""

from rankgrad.losses._base import Loss, losses
from rankgrad.losses.distributed import distributed_mean
from rankgrad.losses.lambdaloss import LambdaLoss, LambdaRank
from rankgrad.losses.listwise import ListAP, ListMLE, ListNet, NDCGBound, NeuralSortCE, Softmax
from rankgrad.losses.pairwise import Hinge, MarginMSE, RankNet
from rankgrad.losses.pointwise import BCE, MSE, RMSE, Ordinal
from rankgrad.losses.relaxed import ApproxNDCG, GridLoss, NeuralNDCG, PiRank, RelaxedMetric, SmoothI

get = losses.get
names = losses.names
register = losses.register

__all__ = [
    "BCE",
    "MSE",
    "RMSE",
    "ApproxNDCG",
    "GridLoss",
    "Hinge",
    "LambdaLoss",
    "LambdaRank",
    "ListAP",
    "ListMLE",
    "ListNet",
    "Loss",
    "MarginMSE",
    "NDCGBound",
    "NeuralNDCG",
    "NeuralSortCE",
    "Ordinal",
    "PiRank",
    "RankNet",
    "RelaxedMetric",
    "SmoothI",
    "Softmax",
    "distributed_mean",
    "get",
    "losses",
    "names",
    "register",
]
