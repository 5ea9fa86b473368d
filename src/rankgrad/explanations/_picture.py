"""The importance of features as a picture: bars with their intervals, in SVG.

:meth:`rankgrad.explanations.Explanation.export` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rankgrad.explanations._importance import ImportanceRow

_MAX_FEATURES = 25
_MAX_NAME = 24  # characters
# Pixels: the height of a row, the width of the area of the bars, and the margins around the rows.
# Names of features are in the left margin, the title is in the top one.
_ROW, _WIDTH = 22, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 180, 90, 46, 16
# Colors of bars, intervals, names, and of the zero line and the numbers.
_BAR, _LINE, _TEXT, _SOFT = "#2f6fdb", "#1a1d23", "#1a1d23", "#565e6b"


def picture(rows: Sequence[ImportanceRow], metric: str) -> str:
    """An SVG of the most important features.

    Args:
        rows: one for each feature, the most important first; drops are in points.
        metric: the name of the metric that drops when a feature is permuted.

    >>> from rankgrad.explanations._importance import ImportanceRow
    >>> from rankgrad.explanations._picture import picture
    >>> picture([ImportanceRow("a", 2.0, 1.5, 2.5, "within lists")], "ndcg@10").startswith("<svg")
    True
    """
    # If the metric is undefined on all lists, there are no bars.
    shown = [
        row._replace(drop=0.0, low=0.0, high=0.0) if math.isnan(row.drop) else row
        for row in rows[:_MAX_FEATURES]
    ]
    values = [0.0, *(value for row in shown for value in (row.drop, row.low, row.high))]
    low, high = min(values), max(values)
    scale = _WIDTH / (high - low or 1.0)
    height = _TOP + _ROW * len(shown) + _BOTTOM

    def x(value: float) -> float:
        """The horizontal pixel of a drop."""
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
    for index, row in enumerate(shown):
        name, drop = row.feature, row.drop
        value = "undefined" if math.isnan(rows[index].drop) else f"{drop:.2f}"
        middle = _TOP + _ROW * index + _ROW / 2
        short_name = name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
        start, width = min(x(0), x(drop)), abs(x(drop) - x(0))
        parts += [
            f'<text x="{_LEFT - 10}" y="{middle + 4:.1f}" text-anchor="end" fill="{_TEXT}">'
            f"{escape(short_name)}</text>",
            f'<rect x="{start:.1f}" y="{middle - 7:.1f}" width="{width:.1f}" height="14" '
            f'fill="{_BAR}" fill-opacity="0.75"/>',
            f'<line x1="{x(row.low):.1f}" x2="{x(row.high):.1f}" y1="{middle:.1f}" '
            f'y2="{middle:.1f}" stroke="{_LINE}" stroke-width="1.5"/>',
            f'<text x="{x(max(row.high, drop, 0)) + 6:.1f}" y="{middle + 4:.1f}" fill="{_SOFT}">'
            f"{value}</text>",
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
