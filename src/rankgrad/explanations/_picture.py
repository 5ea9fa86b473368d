"""The importance of features as a picture: bars with their intervals, in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_SHOWN = 25  # features
_ROW, _LEFT, _WIDTH, _RIGHT, _TOP = 22, 180, 460, 90, 46  # pixels
_LONGEST = 24  # characters of a name
_BAR, _LINE, _TEXT, _SOFT = "#2f6fdb", "#1a1d23", "#1a1d23", "#565e6b"


def picture(rows: Sequence[tuple[str, float, float, float, str]], metric: str) -> str:
    """An SVG of the most important features.

    Args:
        rows: feature, drop in points, the ends of its interval, and how it was permuted; the most
            important first.
        metric: what the drops are of.

    >>> from rankgrad.explanations._picture import picture
    >>> picture([("a", 2.0, 1.5, 2.5, "within lists")], "ndcg@10").startswith("<svg")
    True
    """
    shown = rows[:_SHOWN]
    ends = [0.0, *(end for _, value, low, high, _ in shown for end in (value, low, high))]
    low, high = min(ends), max(ends)
    scale = _WIDTH / (high - low or 1.0)
    height = _TOP + _ROW * len(shown) + 16

    def x(value: float) -> float:
        return _LEFT + (value - low) * scale

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + _RIGHT}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" role="img">',
        f"<title>Permutation importance in points of {escape(metric)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="14" fill="{_TEXT}">Fall of {escape(metric)} in points '
        "when a feature is permuted, with 95% intervals over lists</text>",
        f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{_TOP - 8}" y2="{height - 10}" '
        f'stroke="{_SOFT}"/>',
    ]
    for row, (name, value, from_, to, _) in enumerate(shown):
        middle = _TOP + _ROW * row + _ROW / 2
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        start, width = min(x(0), x(value)), abs(x(value) - x(0))
        parts += [
            f'<text x="{_LEFT - 10}" y="{middle + 4:.1f}" text-anchor="end" fill="{_TEXT}">'
            f"{escape(short)}</text>",
            f'<rect x="{start:.1f}" y="{middle - 7:.1f}" width="{width:.1f}" height="14" '
            f'fill="{_BAR}" fill-opacity="0.75"/>',
            f'<line x1="{x(from_):.1f}" x2="{x(to):.1f}" y1="{middle:.1f}" y2="{middle:.1f}" '
            f'stroke="{_LINE}" stroke-width="1.5"/>',
            f'<text x="{x(max(to, value, 0)) + 6:.1f}" y="{middle + 4:.1f}" fill="{_SOFT}">'
            f"{value:.2f}</text>",
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
