"""The losses as one would write them at first: n × n tensors and autograd, no masks.

One of the peers that `run.py` compares with. Relaxations go through the same metrics, so a
difference is the relaxation's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rankgrad.losses import Loss, RelaxedMetric
from rankgrad.sorting import Relaxation


@dataclass(frozen=True)
class PlainPermutation(Relaxation):
    """A relaxation given as a function of scores to the whole n × n matrix."""

    name = "plain"
    rows: Any = None

    def _permutation(self, scores: Tensor, mask: Tensor, k: int) -> Tensor:
        return self.rows(scores)[:, :k]


@dataclass(frozen=True)
class PlainRanks(Relaxation):
    """A relaxation given as a function of scores to ranks."""

    name = "plain"
    of: Any = None

    @property
    def forms(self) -> tuple[Any, ...]:
        return ("ranks",)

    def _ranks(self, scores: Tensor, mask: Tensor) -> Tensor:
        return self.of(scores)


def neuralsort(s: Tensor) -> Tensor:
    n = s.shape[-1]
    sums = (s[:, :, None] - s[:, None, :]).abs().sum(-1)
    slope = n + 1 - 2 * torch.arange(1, n + 1)
    return (slope[:, None] * s[:, None, :] - sums[:, None, :]).softmax(-1)


def neural(s: Tensor) -> Tensor:
    matrix = neuralsort(s)
    for _ in range(30):
        matrix = matrix / matrix.sum(-2, keepdim=True).clamp(min=1e-10)
        matrix = matrix / matrix.sum(-1, keepdim=True).clamp(min=1e-10)
        if max((matrix.sum(d) - 1).abs().max() for d in (-1, -2)) < 1e-6:
            break
    return matrix


def softsort(s: Tensor) -> Tensor:
    ranked = s.sort(dim=-1, descending=True).values
    return (-(ranked[:, :, None] - s[:, None, :]).abs()).softmax(-1)


def smoothi(s: Tensor) -> Tensor:
    s = s - s.amin(-1, keepdim=True)
    rows, product = [], torch.ones_like(s)
    for _ in range(s.shape[-1]):
        row = (s * product.detach()).softmax(-1)
        product = product * (1 - row - 0.1)
        rows.append(row)
    return torch.stack(rows, 1)


def optimal_transport(s: Tensor) -> Tensor:
    n = s.shape[-1]
    x = ((s - s.mean(-1, keepdim=True)) / s.std(-1, keepdim=True)).sigmoid()
    target = torch.linspace(1, 0, n)
    logits = -(target[:, None] - x[:, None, :]).square() / 0.01
    for _ in range(100):
        logits = logits - logits.logsumexp(-2, keepdim=True)
        logits = logits - logits.logsumexp(-1, keepdim=True)
    return logits.exp()


def sigmoid_ranks(s: Tensor) -> Tensor:
    return 0.5 + (s[:, None, :] - s[:, :, None]).sigmoid().sum(-1)


def lapsum(s: Tensor) -> Tensor:
    gaps = s[:, None, :] - s[:, :, None]
    tail = 0.5 * torch.exp(-gaps.abs())
    return 0.5 + torch.where(gaps < 0, tail, 1 - tail).sum(-1)


def fastsort(s: Tensor) -> Tensor:
    """The isotonic regression by its minimax formula, over all n² blocks."""
    n = s.shape[-1]
    z, order = (-s).sort(dim=-1, descending=True)
    y = z - torch.arange(n, 0, -1)
    sums = F.pad(y.cumsum(-1), (1, 0))
    sizes = torch.arange(1, n + 1) - torch.arange(n)[:, None]
    means = (sums[:, None, 1:] - sums[:, :-1, None]) / sizes.clamp(min=1)
    high = means.masked_fill(sizes < 1, float("-inf")).flip(-1).cummax(-1).values.flip(-1)
    v = high.masked_fill(sizes < 1, float("inf")).cummin(-2).values.diagonal(dim1=-2, dim2=-1)
    return torch.zeros_like(s).scatter(-1, order, z - v)


def ranknet(s: Tensor, y: Tensor) -> Tensor:
    pairs = (y[:, :, None] > y[:, None, :]).float()
    return (pairs * F.softplus(s[:, None, :] - s[:, :, None])).sum((-2, -1)).mean()


def hinge(s: Tensor, y: Tensor) -> Tensor:
    pairs = (y[:, :, None] > y[:, None, :]).float()
    return (pairs * (1 + s[:, None, :] - s[:, :, None]).clamp(min=0)).sum((-2, -1)).mean()


def lambda_pairs(s: Tensor, y: Tensor, distance: bool) -> Tensor:
    ranks = s.argsort(dim=-1, descending=True).argsort(dim=-1) + 1.0
    gains = torch.exp2(y.float()) - 1
    ideal = (gains.sort(-1, descending=True).values / torch.log2(1 + ranks.sort(-1).values)).sum(-1)
    if distance:
        apart = (ranks[:, :, None] - ranks[:, None, :]).abs().clamp(min=1)
        delta = 1 / torch.log2(1 + apart) - 1 / torch.log2(2 + apart)
    else:
        worth = 1 / torch.log2(1 + ranks)
        delta = (worth[:, :, None] - worth[:, None, :]).abs()
    gaps = (gains[:, :, None] - gains[:, None, :]).abs() / ideal[:, None, None]
    pairs = (y[:, :, None] > y[:, None, :]).float()
    weights = (pairs * gaps * delta).detach()
    return (weights * F.softplus(s[:, None, :] - s[:, :, None])).sum((-2, -1)).mean()


def listmle(s: Tensor, y: Tensor) -> Tensor:
    ranked = s.gather(-1, y.argsort(dim=-1, descending=True))
    n = s.shape[-1]
    later = torch.ones(n, n, dtype=torch.bool).triu()
    tails = ranked[:, None, :].expand(-1, n, -1).masked_fill(~later, float("-inf")).logsumexp(-1)
    return (tails - ranked).sum(-1).mean()


def neuralsort_ce(s: Tensor, y: Tensor) -> Tensor:
    target = (y[:, :, None] == y.sort(-1, descending=True).values[:, None, :]).float().mT
    target = target / target.sum(-1, keepdim=True)
    return -(target * neuralsort(s).clamp(min=1e-30).log()).sum(-1).mean()


PERMUTATIONS = {
    "neural": neural,
    "ot": optimal_transport,
    "pirank": neuralsort,
    "smoothi": smoothi,
    "softsort": softsort,
}
RANKS = {"approx": sigmoid_ranks, "fastsort": fastsort, "lapsum": lapsum}
OTHERS = {
    "hinge": hinge,
    "lambdaloss": lambda s, y: lambda_pairs(s, y, distance=True),
    "lambdarank": lambda s, y: lambda_pairs(s, y, distance=False),
    "listmle": listmle,
    "neuralsort_ce": neuralsort_ce,
    "ranknet": ranknet,
}


def plain(loss: Loss) -> Any:
    """The plain n × n form of a loss, or None where it has none."""
    family = str(loss).split("@")[0].split("(")[0].split("_")[0]
    if isinstance(loss, RelaxedMetric):
        if family in PERMUTATIONS:
            return RelaxedMetric(
                loss.metric, PlainPermutation(PERMUTATIONS[family]), expect=loss.expect
            )
        return RelaxedMetric(loss.metric, PlainRanks(RANKS[family]))
    return OTHERS.get(str(loss).split("@")[0])
