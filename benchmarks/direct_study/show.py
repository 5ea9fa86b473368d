"""Prints tables of all results on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from plan import LAMBDA, Task
from pool import read_results
from train import decode

from rankgrad.significance import paired_t_test

Group = tuple[str, str, int, str]


def groups(results: dict[str, Any]) -> dict[Group, dict[tuple[str, ...], list[dict[str, Any]]]]:
    """The runs of each group (data, recipe, budget, model) and each loss, one for each seed."""
    grouped: dict[Group, dict[tuple[str, ...], list[dict[str, Any]]]] = {}
    for key, result in results.items():
        task = Task.of(key)
        group = (task.data.key, task.recipe, task.budget, task.model)
        runs = grouped.setdefault(group, {}).setdefault(task.losses, [])
        runs.append({**result, "seed": task.seed})
    return grouped


def per_query(runs: Iterable[dict[str, Any]]) -> np.ndarray:
    """NDCG@10 of every test query, ``[queries]``: the mean over runs, one for each seed."""
    mean: np.ndarray = np.mean([decode(run["per_query"]) for run in runs], axis=0)
    return mean


def show(paths: Iterable[Path]) -> str:
    """Tables of all groups, with differences from lambdaloss@10 over the seeds that both have."""
    lines = []
    for (data, recipe, budget, model), losses in groups(read_results(paths)).items():
        lines.append(f"\n{data}, {recipe}, {budget or 'all'} lists, {model}")
        lines.append(f"{'':62s} seeds  vali   test   train   difference         p      s")
        for names, runs in sorted(losses.items(), key=lambda item: -_mean(item[1], "best_value")):
            values = [_mean(runs, name) for name in ("best_value", "test", "train")]
            cells = "  ".join(f"{value:.4f}" for value in values)
            seconds = _mean(runs, "seconds")
            versus = _versus(runs, losses.get((LAMBDA,), []))
            name = " then ".join(names)
            lines.append(f"{name:62s} {len(runs)}  {cells}  {versus}  {seconds:6.1f}")
    return "\n".join(lines)


def _mean(runs: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([run[name] for run in runs]))


def _versus(runs: list[dict[str, Any]], reference: list[dict[str, Any]]) -> str:
    """The mean difference on test queries over the seeds that both have, and its p-value."""
    seeds = {run["seed"] for run in runs} & {run["seed"] for run in reference}
    if not seeds or runs is reference:
        return " " * 24
    values, base = (
        per_query(run for run in group if run["seed"] in seeds) for group in (runs, reference)
    )
    return f"{np.mean(values - base):+.4f} ({len(seeds)})  {paired_t_test(values, base):9.2g}"
