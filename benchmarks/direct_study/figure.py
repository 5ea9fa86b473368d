"""Draws line charts as SVG, in light or dark colors as the reader prefers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

Curves = Mapping[str, Sequence[tuple[float, float]]]

# Mid-tones, which can be distinguished on white and on black.
COLORS = ("#1f9d6f", "#3f7fd9", "#b8860b", "#c2569b", "#d1495b", "#8a6fe0", "#1f9bb5", "#b06a2f")
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #57606a; }
.title { font-size: 14px; font-weight: 600; fill: #24292f; }
.grid { stroke: #d0d7de; } .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) {
  text { fill: #9ea7b3; } .title { fill: #e6edf3; } .grid { stroke: #30363d; }
}
"""
_TOP, _BOTTOM, _WIDTH, _GAP, _LEFT = 44, 300, 300, 78, 48  # pixels of panels


@dataclass(frozen=True)
class Panel:
    """Axes with curves.

    Args:
        title: the text above.
        curves: the points (x, y) of each curve, by its name.
        ticks: values marked on the vertical axis; the first and last are the ends of the axis.
        across: values marked on the horizontal axis, likewise.
        label: the text under the horizontal axis.
        logarithmic: whether the vertical axis is logarithmic.
    """

    title: str
    curves: Curves
    ticks: tuple[float, ...]
    across: tuple[float, ...]
    label: str
    logarithmic: bool = False


def draw(panels: Sequence[Panel], name: str) -> str:
    """An SVG of panels side by side, with the names of the curves below; ``name`` describes it."""
    names = list(dict.fromkeys(curve for panel in panels for curve in panel.curves))
    colors = {curve: COLORS[number % len(COLORS)] for number, curve in enumerate(names)}
    width = _LEFT + len(panels) * (_WIDTH + _GAP)
    rows = -(-len(names) // 3)
    height = _BOTTOM + 60 + 20 * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(name)}">',
        f"<style>{STYLE}</style>",
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _LEFT + number * (_WIDTH + _GAP), colors)
    for number, curve in enumerate(names):
        x, y = _LEFT + (number % 3) * 235, _BOTTOM + 62 + 20 * (number // 3)
        parts.append(f'<path class="line" stroke="{colors[curve]}" d="M{x} {y - 4}h18"/>')
        parts.append(f'<text x="{x + 24}" y="{y}">{escape(curve)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: float, colors: Mapping[str, str]) -> Iterator[str]:
    scale = math.log if panel.logarithmic else float
    low, high = scale(panel.ticks[0]), scale(panel.ticks[-1])
    first, last = panel.across[0], panel.across[-1]

    def place(x: float, y: float) -> str:
        """The pixel of a point; values outside of the vertical axis are at its ends."""
        fraction = (min(max(scale(max(y, 1e-9)), low), high) - low) / (high - low)
        across = left + (x - first) / (last - first) * _WIDTH
        return f"{across:.1f} {_BOTTOM - fraction * (_BOTTOM - _TOP):.1f}"

    yield f'<text class="title" x="{left}" y="{_TOP - 18}">{escape(panel.title)}</text>'
    for tick in panel.ticks:
        y = float(place(first, tick).split()[1])
        yield f'<path class="grid" d="M{left} {y}h{_WIDTH}"/>'
        yield f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>'
    for tick in panel.across:
        x = float(place(tick, panel.ticks[0]).split()[0])
        yield f'<text x="{x}" y="{_BOTTOM + 18}" text-anchor="middle">{tick:g}</text>'
    middle = left + _WIDTH / 2
    yield f'<text x="{middle}" y="{_BOTTOM + 36}" text-anchor="middle">{escape(panel.label)}</text>'
    for curve, points in panel.curves.items():
        path = "L".join(place(x, y) for x, y in points)
        yield f'<path class="line" stroke="{colors[curve]}" d="M{path}"/>'
