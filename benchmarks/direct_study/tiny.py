"""Minimizes losses on tiny problems whose best NDCG is known: do they reach it?

There are two kinds of problems, which take some minutes on a CPU:

- ``free``: every item has a score of its own, so that the best NDCG is 1. Gradient descent starts
  from ties, from random scores and from the reversed order.
- ``linear``: two features, five lists, one weight vector. NDCG depends only on the direction of the
  weights, and changes only where two items tie. So a finite number of directions has all values of
  NDCG, and the best is known exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankgrad import losses
from rankgrad.metrics import metrics

LOSSES = (
    "lambdaloss@10",
    "ndcg_bound@10",
    "ndcg_bound@10(penalty=loglog)",
    "softmax",
    "ranknet",
    "approx_ndcg",
    "lapsum_ndcg",
    "neural_ndcg",
    "smoothi_ndcg@10",
    "softsort_ndcg@10",
)
RATES = (0.1, 1.0, 10.0, 100.0)
FREE_STARTS = ("ties", "random", "random × 10", "reversed", "reversed × 10")
LINEAR_STARTS = ("zero", "random", "random × 10")
_DRAWS = 8  # random starts of each scale
_TOLERANCE = 1e-6  # values of NDCG that are closer than this are the same


def run(path: Path, *, lists: int = 40, problems: int = 24, steps: int = 600) -> None:
    """Solve the problems with every loss, and write the NDCG that was reached.

    Args:
        path: the JSON file to write.
        lists: the number of lists with free scores.
        problems: the number of problems for linear models.
        steps: the number of steps of gradient descent, and of Adam.
    """
    results: dict[str, Any] = {"lists": lists, "problems": problems, "steps": steps}
    results["free"] = {spec: free(spec, lists, steps) for spec in LOSSES}
    results["linear"] = {spec: linear(spec, problems, steps) for spec in LOSSES}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def free(spec: str, lists: int, steps: int) -> dict[str, dict[str, float]]:
    """Mean NDCG and the share of lists in perfect order, by start; the best of four step sizes."""
    random = torch.Generator().manual_seed(0)
    labels = _labels(torch.randn(lists, 10, generator=random, dtype=torch.float64))
    noise = torch.randn(lists, 10, generator=random, dtype=torch.float64)
    reverse = -labels + 0.1 * noise
    starts = torch.stack([0 * noise, noise, 10 * noise, reverse, 10 * reverse])
    size = (len(FREE_STARTS), len(RATES), lists, 10)
    scores = starts[:, None].expand(size).reshape(-1, 10).clone().requires_grad_()
    rates = torch.tensor(RATES, dtype=torch.float64)[None, :, None, None].expand(size)
    all_labels = labels.expand(size).reshape(-1, 10)
    loss = losses.get(spec, reduction="sum")
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(loss(scores, all_labels), scores)
        with torch.no_grad():
            scores -= rates.reshape(-1, 10) * gradient
    values = metrics.get("ndcg@10")(scores.detach(), all_labels).reshape(size[:3])
    result = {}
    for start, by_rate in zip(FREE_STARTS, values, strict=True):
        best = by_rate[by_rate.mean(-1).argmax()]
        result[start] = {
            "ndcg": float(best.mean()),
            "solved": float((best > 1 - _TOLERANCE).double().mean()),
        }
    return result


def linear(spec: str, problems: int, steps: int) -> dict[str, dict[str, float]]:
    """By start, the mean distance from the best NDCG and the share of problems that reach it.

    ``own`` is, for each problem, the start from which the loss itself ends lowest. If that misses
    the best NDCG, the reason is not the optimizer but where the loss has its minimum.
    """
    features, labels = _problems(problems)
    best = _best(features, labels)
    random = torch.Generator().manual_seed(1)
    starts = torch.randn(problems, _DRAWS, 2, generator=random, dtype=torch.float64)
    weights = torch.cat([0 * starts[:, :1], starts, 10 * starts], 1).requires_grad_()
    all_labels = labels[:, None].expand(-1, weights.shape[1], -1, -1).reshape(-1, labels.shape[-1])
    loss = losses.get(spec, reduction="none")
    optimizer = torch.optim.Adam([weights], lr=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(_scores(features, weights), all_labels).sum().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        scores = _scores(features, weights)
        shape = (*weights.shape[:2], labels.shape[1])
        reached = metrics.get("ndcg@10")(scores, all_labels).reshape(shape).mean(-1)
        final_losses = loss(scores, all_labels).reshape(shape).mean(-1)
    missing = best[:, None] - reached
    own = missing.gather(1, final_losses.argmin(1, keepdim=True))
    parts = dict(zip(LINEAR_STARTS, missing.split([1, _DRAWS, _DRAWS], 1), strict=True))
    return {name: _summary(part) for name, part in {**parts, "own": own}.items()}


def _summary(missing: Tensor) -> dict[str, float]:
    return {
        "missing": float(missing.mean()),
        "solved": float((missing < _TOLERANCE).double().mean()),
    }


def _problems(problems: int) -> tuple[Tensor, Tensor]:
    """Features ``[problems, 5, 8, 2]`` and labels that no linear model explains completely."""
    random = torch.Generator().manual_seed(2)
    features = torch.randn(problems, 5, 8, 2, generator=random, dtype=torch.float64)
    noise = torch.randn(problems, 5, 8, generator=random, dtype=torch.float64)
    return features, _labels(features.sum(-1) / 2**0.5 + 0.7 * noise)


def _labels(utility: Tensor) -> Tensor:
    """Labels 0 to 4: about half of the items are irrelevant, but the best item of a list is not."""
    labels = torch.bucketize(utility, torch.tensor([0.0, 0.8, 1.5, 2.0], dtype=utility.dtype))
    first = torch.zeros_like(labels).scatter(-1, utility.argmax(-1, keepdim=True), 1)
    return torch.maximum(labels, first).to(utility.dtype)


def _scores(features: Tensor, weights: Tensor) -> Tensor:
    """The scores by the weights of every start, ``[problems × starts × lists, items]``."""
    return torch.einsum("plnf,psf->psln", features, weights).reshape(-1, features.shape[2])


def _best(features: Tensor, labels: Tensor) -> Tensor:
    """The best mean NDCG of each problem over all directions of the weights, ``[problems]``.

    NDCG is constant between two directions in which items of a list tie: one in between is tried.
    """
    differences = (features[:, :, :, None] - features[:, :, None]).flatten(1, 3)
    ties = torch.atan2(differences[..., 0], -differences[..., 1])  # orthogonal to the difference
    ties = torch.cat([ties, ties + torch.pi], 1).remainder(2 * torch.pi).sort(1).values
    ends = torch.cat([ties, ties[:, :1] + 2 * torch.pi], 1)
    middle = (ends[:, 1:] + ends[:, :-1]) / 2
    weights = torch.stack([middle.cos(), middle.sin()], -1)
    all_labels = labels[:, None].expand(-1, weights.shape[1], -1, -1).reshape(-1, labels.shape[-1])
    values = metrics.get("ndcg@10")(_scores(features, weights), all_labels)
    return values.reshape(len(features), -1, labels.shape[1]).mean(-1).amax(1)


def free_table(results: dict[str, Any]) -> Iterable[str]:
    """A Markdown table: the NDCG that free scores reach, and the share of perfect lists."""
    yield "| loss | " + " | ".join(FREE_STARTS) + " |"
    yield "|:--|" + "--:|" * len(FREE_STARTS)
    for spec, starts in results["free"].items():
        cells = [f"{starts[n]['ndcg']:.3f} ({starts[n]['solved']:.0%})" for n in FREE_STARTS]
        yield f"| `{spec}` | " + " | ".join(cells) + " |"


def linear_table(results: dict[str, Any]) -> Iterable[str]:
    """A Markdown table: what linear models miss of the best NDCG, and the share of solved ones."""
    names = (*LINEAR_STARTS, "own")
    yield "| loss | " + " | ".join((*LINEAR_STARTS, "the start where the loss ends lowest")) + " |"
    yield "|:--|" + "--:|" * len(names)
    for spec, starts in results["linear"].items():
        cells = [f"{starts[n]['missing']:.4f} ({starts[n]['solved']:.0%})" for n in names]
        yield f"| `{spec}` | " + " | ".join(cells) + " |"
