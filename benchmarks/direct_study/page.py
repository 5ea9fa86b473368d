"""The page of the study: tables and figures of what was run, between the words of ``page.md``."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plan
import tiny
from data import Data
from figure import Panel, draw
from plan import BOUND, FIELD, FRESH, LAMBDA, LOGLOG, MEDIUM, SOFTMAX, WEB30K, WIDER, Task
from pool import read_results
from show import per_query

from rankgrad.data import synthetic
from rankgrad.metrics import evaluate
from rankgrad.significance import holm, paired_t_test

Runs = list[dict[str, Any]]
#: Losses of the study that the library has by another name.
NAMES = {LOGLOG: "ndcg_bound@10(penalty=loglog)", BOUND: "ndcg_bound@10"}
GROUPS: dict[str, Callable[[], Iterable[Task]]] = {
    "pairs' weights and derivatives, candidates (medium)": plan.field,
    "wider networks (medium)": plan.wider,
    "WEB30K's size": plan.web30k,
    "temperatures, standardized scores, continuation": plan.scales,
    "numbers of training lists": plan.budgets,
    "what of the bound does it": plan.parts,
    "noise, label density, list length": plan.worlds,
    "the second world": plan.second_world,
    "one loss of each kind": plan.grid,
    "learning rate, batch size, list truncation": plan.recipes,
    "seeds at medium size": plan.seeds,
    "few lists, wide network, no dropout": plan.capacity,
}


def write(results: Iterable[Path], solved: Path, path: Path, *, best: bool = True) -> None:
    """Write the page, and its figures beside it.

    Args:
        results: files or folders.
        solved: what :func:`tiny.run` wrote.
        path: of the page.
        best: whether to compute the best achievable NDCG, which takes a minute.
    """
    found = Found(read_results(results))
    tiny_results = json.loads(solved.read_text(encoding="utf-8"))
    words = string.Template((Path(__file__).parent / "page.md").read_text(encoding="utf-8"))
    text = words.substitute(
        best_medium=_best(MEDIUM, best),
        best_web30k=_best(WEB30K, best),
        medium=found.table(MEDIUM, "cosine", _specs(plan.field())),
        field=found.field(),
        web30k=found.table(WEB30K, "short", _specs(plan.web30k())),
        fresh=found.table(FRESH, "short", (LAMBDA, LOGLOG)),
        wider=found.wider(),
        wider_web30k=found.wider_web30k(),
        recipes=found.recipes(),
        temperatures=found.table(MEDIUM, "cosine", _temperatures(), reference="approx_ndcg"),
        continuation=found.continuation(),
        budgets=found.budgets(),
        diagnosis=found.diagnosis(),
        free="\n".join(tiny.free_table(tiny_results)),
        linear="\n".join(tiny.linear_table(tiny_results)),
        tiny_lists=tiny_results["lists"],
        tiny_problems=tiny_results["problems"],
        tiny_steps=tiny_results["steps"],
        coverage=found.coverage(),
        **found.numbers(),
    )
    path.write_text(text, encoding="utf-8")
    (path.parent / "direct_training.svg").write_text(found.figure(), encoding="utf-8")


def _specs(tasks: Iterable[Task]) -> list[str]:
    return list(dict.fromkeys(task.losses[0] for task in tasks if task.model == plan.MODEL))


def _temperatures() -> list[str]:
    return ["approx_ndcg", *(task.losses[0] for task in plan.scales() if len(task.losses) == 1)]


def _best(data: Data, wanted: bool) -> str:
    if not wanted:
        return "?"
    made = replace(data, features=len(synthetic.INFORMATIVE)).make("test")
    values = evaluate(
        synthetic.oracle(made), made.labels, offsets=made.offsets, metrics=["ndcg@10"]
    )
    return f"{values['ndcg@10']:.4f}"


def name(spec: str) -> str:
    """What the page calls a loss."""
    for own, public in NAMES.items():
        spec = public if spec == own else spec.replace(f'"{own}"', f'"{public}"')
    return f"`{spec}`"


def _row(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _mean(runs: Runs, key: str) -> str:
    return f"{np.mean([run[key] for run in runs]):.4f}"


class Found:
    """Results by task, and tables of them.

    Args:
        results: by task.
    """

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.results = results

    def runs(self, task: Task) -> Runs:
        """The runs of a task, whatever its seed."""
        keys = [replace(task, seed=seed).key for seed in range(3)]
        return [
            {**self.results[key], "seed": n} for n, key in enumerate(keys) if key in self.results
        ]

    def table(
        self, data: Data, recipe: str, specs: Sequence[str], *, reference: str = LAMBDA
    ) -> str:
        """Losses on the same data, by validation NDCG, compared with one of them."""
        rows = {spec: self.runs(Task(data, (spec,), recipe=recipe)) for spec in specs}
        return self.compare({name(spec): runs for spec, runs in rows.items()}, name(reference))

    def compare(self, rows: Mapping[str, Runs], reference: str) -> str:
        """Rows with runs, and what has none below."""
        there = {label: runs for label, runs in rows.items() if runs}
        there = dict(
            sorted(there.items(), key=lambda item: _mean(item[1], "best_value"), reverse=True)
        )
        versus = _versus(there, reference)
        lines = ["| | seeds | validation | test | training | difference | 95 % | p |"]
        lines.append("|:--|--:|--:|--:|--:|--:|:-:|--:|")
        for label, runs in there.items():
            values = [_mean(runs, key) for key in ("best_value", "test", "train")]
            lines.append(_row([label, len(runs), *values, *versus.get(label, ("", "", ""))]))
        missing = [label for label, runs in rows.items() if not runs]
        if missing:
            lines += ["", f"Planned and not run: {', '.join(missing)}."]
        return "\n".join(lines)

    def field(self) -> str:
        """Weights by derivatives: test and training NDCG."""
        lines = [
            "| weight of a pair | logistic derivative | saturating derivative | difference | p |"
        ]
        lines.append("|:--|--:|--:|--:|--:|")
        words = {
            "none": "none (RankNet)",
            "tangent": "tangent of the discount (ApproxNDCG)",
            "swap": "change of NDCG when swapped (LambdaRank)",
            "distance": "distance of ranks (LambdaLoss)",
        }
        cells = []
        for weight, label in words.items():
            pair = [
                self.runs(Task(MEDIUM, (FIELD[weight, slope],)))
                for slope in ("logistic", "sigmoid")
            ]
            if all(pair):
                one, two = (per_query(runs) for runs in pair)
                shown = [f"{_mean(runs, 'test')} ({_mean(runs, 'train')})" for runs in pair]
                cells.append(
                    ([label, *shown, f"{np.mean(two - one):+.4f}"], paired_t_test(two, one))
                )
        corrected = holm([p for _, p in cells])
        return "\n".join(
            [*lines, *(_row([*c, _p(p)]) for (c, _), p in zip(cells, corrected, strict=True))]
        )

    def wider(self) -> str:
        """The networks of which there is a run."""
        parts = []
        for label, model in WIDER.items():
            specs = (LAMBDA, BOUND, LOGLOG, "approx_ndcg")
            rows = {name(spec): self.runs(Task(MEDIUM, (spec,), model=model)) for spec in specs}
            if any(rows.values()):
                parts.append(f"{label}:\n\n{self.compare(rows, name(LAMBDA))}")
        return "\n\n".join(parts)

    def wider_web30k(self) -> str:
        """A wider network at WEB30K's size."""
        task = Task(WEB30K, (LAMBDA,), recipe="short", model=WIDER["hidden 256, 128"])
        specs = (LAMBDA, BOUND, LOGLOG)
        rows = {name(spec): self.runs(replace(task, losses=(spec,))) for spec in specs}
        return self.compare(rows, name(LAMBDA))

    def recipes(self) -> str:
        """Learning rate, batch size, list truncation: test NDCG by loss."""
        specs = (LAMBDA, BOUND, "approx_ndcg")
        lines = [_row(["", *map(name, specs)]), "|:--" + "|--:" * len(specs) + "|"]
        for recipe in ("cosine", *dict.fromkeys(task.recipe for task in plan.recipes())):
            runs = [self.runs(Task(MEDIUM, (spec,), recipe=recipe)) for spec in specs]
            label = "rate 3e-3, batch 32" if recipe == "cosine" else recipe
            lines.append(_row([label, *(_mean(own, "test") if own else "not run" for own in runs)]))
        return "\n".join(lines)

    def continuation(self) -> str:
        """One loss for ten epochs, then another from there for ten."""
        tasks = [task for task in plan.scales() if len(task.losses) == 2]
        rows = {", then ".join(map(name, task.losses)): self.runs(task) for task in tasks}
        return self.compare(rows, f"{name(BOUND)}, then {name(LAMBDA)}")

    def budgets(self) -> str:
        """By the number of training lists, those that have more than one loss."""
        parts = []
        for budget in dict.fromkeys(task.budget for task in plan.budgets()):
            own = [task for task in plan.budgets() if task.budget == budget]
            rows = {name(task.losses[0]): self.runs(task) for task in own}
            if sum(map(bool, rows.values())) > 1:
                parts.append(f"{budget:,} lists:\n\n{self.compare(rows, name(LAMBDA))}")
        return "\n\n".join(parts)

    def diagnosis(self) -> str:
        """Where the gradient goes, after the last epoch."""
        lines = [
            "| | deviation of scores | gradient on deep mistakes | on the first ten | curvature |"
        ]
        lines.append("|:--|--:|--:|--:|--:|")
        for spec in _specs(plan.field()):
            for run in self.runs(Task(MEDIUM, (spec,)))[:1]:
                last = run["diagnosis"][-1]
                cells = [f"{last['spread']:.1f}", f"{last['on_mistakes']:.1%}"]
                cells += [f"{last['on_top']:.1%}", f"{last['curvature']:+.2f}"]
                lines.append(_row([name(spec), *cells]))
        return "\n".join(lines)

    def figure(self) -> str:
        """Deviation of scores and the share of the gradient on deep mistakes, along training."""
        specs = (LAMBDA, BOUND, LOGLOG, SOFTMAX, "ranknet", "smoothi_ndcg@10", "approx_ndcg")
        specs = (*specs, FIELD["swap", "sigmoid"])
        runs = {spec: self.runs(Task(MEDIUM, (spec,)))[:1] for spec in specs}

        def curves(key: str, factor: float = 1.0) -> dict[str, list[tuple[float, float]]]:
            return {
                name(spec).strip("`"): [(d["epoch"], factor * d[key]) for d in own[0]["diagnosis"]]
                for spec, own in runs.items()
                if own
            }

        epochs = (1, 5, 10, 15, 20)
        panels = (
            Panel("deviation of scores in a list", curves("spread"), (0.5, 1, 2, 5, 10, 20, 50),
                  epochs, "epoch", logarithmic=True),
            Panel("% of gradient on deep mistakes", curves("on_mistakes", 100), (0, 20, 40, 60, 80),
                  epochs, "epoch"),
        )  # fmt: skip
        return draw(panels, "Deviation of scores and share of the gradient on deep mistakes")

    def numbers(self) -> dict[str, str]:
        """What the text says about bias and temperature."""
        own = {}
        first, *_, last = self.runs(Task(MEDIUM, ("smoothi_ndcg@10",)))[0]["diagnosis"]
        for suffix, line in (("_first", first), ("", last)):
            own[f"smoothi_relaxed{suffix}"] = f"{1 - line['value']:.3f}"
            own[f"smoothi_exact{suffix}"] = f"{line['ndcg']:.3f}"
        for key, alpha in (("1", 1.0), ("03", 0.3), ("01", 0.1)):
            spec = "approx_ndcg" if alpha == 1 else f"approx_ndcg(alpha={alpha})"
            spread = self.runs(Task(MEDIUM, (spec,)))[0]["diagnosis"][-1]["spread"]
            own |= {f"spread_{key}": f"{spread:.0f}", f"scaled_{key}": f"{alpha * spread:.0f}"}
        return own

    def coverage(self) -> str:
        """How much of each group of the plan there is."""
        lines = ["| | planned | run |", "|:--|--:|--:|"]
        for label, tasks in GROUPS.items():
            own = list(tasks())
            lines.append(_row([label, len(own), sum(task.key in self.results for task in own)]))
        return "\n".join(lines)


def _versus(rows: Mapping[str, Runs], reference: str) -> dict[str, tuple[str, str, str]]:
    """Difference from the reference over the seeds that both have, its interval, Holm's p-value."""
    if reference not in rows:
        return {}
    found, tests = {}, []
    for label, runs in rows.items():
        seeds = {run["seed"] for run in runs} & {run["seed"] for run in rows[reference]}
        if label == reference or not seeds:
            continue
        one, two = (
            per_query(run for run in each if run["seed"] in seeds)
            for each in (runs, rows[reference])
        )
        mean, apart = np.mean(one - two), np.std(one - two, ddof=1)
        half = 1.96 * apart / len(one) ** 0.5
        few = f" ({len(seeds)})" if len(seeds) < len(runs) else ""
        found[label] = (f"{mean:+.4f}{few}", f"{mean - half:+.4f} to {mean + half:+.4f}")
        tests.append(paired_t_test(one, two))
    corrected = holm(tests) if tests else []
    return {label: (*own, _p(p)) for (label, own), p in zip(found.items(), corrected, strict=True)}


def _p(value: float) -> str:
    return f"**{value:.2g}**" if value < 0.05 else f"{value:.2g}"
