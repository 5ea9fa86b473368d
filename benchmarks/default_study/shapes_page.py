"""The page of data and metrics that the rules were not made on: tables in ``shapes.md``."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dot_plot
import numpy as np
from results_page import _p, _row
from shapes import CASES, LIGHTGBM, LONGER, SMALL, WITH_COLUMNS, WORLDS, Task
from train import decode
from trees import read_trees

from rankgrad.significance import holm, paired_t_test

Runs = list[Mapping[str, Any]]
_KNOWN = (SMALL, LIGHTGBM, WITH_COLUMNS, LONGER)  # what is no loss
_NDCG = "ndcg@10"
_TITLE = "Test NDCG@10 less that of the better LightGBM"


def write(results: Path, path: Path) -> None:
    """Write the page and its figure.

    Args:
        results: the file that :func:`shapes.run` wrote.
        path: of the page.
    """
    study = ShapeResults(read_trees(results))
    template = (Path(__file__).parent / "shapes.md").read_text(encoding="utf-8")
    text = string.Template(template).substitute(study.tables())
    path.write_text(text, encoding="utf-8")
    path.with_suffix(".svg").write_text(study.figure(), encoding="utf-8")


class ShapeResults:
    """The results, and the tables of the page.

    Args:
        results: by the key of the task.
    """

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.runs: dict[tuple[str, str, int], dict[str, Runs]] = {}  # by case, world and queries
        for key, run in results.items():
            task = Task(**json.loads(key))
            named = self.runs.setdefault((task.case, task.world, task.queries), {})
            named.setdefault(task.name, []).append(run)

    def tables(self) -> dict[str, str]:
        """All tables by their names in the template."""
        found = {}
        for (case, world, queries), runs in self.runs.items():
            name = "_".join(["case", *case.split(), world, str(queries)])
            if LIGHTGBM in CASES[case].names:
                found[name] = compared(runs, CASES[case].default)
            else:
                found[name] = by_metric(runs, CASES[case].metrics, "softmax")
        long = self.runs["300 items or more", WORLDS[0], 0]
        losses = {name: runs for name, runs in long.items() if name not in _KNOWN}
        found["long_metrics"] = by_metric(losses, CASES["300 items or more"].metrics, "softmax")
        return found

    def figure(self) -> str:
        """NDCG@10 less that of the better LightGBM, by case."""
        rows = {}
        for case in CASES:
            runs = self.runs.get((case, WORLDS[0], 0), {})
            if LIGHTGBM not in runs:
                continue
            means = {name: values_of(own, _NDCG).mean() for name, own in runs.items()}
            best = max(means.pop(LIGHTGBM), means.pop(WITH_COLUMNS, 0.0))
            means["the default"] = means.pop(CASES[case].default)
            means = {name: means[name] for name in ("the default", SMALL)}
            rows[f"lists of {case}"] = {name.strip("`"): m - best for name, m in means.items()}
        ticks = (-0.04, -0.03, -0.02, -0.01, 0.0, 0.01, 0.02, 0.03)
        return dot_plot.draw(rows, ticks, _TITLE, "the default")


def compared(runs: Mapping[str, Runs], default: str) -> str:
    """The default beside others by NDCG@10, and by the expected one."""
    found = [_differences(runs, default, metric) for metric in (_NDCG, None)]
    heads = ["", _NDCG, "difference", "p", "expected", "difference", "p"]
    lines = [_row(heads), "|:--" + "|--:" * 6 + "|"]
    for name in sorted(runs, key=lambda name: -values_of(runs[name], None).mean()):
        cells = [f"the default, {_label(name)}" if name == default else _label(name)]
        for metric, differences in zip((_NDCG, None), found, strict=True):
            cells.append(f"{values_of(runs[name], metric).mean():.4f}")
            difference, p = differences.get(name, (0.0, 1.0))
            cells += ["", ""] if name == default else [f"{difference:+.4f}", _p(p)]
        lines.append(_row(cells))
    return "\n".join(lines)


def by_metric(runs: Mapping[str, Runs], metrics: Sequence[str], reference: str) -> str:
    """Losses by several metrics, each with its difference from one of them."""
    columns: list[str | None] = [*metrics]
    if all("expected" in run for own in runs.values() for run in own):
        columns.append(None)
    heads = ("expected" if column is None else f"`{column}`" for column in columns)
    lines = [_row(["", *heads]), "|:--" + "|--:" * len(columns) + "|"]
    cells: dict[str, list[str]] = {name: [_label(name)] for name in runs}
    for metric in columns:
        differences = _differences(runs, reference, metric)
        for name, own in runs.items():
            cell = f"{values_of(own, metric).mean():.4f}"
            if name in differences:
                difference, p = differences[name]
                shown = f"{difference:+.4f}"
                cell += f" ({f'**{shown}**' if p < 0.05 else shown})"
            cells[name].append(cell)
    order = sorted(runs, key=lambda name: -values_of(runs[name], metrics[0]).mean())
    return "\n".join([*lines, *(_row(cells[name]) for name in order)])


def _differences(
    runs: Mapping[str, Runs], reference: str, metric: str | None
) -> dict[str, tuple[float, float]]:
    """Differences of all others from one of the runs, and their p after Holm's correction.

    Args:
        runs: by name.
        reference: the name of that one.
        metric: its values are compared; None for the expected NDCG@10.
    """
    found = {}
    for name in (name for name in runs if name != reference):
        count = min(len(runs[name]), len(runs[reference]))  # seeds from 0 on
        pair = [values_of(runs[each][:count], metric) for each in (name, reference)]
        found[name] = float(np.mean(pair[0] - pair[1])), paired_t_test(*pair)
    corrected = holm([p for _, p in found.values()])
    return {name: (own[0], p) for (name, own), p in zip(found.items(), corrected, strict=True)}


def values_of(runs: Runs, metric: str | None) -> np.ndarray:
    """Values by test list, the mean over seeds; None for the expected NDCG@10."""
    if metric is None:
        return 1 - np.mean([decode(run["expected_per_query"]) for run in runs], 0)
    return np.mean([decode(run["per_query"][metric]) for run in runs], 0)


def _label(name: str) -> str:
    return name if name in _KNOWN else f"`{name}`"
