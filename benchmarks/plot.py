"""Draw the sweep of `run.py` as an SVG: time and memory against the length of a list, log-log.

python benchmarks/plot.py results/h200.json h200.svg
python benchmarks/plot.py results/h200.json time.svg ms         # one of the two, small

It follows the reader's light or dark colors.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

TOP, BOTTOM, SMALL_BOTTOM = 84, 418, 248
PANELS = ((62, 372), (602, 912))  # left and right edges; names stand to the right
NAMES, BELOW = 168, 52  # what those take, and what stands below the axes
FIGURES = ("ms", "peak_mib")
GAP = 15  # between names
# Mid-tones, told apart on white and on black; see Okabe and Ito's palette.
COLORS = (
    "#1f9d6f",
    "#3f7fd9",
    "#b8860b",
    "#c2569b",
    "#d1495b",
    "#8a6fe0",
    "#1f9bb5",
    "#b06a2f",
)
STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #57606a; }
.title { font-size: 14px; font-weight: 600; fill: #24292f; }
.grid { stroke: #d0d7de; stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.peer { stroke-dasharray: 7 4; stroke-width: 2; }
.lead { fill: none; stroke-width: 1; stroke-opacity: 0.45; }
@media (prefers-color-scheme: dark) {
  text { fill: #9ea7b3; } .title { fill: #e6edf3; } .grid { stroke: #30363d; }
}
"""
Point = tuple[float, float]


def draw(found: dict[str, Any], figures: Sequence[str] = FIGURES) -> str:
    """The picture of the figures of a run, time and memory or the one of them.

    Ours are whole lines, a peer's are dashed in the color of the loss of ours that it stands
    beside.
    """
    on = "device time" if found["device"] == "cuda" else "call"
    subtitle = f"One list, forward and backward, float32, {found['machine']}"
    subtitle += f", {found['date']}" if len(figures) > 1 else ""
    titles = {"ms": f"milliseconds ({on})", "peak_mib": "MiB at the peak"}
    left, bottom = (62, BOTTOM) if len(figures) > 1 else (8, SMALL_BOTTOM)
    width, height = PANELS[len(figures) - 1][1] + NAMES, bottom + BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="Time and memory of ranking losses against list length">',
        f"<style>{STYLE}</style>",
        f'<text x="{left}" y="20" class="title">Ranking losses on long lists</text>',
        f'<text x="{left}" y="39">{escape(subtitle)}. Dashed: other libraries.</text>',
    ]
    for edges, figure in zip(PANELS, figures, strict=False):
        parts += panel((*edges, bottom), titles[figure], lines(found["sweep"], figure))
    return "\n".join([*parts, "</svg>", ""])


def lines(sweep: list[dict[str, Any]], figure: str) -> dict[tuple[str, str], list[Point]]:
    """The points of each library's loss."""
    found: dict[tuple[str, str], list[Point]] = {}
    for row in sweep:
        value = row[figure]["median"] if figure == "ms" else row[figure]
        found.setdefault((row["who"], row["loss"]), []).append((row["items"], value))
    return {key: points for key, points in found.items() if len(points) > 1}


def panel(
    edges: tuple[int, int, int], title: str, curves: dict[tuple[str, str], list[Point]]
) -> Iterator[str]:
    """One pair of axes with its lines and their names."""
    left, right, bottom = edges
    values = [value for points in curves.values() for _, value in points if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def place(point: Point) -> Point:
        across = (math.log10(point[0]) - 2) / 4
        up = (math.log10(max(point[1], 10**low)) - low) / (high - low)
        return left + across * (right - left), bottom - up * (bottom - TOP)

    yield f'<text x="{left}" y="{TOP - 14}">{title}</text>'
    for power in range(low, high + 1):
        y = place((100, 10**power))[1]
        yield f'<path class="grid" d="M{left} {y:.1f}H{right}"/>'
        yield f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{number(power)}</text>'
    for power in range(2, 7):
        x = place((10**power, 1))[0]
        yield f'<text x="{x:.1f}" y="{bottom + 19}" text-anchor="middle">{10**power:,}</text>'
    middle = (left + right) / 2
    yield f'<text x="{middle}" y="{bottom + 40}" text-anchor="middle">items in the list</text>'
    losses = list(dict.fromkeys(loss for _, loss in curves))
    placed = {key: [place(point) for point in points] for key, points in curves.items()}
    heights = apart({key: points[-1][1] for key, points in placed.items()}, bottom)
    for key, points in placed.items():
        who, loss = key
        color = COLORS[losses.index(loss) % len(COLORS)]
        dashed = "" if who == "rankgrad" else " peer"
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        (x, y), there = points[-1], heights[key]
        name = loss if who == "rankgrad" else f"{loss}, {who}"
        yield f'<path class="line{dashed}" stroke="{color}" d="M{path}"/>'
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
        yield (
            f'<path class="lead" stroke="{color}"'
            f' d="M{x:.1f} {y:.1f}L{right + 8} {there:.1f}H{right + 14}"/>'
        )
        at = f'x="{right + 18}" y="{there + 4:.1f}"'
        yield f'<text {at} style="fill:{color}">{escape(name)}</text>'


def apart(wanted: dict[tuple[str, str], float], bottom: int) -> dict[tuple[str, str], float]:
    """Heights near the wanted ones, in the same order, none closer than a line of text."""
    ordered = sorted(wanted, key=lambda key: wanted[key])
    found: dict[tuple[str, str], float] = {}
    below = -math.inf
    for key in ordered:
        below = found[key] = max(wanted[key], below + GAP, TOP - 6)
    above = bottom + GAP
    for key in reversed(ordered):
        above = found[key] = min(found[key], above - GAP)
    return found


def number(power: int) -> str:
    """10 to the power, written out."""
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:.{-power}f}"


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(f"usage: {__doc__}")
    figures, picture = map(Path, sys.argv[1:3])
    picture.write_text(draw(json.loads(figures.read_text()), sys.argv[3:] or FIGURES))


if __name__ == "__main__":
    main()
