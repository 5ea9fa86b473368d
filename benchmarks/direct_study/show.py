"""Tables of the results, for a terminal and for the page."""

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
    """Runs by data, recipe, budget and model, and there by loss: one for each seed."""
    found: dict[Group, dict[tuple[str, ...], list[dict[str, Any]]]] = {}
    for key, own in results.items():
        task = Task.of(key)
        group = (task.data.key, task.recipe, task.budget, task.model)
        runs = found.setdefault(group, {}).setdefault(task.losses, [])
        runs.append({**own, "seed": task.seed})
    return found


def per_query(runs: Iterable[dict[str, Any]]) -> np.ndarray:
    """NDCG@10 of every test query, the mean of the seeds."""
    mean: np.ndarray = np.mean([decode(run["per_query"]) for run in runs], axis=0)
    return mean


def show(paths: Iterable[Path]) -> str:
    """All groups, with differences from lambdaloss@10 where it has a run of the same seeds."""
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
    """The difference in the mean of test queries over the seeds that both have, and its p-value."""
    seeds = {run["seed"] for run in runs} & {run["seed"] for run in reference}
    own, other = ([run for run in each if run["seed"] in seeds] for each in (runs, reference))
    if not seeds or {id(run) for run in own} == {id(run) for run in other}:
        return " " * 24
    one, two = per_query(own), per_query(other)
    return f"{np.mean(one - two):+.4f} ({len(seeds)})  {paired_t_test(one, two):9.2g}"
