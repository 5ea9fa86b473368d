"""Measures the gradient, the bias and the curvature of a loss along training."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rankgrad._padded import hard_ranks
from rankgrad.data import Dataset
from rankgrad.inputs import as_lists
from rankgrad.losses import losses
from rankgrad.metrics import metrics

_LISTS = 128  # that are measured on
_EPOCHS = frozenset({1, 2, 3, 5, 8, 12, 16, 20, 30, 40})  # after which is measured
_DEEP = 20  # a relevant item below this rank, twice the cutoff, is a deep mistake


class Diagnosis:
    """A callback of training that measures the loss after some epochs; ``lines`` has the results.

    It measures, on 128 training lists, with the scores of the whole ensemble:

    - ``ndcg``: exact NDCG@10; ``whole``: NDCG without a cutoff; ``value``: the value of the loss
      (for a relaxed metric, 1 less the relaxed value)
    - ``spread``: the mean standard deviation of scores within a list
    - ``gradient``: the norm of the gradient by the scores, mean over lists
    - ``on_mistakes``: of the gradient on items labeled 3 and 4, the share on those below rank 20
    - ``mistakes``: the share of items labeled 3 and 4 that are below rank 20
    - ``on_top``: of the whole gradient, the share on the ten items ranked first
    - ``curvature``: along the gradient, ``gᵀ H g / (|g|² |g|)`` in units of one over spread

    Args:
        network: the network that is trained.
        spec: the spec of the loss.
        train: training lists; the first ones are used.
        device: the device of the network.
    """

    def __init__(self, network: nn.Module, spec: str, train: Dataset, device: str) -> None:
        sample = train.select(np.arange(min(_LISTS, len(train))))
        self.network, self.loss = network, losses.get(spec)
        lengths, width = sample.lengths, int(sample.lengths.max())
        mask = np.arange(width) < lengths[:, None]
        inputs = np.zeros((*mask.shape, sample.n_features), np.float32)
        labels = np.zeros(mask.shape, np.float32)
        inputs[mask], labels[mask] = sample.features, sample.labels
        self.inputs, self.labels, self.mask = (
            torch.from_numpy(array).to(device) for array in (inputs, labels, mask)
        )
        self.lines: list[dict[str, float]] = []

    def __call__(self, epoch: dict[str, float]) -> None:
        if epoch["epoch"] not in _EPOCHS:
            return
        training = self.network.training
        self.network.eval()
        with torch.no_grad():
            scores = self.network(self.inputs, self.mask)
        self.network.train(training)
        measured = {"epoch": epoch["epoch"], **self._measure(scores)}
        self.lines.append({name: float(f"{value:.5g}") for name, value in measured.items()})

    def _measure(self, scores: Tensor) -> dict[str, float]:
        values, defined, gradient = self._gradient(scores)
        exact = metrics.get("ndcg@10")(scores, self.labels, self.mask)
        deviation = _standard_deviation(scores, self.mask)
        norm = gradient.norm(dim=-1)
        size = gradient.abs()
        ranks = hard_ranks(scores, self.mask, self.labels)
        relevant = (self.labels >= 3) & self.mask
        mistakes, top = relevant & (ranks > _DEEP), (ranks <= 10) & self.mask
        # The curvature is a finite difference of gradients, a small step along the gradient.
        step = (1e-2 * deviation / norm.clamp(min=1e-12))[:, None]
        next_gradient = self._gradient(scores + step * gradient)[2]
        second = ((next_gradient - gradient) / step * gradient).sum(-1)
        curvature = second / norm.clamp(min=1e-12) ** 3
        return {
            "ndcg": float(exact[defined].mean()),
            "whole": float(metrics.get("ndcg")(scores, self.labels, self.mask)[defined].mean()),
            "value": float(values[defined].mean()),
            "spread": float(deviation.mean()),
            "gradient": float(norm[defined].mean()),
            "on_mistakes": float(
                (size * mistakes).sum() / (size * relevant).sum().clamp(min=1e-20)
            ),
            "mistakes": float(mistakes.sum() / relevant.sum().clamp(min=1)),
            "on_top": float((size * top).sum() / size.sum().clamp(min=1e-20)),
            "curvature": float((curvature * deviation)[defined].median()),
        }

    def _gradient(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values ``[b]``, where they are defined ``[b]``, and the gradient by scores ``[b, n]``."""
        leaf = scores.detach().clone().requires_grad_()
        with torch.enable_grad():
            values, defined = self.loss.values(as_lists(leaf, self.labels, self.mask))
            (gradient,) = torch.autograd.grad(values.where(defined, 0.0).sum(), leaf)
        return values.detach(), defined, gradient


def _standard_deviation(scores: Tensor, mask: Tensor) -> Tensor:
    """Of the scores ``[b, n]`` of each list, ``[b]``."""
    count = mask.sum(-1).clamp(min=1)
    mean = (scores * mask).sum(-1) / count
    centered = (scores - mean[:, None]) * mask
    return (centered.square().sum(-1) / count).sqrt()
