"""Draws a dot plot as SVG: a row of markers for each data set, on one axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from figure import COLORS, STYLE

_LEFT, _WIDTH, _TOP, _ROW = 240, 460, 48, 30  # pixels
_RADIUS = 6


def draw(
    rows: Mapping[str, Mapping[str, float]],
    ticks: Sequence[float],
    title: str,
    filled: str,
) -> str:
    """An SVG.

    Args:
        rows: values by the name of a marker, by the name of a row; one row has all markers.
        ticks: values marked on the axis; the first and last are its ends.
        title: the text above.
        filled: the name of the marker that is filled; the others are circles.
    """
    names = max(rows.values(), key=len)
    colors = dict(zip(names, COLORS, strict=False))
    bottom = _TOP + _ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 30} '
        f'{bottom + 56}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="0" y="20">{escape(title)}</text>',
    ]

    def place(value: float) -> float:
        """The pixel of a value; values outside of the axis are at its ends."""
        value = min(max(value, ticks[0]), ticks[-1])
        return _LEFT + (value - ticks[0]) / (ticks[-1] - ticks[0]) * _WIDTH

    for tick in ticks:
        parts.append(f'<path class="grid" d="M{place(tick):.1f} {_TOP - 8}V{bottom}"/>')
        x, y = f"{place(tick):.1f}", bottom + 18
        parts.append(f'<text x="{x}" y="{y}" text-anchor="middle">{tick:.2f}</text>')
    for number, (row, values) in enumerate(rows.items()):
        y = _TOP + _ROW * number + _ROW // 2 - 4
        parts.append(f'<text x="0" y="{y + 4}">{escape(row)}</text>')
        for name, value in values.items():
            parts.append(_marker(place(value), y, colors[name], name == filled))
    parts += _legend(colors, bottom + 44, filled)
    return "\n".join([*parts, "</svg>", ""])


def _marker(x: float, y: float, color: str, is_filled: bool) -> str:
    fill = color if is_filled else "none"
    shape = f'cx="{x:.1f}" cy="{y}" r="{_RADIUS}"'
    return f'<circle {shape} fill="{fill}" stroke="{color}" stroke-width="2"/>'


def _legend(colors: Mapping[str, str], y: int, filled: str) -> Iterator[str]:
    x = 8
    for name, color in colors.items():
        yield _marker(x, y - 4, color, name == filled)
        yield f'<text x="{x + 12}" y="{y}">{escape(name)}</text>'
        x += 7 * len(name) + 36
