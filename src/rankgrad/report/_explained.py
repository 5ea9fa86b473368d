"""Why items stand above others: explanations from run folders, reduced for the report's page.

``rankgrad explain --save`` writes the explanations; the module ``_per_query`` calls this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankgrad import _files
from rankgrad.explanations import Explanation
from rankgrad.explanations._explanation import FOLDER, pairs
from rankgrad.results.runs import Run

_FEATURES = 6  # features that are shown for a pair: those with the largest attributions
_ENTRIES = 8  # the most entries whose explanations are shown


class Explained:
    """The explanations of runs.

    Queries are numbered in three ways: by their row among all queries of the report, fold after
    fold; by their list in the data of their fold; and by their place among the queries on the page.

    Args:
        runs: the runs by the indices of their entry and fold.
        part: the part of the data that is explained, such as ``test``.

    Attributes:
        explanations: those that were found and fit the data, by the same indices.
        problems: sentences on those that were found and cannot be used.
    """

    def __init__(self, runs: Mapping[tuple[int, int], Run], part: str) -> None:
        self.explanations: dict[tuple[int, int], Explanation] = {}
        self.problems: list[str] = []
        for key, run in runs.items():
            if len({entry for entry, _ in [*self.explanations, key]}) > _ENTRIES:
                break
            explanation = self._read(run, part)
            if explanation is not None:
                self.explanations[key] = explanation

    def _read(self, run: Run, part: str) -> Explanation | None:
        """The explanation of a run; None if it has none, or one that cannot be used."""
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
        """The rows of explained queries among all queries of the report.

        Args:
            starts: the first row of each fold.
        """
        rows: set[int] = set()
        for (_, fold), explanation in self.explanations.items():
            rows.update(int(starts[fold] + index) for index in explanation.lists)
        return sorted(rows)

    def to_json(self, shown_rows: Sequence[int], starts: Sequence[int]) -> dict[str, Any]:
        """The explanations of the queries that the page shows.

        Args:
            shown_rows: the rows of the queries on the page, in its order.
            starts: the first row of each fold.

        Returns:
            ``features``, the names of the features by entry; ``queries``, by entry and place on the
            page, what :func:`_query` returns; and ``problems``.
        """
        place_of_row = {row: place for place, row in enumerate(shown_rows)}
        features: dict[str, list[str]] = {}
        queries: dict[str, dict[str, Any]] = {}
        for (entry, fold), explanation in self.explanations.items():
            features[str(entry)] = list(explanation.features)
            of_entry = queries.setdefault(str(entry), {})
            for q, index in enumerate(explanation.lists):
                row = int(starts[fold] + index)
                if row in place_of_row:
                    of_entry[str(place_of_row[row])] = _query(explanation, q)
        return {"features": features, "queries": queries, "problems": self.problems}


def _query(explanation: Explanation, q: int) -> dict[str, Any]:
    """The q-th explained query, as JSON values.

    Returns:
        ``items``, the first items as ranked, counted from 1 in the order of the data. ``pairs``, a
        list each: upper rank and lower rank (from 0), difference of scores, the part of the
        difference that no feature explains, and the features with the largest attributions, as
        index and attribution. ``values``, by index, the raw values of the features that a pair
        shows, one for each item.
    """
    explained_pairs: list[list[Any]] = []
    shown_features: set[int] = set()
    for p, (upper, lower) in enumerate(pairs(explanation.items.shape[1])):
        if np.isnan(explanation.differences[q, p]):
            continue
        attributions = explanation.attributions[q, p]
        largest = np.argsort(-np.abs(attributions), kind="stable")[:_FEATURES]
        top = [(int(f), _round(attributions[f])) for f in largest if attributions[f] != 0]
        shown_features.update(f for f, _ in top)
        difference, baseline = explanation.differences[q, p], explanation.baselines[q, p]
        explained_pairs.append([upper, lower, _round(difference), _round(baseline), top])
    values = explanation.values[q]
    return {
        "items": [int(item) + 1 for item in explanation.items[q] if item >= 0],
        "pairs": explained_pairs,
        "values": {
            str(f): [_round(value) for value in values[:, f]] for f in sorted(shown_features)
        },
    }


def _round(value: Any) -> float | None:
    """A number for JSON, rounded to five significant digits; NaN becomes null."""
    return None if np.isnan(value) else float(f"{float(value):.5g}")
