"""Draw the picture of the page on Sinkhorn scaling: ``python tools/docs/pictures.py``.

It is written to ``docs/assets``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rankgrad.sorting import NeuralSort

ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"
ITEMS, TILE = 48, 6  # the size of the matrix, and of a tile of it
CELL = 4  # the pixels of an entry of the matrix
SMALLEST = 2.0**-24  # in float32, what is smaller than this part of a sum does not change it
_STYLE = (
    "<style>text { font: 12px system-ui, sans-serif; fill: #24292f; } .cell { fill: #1f5fbf; } "
    ".skip { fill: #d0d7de; } .tile { fill: none; stroke: #8c959f; stroke-width: 0.7; } "
    "@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .cell { fill: #6cb0ff; } "
    ".skip { fill: #30363d; } .tile { stroke: #6e7681; } }</style>"
)


def sinkhorn() -> str:
    """NeuralSort's matrix, which tiles of it are computed, and the matrix after scaling."""
    torch.manual_seed(3)
    scores = torch.randn(ITEMS, dtype=torch.float64).sort(descending=True).values
    matrix = NeuralSort(temperature=0.7)(scores)
    scaled, u, v = matrix.clone(), torch.ones(ITEMS), torch.ones(ITEMS)
    for _ in range(30):
        u = 1 / (matrix @ v.double())
        v = 1 / (matrix.T @ u)
        scaled = u[:, None] * matrix * v
    side, gap, top = ITEMS * CELL, 24, 44
    parts = [
        _cells(matrix, 0, top),
        _tiles(matrix, side + gap, top),
        _cells(scaled, 2 * (side + gap), top),
    ]
    columns = matrix.sum(0)
    titles = (
        ("rows sum to one", f"columns to {columns.min():.2f} … {columns.max():.2f}"),
        ("tiles that are computed", "gray: below float32's precision"),
        ("diag(u) K diag(v)", "rows and columns sum to one"),
    )
    captions = "".join(
        f'<text x="{panel * (side + gap)}" y="14" font-weight="600">{first}</text>'
        f'<text x="{panel * (side + gap)}" y="32">{second}</text>'
        for panel, (first, second) in enumerate(titles)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {3 * side + 2 * gap} {top + side}" '
        f'role="img" aria-label="NeuralSort before and after Sinkhorn scaling">{_STYLE}{captions}'
        + "".join(parts)
        + "</svg>\n"
    )


def _cells(matrix: Tensor, left: float, top: float) -> str:
    shades = (matrix / matrix.max()).sqrt()  # the root makes small entries visible
    return "".join(
        f'<rect class="cell" x="{left + j * CELL}" y="{top + i * CELL}" width="{CELL}" '
        f'height="{CELL}" opacity="{shades[i, j]:.2f}"/>'
        for i in range(ITEMS)
        for j in range(ITEMS)
        if shades[i, j] > 0.05
    )


def _tiles(matrix: Tensor, left: float, top: float) -> str:
    rectangles = []
    for i in range(0, ITEMS, TILE):
        for j in range(0, ITEMS, TILE):
            block = matrix[i : i + TILE, j : j + TILE]
            is_computed = bool((block > SMALLEST * matrix[i : i + TILE].amax(1, True)).any())
            rectangles.append(
                f'<rect class="{"cell" if is_computed else "skip"}" x="{left + j * CELL}" '
                f'y="{top + i * CELL}" width="{TILE * CELL}" height="{TILE * CELL}" '
                f'opacity="{0.55 if is_computed else 0.6}"/>'
                f'<rect class="tile" x="{left + j * CELL}" y="{top + i * CELL}" '
                f'width="{TILE * CELL}" height="{TILE * CELL}"/>'
            )
    return "".join(rectangles)


if __name__ == "__main__":
    (ASSETS / "sinkhorn.svg").write_text(sinkhorn())
    print(ASSETS / "sinkhorn.svg")
