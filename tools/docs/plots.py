"""Plots of a loss and its gradient against one score, as SVG that follows the page's colors."""

from __future__ import annotations

import torch
from torch import Tensor

import rankgrad.kernels
from rankgrad import losses, metrics

#: The list that is plotted: the score of the item of label 2 moves, the others stay.
LABELS = torch.tensor([2.0, 1.0, 0.0, 0.0, 1.0])
SCORES = torch.tensor([0.0, 1.0, 0.5, -0.5, -1.0])
#: Draws of the noise that the plot of a stochastic loss averages, and their seed.
NOISES, SEED = 16, 0
WIDTH, HEIGHT, LEFT, BOTTOM = 320, 190, 46, 34


def sweep(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """The loss and its derivative while one score moves.

    Args:
        name: the name of the loss. For a stochastic one (``gumbel_``) values are means over
            ``NOISES`` draws of the noise, which are the same at every score, so that the curves
            show the loss and not the draws.

    Returns:
        Scores from -4 to 4, the values and the derivatives, [points] each.
    """
    draws, points = (NOISES, 61) if name.startswith("gumbel_") else (1, 121)
    moving, scores, labels = _lists(points)
    scores.requires_grad_()
    noisy = (scores + _noise(draws)).flatten(0, 1) if draws > 1 else scores
    with rankgrad.kernels.using("eager"):  # kernels take a second each to compile
        loss = losses.get(name.removeprefix("gumbel_"), reduction="none")
        values = loss(noisy, labels.repeat(draws, 1)).reshape(draws, points).mean(0)
        (gradient,) = torch.autograd.grad(values.sum(), scores)
    return moving, values.detach(), gradient[:, 0]


def _noise(draws: int) -> Tensor:
    """Standard Gumbel noise for each item, [draws, 1, items]."""
    random = torch.Generator().manual_seed(SEED)
    uniform = torch.rand(draws, 1, len(SCORES), dtype=torch.float64, generator=random)
    return -(-uniform.log()).log()


def sweep_metric(name: str, points: int = 481) -> tuple[Tensor, Tensor]:
    """An exact metric while one score moves: the scores and the values, [points] each."""
    moving, scores, labels = _lists(points)
    return moving, metrics.get(name)(scores, labels)


def _lists(points: int) -> tuple[Tensor, Tensor, Tensor]:
    """The score that moves ``[points]``, and the scores and labels of a list for each of them."""
    moving = torch.linspace(-4.0, 4.0, points, dtype=torch.float64)
    scores = SCORES.double().repeat(points, 1)
    scores[:, 0] = moving
    return moving, scores, LABELS.double().repeat(points, 1)


def svg(x: Tensor, y: Tensor, label: str) -> str:
    """A line plot with an axis of its own scale, and a dotted line at zero."""
    low, high = min(float(y.min()), 0.0), max(float(y.max()), 0.0)
    span = (high - low) or 1.0
    right, top = WIDTH - 8, 20

    def place(a: float, b: float) -> tuple[float, float]:
        """The pixel of a point of the plot."""
        across = LEFT + (a + 4) / 8 * (right - LEFT)
        return across, HEIGHT - BOTTOM - (b - low) / span * (HEIGHT - BOTTOM - top)

    line = " ".join(
        "{:.1f},{:.1f}".format(*place(float(a), float(b))) for a, b in zip(x, y, strict=True)
    )
    zero = place(0.0, 0.0)[1]
    levels = [b for b in dict.fromkeys((low, high)) if abs(place(0, b)[1] - zero) >= 12]
    ticks = "".join(
        f'<text x="{place(a, 0)[0]:.0f}" y="{HEIGHT - 18}" text-anchor="middle">{a}</text>'
        for a in (-4, -2, 0, 2, 4)
    )
    level_texts = "".join(
        f'<text x="{LEFT - 6}" y="{place(0, b)[1] + 4:.0f}" text-anchor="end">{b:.3g}</text>'
        for b in (*levels, 0.0)
    )
    other_scores = "".join(
        f'<line x1="{place(float(s), 0)[0]:.1f}" x2="{place(float(s), 0)[0]:.1f}" '
        f'y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 5}" stroke="currentColor"/>'
        for s in SCORES[1:]
    )
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" '
        'font-size="11" fill="currentColor">'
        f'<text x="{LEFT}" y="12">{label}</text>{ticks}{level_texts}{other_scores}'
        f'<line x1="{LEFT}" x2="{right}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="currentColor" '
        'stroke-dasharray="2 3" opacity="0.6"/>'
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 4}" text-anchor="middle">'
        "score of the item of label 2</text>"
        f'<polyline points="{line}" fill="none" stroke="var(--md-typeset-a-color)" '
        'stroke-width="2"/>'
        "</svg>"
    )
