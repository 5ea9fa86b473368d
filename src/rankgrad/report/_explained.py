"""Why items stand above others, from the explanations in run folders, small enough for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankgrad import _files
from rankgrad.explanations import Explanation
from rankgrad.explanations._explanation import FOLDER, pairs
from rankgrad.results.runs import Run

SHOWN = 6  # features of a pair
_ENTRIES = 8  # with explanations, at most


class Explained:
    """The explanations of entries' runs by entry and fold.

    Args:
        runs: by entry and number of the fold.
        part: whose explanations.
    """

    def __init__(self, runs: Mapping[tuple[int, int], Run], part: str) -> None:
        self.explanations: dict[tuple[int, int], Explanation] = {}
        self.problems: list[str] = []
        for key, run in runs.items():
            if len({c for c, _ in [*self.explanations, key]}) > _ENTRIES:
                break
            explanation = self._read(run, part)
            if explanation is not None:
                self.explanations[key] = explanation

    def _read(self, run: Run, part: str) -> Explanation | None:
        if not _files.readable_path(Path(run.path) / FOLDER / part).is_dir():
            return None
        try:
            explanation = Explanation.load(run.path, part)
        except (OSError, ValueError) as error:
            self.problems.append(f"The explanation in {run.path} cannot be read: {error}")
            return None
        if run.evaluated is None or explanation.checksum != run.evaluated.checksum:
            self.problems.append(f"The explanation in {run.path} is of other data.")
            return None
        return explanation

    def rows(self, starts: Sequence[int]) -> list[int]:
        """The queries that are explained, as rows of the report.

        Args:
            starts: the first row of each fold.
        """
        rows = {
            int(starts[p] + at) for (_, p), each in self.explanations.items() for at in each.lists
        }
        return sorted(rows)

    def packed(self, chosen: Sequence[int], starts: Sequence[int]) -> dict[str, Any]:
        """What the page shows of the chosen rows."""
        places = {row: q for q, row in enumerate(chosen)}
        features: dict[str, list[str]] = {}
        queries: dict[str, dict[str, Any]] = {}
        for (c, p), explanation in self.explanations.items():
            features[str(c)] = list(explanation.features)
            of_entry = queries.setdefault(str(c), {})
            for at, index in enumerate(explanation.lists):
                row = int(starts[p] + index)
                if row in places:
                    of_entry[str(places[row])] = _query(explanation, at)
        return {"features": features, "queries": queries, "problems": self.problems}


def _query(explanation: Explanation, at: int) -> dict[str, Any]:
    """The pairs of a query: ranks, difference, the part of no feature, and the largest parts."""
    compared: list[list[Any]] = []
    used: set[int] = set()
    for p, (upper, lower) in enumerate(pairs(explanation.items.shape[1])):
        if np.isnan(explanation.differences[at, p]):
            continue
        values = explanation.attributions[at, p]
        first = np.argsort(-np.abs(values), kind="stable")[:SHOWN]
        parts = [(int(f), _short(values[f])) for f in first if values[f] != 0]
        used.update(f for f, _ in parts)
        difference, baseline = explanation.differences[at, p], explanation.baselines[at, p]
        compared.append([upper, lower, _short(difference), _short(baseline), parts])
    return {
        "items": [int(item) + 1 for item in explanation.items[at] if item >= 0],
        "pairs": compared,
        "values": {str(f): [_short(v) for v in explanation.values[at, :, f]] for f in sorted(used)},
    }


def _short(value: Any) -> float | None:
    return None if np.isnan(value) else float(f"{float(value):.5g}")
