"""What a loss does to scores along training: its gradient, its bias, its curvature."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankgrad._padded import hard_ranks
from rankgrad.data import Dataset
from rankgrad.inputs import as_lists
from rankgrad.lists import Lists
from rankgrad.losses import losses
from rankgrad.metrics import metrics

_LISTS = 128
_EPOCHS = frozenset({1, 2, 3, 5, 8, 12, 16, 20, 30, 40})
_DEEP = 20  # a relevant item below this rank is a mistake, beyond twice the cutoff


class Diagnosis:
    """Called after each epoch of training.

    Measured on 128 training lists, at the scores of the whole ensemble:

    - ``ndcg``: exact NDCG@10, ``whole``: NDCG of whole lists, and ``value``: what the loss makes of
      it (of a relaxed metric, one minus the relaxed value)
    - ``spread``: the mean standard deviation of scores within a list
    - ``gradient``: the norm of the gradient by the scores, mean over lists
    - ``on_mistakes``: of the gradient on items labeled 3 and 4, the share on those below rank 20
    - ``mistakes``: the share of items labeled 3 and 4 that stand there
    - ``on_top``: of the whole gradient, the share on the ten items ranked first
    - ``curvature``: along the gradient, ``gᵀ H g / (|g|² |g|)`` in units of one over spread

    Args:
        network: that is trained.
        spec: of the loss.
        train: training lists; the first ones are used.
        device: of the network.
    """

    def __init__(self, network: nn.Module, spec: str, train: Dataset, device: str) -> None:
        some = train.select(np.arange(min(_LISTS, len(train))))
        self.network, self.loss = network, losses.get(spec)
        lengths, width = some.lengths, int(some.lengths.max())
        mask = np.arange(width) < lengths[:, None]
        inputs = np.zeros((*mask.shape, some.n_features), np.float32)
        labels = np.zeros(mask.shape, np.float32)
        inputs[mask], labels[mask] = some.features, some.labels
        self.inputs, self.labels, self.mask = (
            torch.from_numpy(each).to(device) for each in (inputs, labels, mask)
        )
        self.lines: list[dict[str, float]] = []

    def __call__(self, line: dict[str, float]) -> None:
        if line["epoch"] not in _EPOCHS:
            return
        training = self.network.training
        self.network.eval()
        with torch.no_grad():
            scores = self.network(self.inputs, self.mask)
        self.network.train(training)
        found = {"epoch": line["epoch"], **self._measure(scores)}
        self.lines.append({name: float(f"{value:.5g}") for name, value in found.items()})

    def _measure(self, scores: Tensor) -> dict[str, float]:
        values, defined, gradient = self._gradient(scores)
        exact = metrics.get("ndcg@10")(scores, self.labels, self.mask)
        spread = _spread(scores, self.mask)
        norm = gradient.norm(dim=-1)
        size = gradient.abs()
        ranks = hard_ranks(scores, self.mask, self.labels)
        good = (self.labels >= 3) & self.mask
        deep, top = good & (ranks > _DEEP), (ranks <= 10) & self.mask
        step = (1e-2 * spread / norm.clamp(min=1e-12))[:, None]
        ahead = self._gradient(scores + step * gradient)[2]
        bend = ((ahead - gradient) / step * gradient).sum(-1) / norm.clamp(min=1e-12) ** 3
        return {
            "ndcg": float(exact[defined].mean()),
            "whole": float(metrics.get("ndcg")(scores, self.labels, self.mask)[defined].mean()),
            "value": float(values[defined].mean()),
            "spread": float(spread.mean()),
            "gradient": float(norm[defined].mean()),
            "on_mistakes": float((size * deep).sum() / (size * good).sum().clamp(min=1e-20)),
            "mistakes": float(deep.sum() / good.sum().clamp(min=1)),
            "on_top": float((size * top).sum() / size.sum().clamp(min=1e-20)),
            "curvature": float((bend * spread)[defined].median()),
        }

    def _gradient(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own = scores.detach().clone().requires_grad_()
        with torch.enable_grad():
            values, defined = self.loss.values(self._lists(own))
            (gradient,) = torch.autograd.grad(values.where(defined, 0.0).sum(), own)
        return values.detach(), defined, gradient

    def _lists(self, scores: Tensor) -> Lists:
        found: Any = as_lists(scores, self.labels, self.mask)
        return found


def _spread(scores: Tensor, mask: Tensor) -> Tensor:
    count = mask.sum(-1).clamp(min=1)
    mean = (scores * mask).sum(-1) / count
    apart = (scores - mean[:, None]) * mask
    return (apart.square().sum(-1) / count).sqrt()
