"""Writes the page of the study: the template ``page.md`` filled with tables and figures."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dot_plot
import efficiency
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
POINTWISE = next(iter(plan.second_world())).data
#: The names in the library of losses that it took over from the study.
NAMES = {LOGLOG: "ndcg_bound@10(penalty=loglog)", BOUND: "ndcg_bound@10"}
_STUDY_NAMES = {public: study_name for study_name, public in NAMES.items()}
#: The groups of the plan, for the table of what was run.
GROUPS: dict[str, Callable[[], Iterable[Task]]] = {
    "pairs' weights and derivatives, candidates (medium)": plan.field,
    "wider networks (medium)": plan.wider,
    "WEB30K's size": plan.web30k,
    "likelihoods of label levels": plan.levels,
    "temperatures, standardized scores, continuation": plan.scales,
    "numbers of training lists": plan.budgets,
    "what of the bound does it": plan.parts,
    "two temperatures": plan.two_temperatures,
    "relaxations of NDCG@10, for their bias": plan.cutoffs,
    "noise, label density, list length": plan.worlds,
    "long lists": plan.long_lists,
    "the second world": plan.second_world,
    "one loss of each kind": plan.grid,
    "learning rate, batch size, list truncation": plan.recipes,
    "seeds at medium size": plan.seeds,
    "few lists, wide network, no dropout": plan.capacity,
}


def write(
    results: Iterable[Path], solved: Path, measured: Path, path: Path, *, best: bool = True
) -> None:
    """Write the page, and its figures beside it.

    Args:
        results: files or folders of results.
        solved: the file that :func:`tiny.run` wrote.
        measured: the file that :func:`efficiency.run` wrote.
        path: the page to write.
        best: whether to compute the best achievable NDCG, which takes a minute.
    """
    study = StudyResults(read_results(results))
    tiny_results = json.loads(solved.read_text(encoding="utf-8"))
    template = string.Template((Path(__file__).parent / "page.md").read_text(encoding="utf-8"))
    text = template.substitute(
        best_medium=_best(MEDIUM, best),
        best_web30k=_best(WEB30K, best),
        medium=study.table(MEDIUM, "cosine", _specs(plan.field())),
        field=study.field(),
        web30k=study.table(WEB30K, "short", _specs(plan.web30k())),
        fresh=study.table(FRESH, "short", (LAMBDA, LOGLOG)),
        wider=study.wider(),
        wider_web30k=study.wider_web30k(),
        recipes=study.recipes(),
        temperatures=study.table(MEDIUM, "cosine", _scaled("approx"), reference="approx_ndcg"),
        neural_scales=study.table(MEDIUM, "cosine", _scaled("neural"), reference="neural_ndcg"),
        continuation=study.continuation(),
        two_temperatures=study.two_temperatures(),
        bias=study.bias(),
        few_lists=study.few_lists(),
        budgets=study.budgets(),
        long_lists=study.table(plan.LONG, "cosine", _specs(plan.long_lists())),
        second_world=study.table(POINTWISE, "cosine", _specs(plan.second_world())),
        worlds=study.worlds(),
        diagnosis=study.diagnosis(),
        free="\n".join(tiny.free_table(tiny_results)),
        linear="\n".join(tiny.linear_table(tiny_results)),
        tiny_lists=tiny_results["lists"],
        tiny_problems=tiny_results["problems"],
        tiny_steps=tiny_results["steps"],
        efficiency=study.efficiency(json.loads(measured.read_text(encoding="utf-8"))),
        levels=study.table(MEDIUM, "cosine", [LAMBDA, SOFTMAX, *_specs(plan.levels())]),
        levels_medium=study.levels_with_ties("medium"),
        levels_small=study.levels_with_ties("small"),
        coverage=study.coverage(),
        **study.numbers(),
    )
    path.write_text(text, encoding="utf-8")
    for name_of_figure, figure in (
        ("direct", study.overview()),
        ("direct_training", study.figure()),
    ):
        (path.parent / f"{name_of_figure}.svg").write_text(figure, encoding="utf-8")


def _specs(tasks: Iterable[Task]) -> list[str]:
    """The losses of tasks with the usual network, each once."""
    return list(dict.fromkeys(task.losses[0] for task in tasks if task.model == plan.MODEL))


def _settings() -> dict[str, Task]:
    """LambdaLoss on all data of the study with this network, by the words of the figure."""
    own = Task(MEDIUM, (LAMBDA,))
    found = {"300 lists": replace(own, data=WEB30K, recipe="long", budget=300)}
    found[f"{MEDIUM.lists[0]:,} lists"] = own
    found[f"{WEB30K.lists[0]:,} lists"] = replace(own, data=WEB30K, recipe="short")
    changed = {
        "the second world": POINTWISE,
        "little noise of judges": replace(MEDIUM, noise=0.3),
        "twice the noise": replace(MEDIUM, noise=2.0),
        "few relevant items": replace(MEDIUM, shift=-2.0),
        "many relevant items": replace(MEDIUM, shift=1.5),
        "20 items in a list": replace(MEDIUM, length=20),
        "200 items or more": plan.LONG,
    }
    return found | {label: replace(own, data=data) for label, data in changed.items()}


def _scaled(family: str) -> list[str]:
    """A relaxed NDCG, the forms of it with other temperatures or scores, and LambdaLoss."""
    specs = [task.losses[0] for task in plan.scales() if len(task.losses) == 1]
    specs = [spec for spec in specs if LAMBDA not in spec and "smoothi" not in spec]
    own = [spec for spec in specs if ("neural" in spec) == (family == "neural")]
    return [f"{family}_ndcg", *own, LAMBDA]


def _best(data: Data, compute: bool) -> str:
    """The best achievable NDCG@10 on test lists, by the simulator; ``?`` if not computed."""
    if not compute:
        return "?"
    test = replace(data, features=len(synthetic.INFORMATIVE)).make("test")
    values = evaluate(
        synthetic.oracle(test), test.labels, offsets=test.offsets, metrics=["ndcg@10"]
    )
    return f"{values['ndcg@10']:.4f}"


def name(spec: str) -> str:
    """The name of a loss on the page; names within specs of mixtures are replaced, too."""
    for study_name, public in NAMES.items():
        spec = public if spec == study_name else spec.replace(f'"{study_name}"', f'"{public}"')
    return f"`{spec}`"


def _row(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _mean(runs: Runs, key: str) -> str:
    return f"{np.mean([run[key] for run in runs]):.4f}"


class StudyResults:
    """The results of the study, and the tables and figures of the page.

    Args:
        results: by the key of the task.
    """

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.results = results

    def runs(self, task: Task) -> Runs:
        """The runs of a task with the seeds 0, 1 and 2, as far as there are results."""
        keys = {seed: replace(task, seed=seed).key for seed in range(3)}
        return [
            {**self.results[key], "seed": seed} for seed, key in keys.items() if key in self.results
        ]

    def table(
        self, data: Data, recipe: str, specs: Sequence[str], *, reference: str = LAMBDA
    ) -> str:
        """Losses on the same data, by validation NDCG, compared with one of them."""
        rows = {spec: self.runs(Task(data, (spec,), recipe=recipe)) for spec in specs}
        return self.compare({name(spec): runs for spec, runs in rows.items()}, name(reference))

    def compare(self, rows: Mapping[str, Runs], reference: str) -> str:
        """A table of the rows that have runs, best first, tested against one of them."""
        run_rows = [(label, runs) for label, runs in rows.items() if runs]
        run_rows.sort(key=lambda row: _mean(row[1], "best_value"), reverse=True)
        versus = _versus(dict(run_rows), reference)
        lines = ["| | seeds | validation | test | training | difference | 95 % | p |"]
        lines.append("|:--|--:|--:|--:|--:|--:|:-:|--:|")
        for label, runs in run_rows:
            values = [_mean(runs, key) for key in ("best_value", "test", "train")]
            lines.append(_row([label, len(runs), *values, *versus.get(label, ("", "", ""))]))
        missing = [label for label, runs in rows.items() if not runs]
        if missing:
            lines += ["", f"Planned and not run: {', '.join(missing)}."]
        return "\n".join(lines)

    def field(self) -> str:
        """A table of weights by surrogates: test and training NDCG."""
        lines = [
            "| weight of a pair | logistic derivative | saturating derivative | difference | p |"
        ]
        lines.append("|:--|--:|--:|--:|--:|")
        labels = {
            "none": "none (RankNet)",
            "tangent": "tangent of the discount (ApproxNDCG)",
            "swap": "change of NDCG when swapped (LambdaRank)",
            "distance": "distance of ranks (LambdaLoss)",
        }
        rows, p_values = [], []
        for weight, label in labels.items():
            pair = [
                self.runs(Task(MEDIUM, (FIELD[weight, surrogate],)))
                for surrogate in ("logistic", "sigmoid")
            ]
            if all(pair):
                logistic, sigmoid = (per_query(runs) for runs in pair)
                means = [f"{_mean(runs, 'test')} ({_mean(runs, 'train')})" for runs in pair]
                rows.append([label, *means, f"{np.mean(sigmoid - logistic):+.4f}"])
                p_values.append(paired_t_test(sigmoid, logistic))
        for row, p in zip(rows, holm(p_values), strict=True):
            lines.append(_row([*row, _p(p)]))
        return "\n".join(lines)

    def levels_with_ties(self, size: str) -> str:
        """A table of likelihoods with the default network of a CPU."""
        rows = {name(t.losses[0]): self.runs(t) for t in plan.levels_with_ties(size)}
        return self.compare(rows, name(SOFTMAX))

    def wider(self) -> str:
        """Tables of the wider networks that have runs."""
        parts = []
        for label, model in WIDER.items():
            specs = (LAMBDA, BOUND, LOGLOG, "approx_ndcg")
            rows = {name(spec): self.runs(Task(MEDIUM, (spec,), model=model)) for spec in specs}
            if any(rows.values()):
                parts.append(f"{label}:\n\n{self.compare(rows, name(LAMBDA))}")
        return "\n\n".join(parts)

    def wider_web30k(self) -> str:
        """A table of a wider network at WEB30K's size."""
        task = Task(WEB30K, (LAMBDA,), recipe="short", model=WIDER["hidden 256, 128"])
        specs = (LAMBDA, BOUND, LOGLOG)
        rows = {name(spec): self.runs(replace(task, losses=(spec,))) for spec in specs}
        return self.compare(rows, name(LAMBDA))

    def recipes(self) -> str:
        """A table of test NDCG by loss and by learning rate, batch size and list truncation."""
        specs = (LAMBDA, BOUND, "approx_ndcg")
        lines = [_row(["", *map(name, specs)]), "|:--" + "|--:" * len(specs) + "|"]
        for recipe in ("cosine", *dict.fromkeys(task.recipe for task in plan.recipes())):
            runs = [self.runs(Task(MEDIUM, (spec,), recipe=recipe)) for spec in specs]
            label = "rate 3e-3, batch 32" if recipe == "cosine" else recipe
            cells = [_mean(loss_runs, "test") if loss_runs else "not run" for loss_runs in runs]
            lines.append(_row([label, *cells]))
        return "\n".join(lines)

    def continuation(self) -> str:
        """A table of one loss for ten epochs, then another for ten."""
        tasks = [task for task in plan.scales() if len(task.losses) == 2]
        rows = {", then ".join(map(name, task.losses)): self.runs(task) for task in tasks}
        return self.compare(rows, f"{name(BOUND)}, then {name(LAMBDA)}")

    def two_temperatures(self) -> str:
        """A table of losses of two temperatures, beside those of one."""
        specs = {name(spec): spec for spec in ("approx_ndcg", "neural_ndcg", LAMBDA)}
        specs |= plan.TWO_TEMPERATURES
        rows = {label: self.runs(Task(MEDIUM, (spec,))) for label, spec in specs.items()}
        return self.compare(rows, name("approx_ndcg"))

    def bias(self) -> str:
        """A table of relaxed and exact NDCG@10 of the same scores, along training."""
        epochs = (1, 5, 20)
        heads = [
            f"after epoch {epoch}: {kind}" for epoch in epochs for kind in ("relaxed", "exact")
        ]
        lines = [_row(["", *heads]), "|:--" + "|--:" * len(heads) + "|"]
        for spec in ("smoothi_ndcg@10", *_specs(plan.cutoffs())):
            for run in self.runs(Task(MEDIUM, (spec,)))[:1]:
                by_epoch = {line["epoch"]: line for line in run["diagnosis"]}
                cells = [name(spec)]
                for line in (by_epoch[epoch] for epoch in epochs):
                    cells += [f"{1 - line['value']:.3f}", f"{line['ndcg']:.3f}"]
                lines.append(_row(cells))
        return "\n".join(lines)

    def few_lists(self) -> str:
        """A table of losses on the first 300 training lists of WEB30K's size."""
        tasks = [task for task in plan.budgets() if task.data == WEB30K]
        rows = {name(task.losses[0]): self.runs(task) for task in tasks}
        return self.compare(rows, name(LAMBDA))

    def budgets(self) -> str:
        """A table of differences from LambdaLoss in test NDCG, by the number of training lists."""
        tasks = [task for task in plan.budgets() if task.data == MEDIUM]
        specs = [spec for spec in dict.fromkeys(t.losses[0] for t in tasks) if spec != LAMBDA]
        references = dict.fromkeys(replace(task, losses=(LAMBDA,)) for task in tasks)
        found: dict[tuple[Task, str], tuple[float, float]] = {}  # difference and p
        for reference in (*references, Task(MEDIUM, (LAMBDA,))):
            for spec in specs:
                pair = [self.runs(task) for task in (replace(reference, losses=(spec,)), reference)]
                if all(pair):
                    values, base = map(per_query, pair)
                    found[reference, spec] = np.mean(values - base), paired_t_test(values, base)
        corrected = dict(zip(found, holm([p for _, p in found.values()]), strict=True))
        lines = [_row(["training lists", name(LAMBDA), *map(name, specs)])]
        lines.append("|--:" * (len(specs) + 2) + "|")
        for reference in dict.fromkeys(reference for reference, _ in found):
            cells = [f"{reference.budget or MEDIUM.lists[0]:,}"]
            cells.append(_mean(self.runs(reference), "test"))
            for key in ((reference, spec) for spec in specs):
                there = key in found
                cells.append(
                    f"{found[key][0]:+.4f} (p {_p(corrected[key])})" if there else "not run"
                )
            lines.append(_row(cells))
        return "\n".join(lines)

    def worlds(self) -> str:
        """A table for each change of labels or lists that has runs of more than one loss."""
        parts = []
        for data in dict.fromkeys(task.data for task in plan.worlds()):
            label = ", ".join(
                f"{key} {getattr(data, key):g}"
                for key in ("noise", "shift", "length")
                if getattr(data, key) != getattr(MEDIUM, key)
            )
            specs = _specs(plan.worlds())
            if sum(bool(self.runs(Task(data, (spec,)))) for spec in specs) > 1:
                parts.append(f"{label}:\n\n{self.table(data, 'cosine', specs)}")
        return "\n\n".join(parts)

    def diagnosis(self) -> str:
        """A table of where the gradient goes, after the last epoch."""
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

    def efficiency(self, measured: Mapping[str, Any]) -> str:
        """Tables of how many lists losses need: at the best scale of scores, and by scale."""
        lines = ["| | scale | lists needed | test NDCG@10 |", "|:--|--:|--:|--:|"]
        for spec, values in measured["losses"].items():
            runs = self.runs(Task(MEDIUM, (_STUDY_NAMES.get(spec, spec),)))[:1]
            test = _mean(runs, "test") if runs else "not run"
            needed = efficiency.relative(measured, values["variances"])
            lines.append(_row([name(spec), f"{values['scale']:g}", _times(needed), test]))
        scales = list(next(iter(measured["scales"].values())))
        lines += ["", _row(["scale", *(f"{float(scale):g}" for scale in scales)])]
        lines.append("|:--" + "|--:" * len(scales) + "|")
        for spec, by_scale in measured["scales"].items():
            needed = [efficiency.relative(measured, by_scale[scale]) for scale in scales]
            lines.append(_row([name(spec), *map(_times, needed)]))
        return "\n".join(lines)

    def overview(self) -> str:
        """How far losses are from lambdaloss@10 in test NDCG, by the data, as a figure."""
        rows: dict[str, dict[str, float]] = {}
        for label, own in _settings().items():
            reference = self.runs(own)
            values = {}
            for spec in (SOFTMAX, BOUND, "neural_ndcg", "approx_ndcg"):
                runs = self.runs(replace(own, losses=(spec,)))
                seeds = {run["seed"] for run in runs} & {run["seed"] for run in reference}
                if seeds:
                    pair = [
                        [run["test"] for run in each if run["seed"] in seeds]
                        for each in (runs, reference)
                    ]
                    values[name(spec).strip("`")] = float(np.mean(pair[0]) - np.mean(pair[1]))
            if values:
                rows[label] = values
        ticks = (-0.04, -0.03, -0.02, -0.01, 0.0, 0.01)
        return dot_plot.draw(rows, ticks, "Test NDCG@10 less that of lambdaloss@10", "softmax")

    def figure(self) -> str:
        """Deviation of scores and the share of the gradient on deep mistakes, along training."""
        specs = (LAMBDA, BOUND, LOGLOG, SOFTMAX, "ranknet", "smoothi_ndcg@10", "approx_ndcg")
        specs = (*specs, FIELD["swap", "sigmoid"])
        runs = {spec: self.runs(Task(MEDIUM, (spec,)))[:1] for spec in specs}

        def curves(key: str, factor: float = 1.0) -> dict[str, list[tuple[float, float]]]:
            return {
                name(spec).strip("`"): [
                    (line["epoch"], factor * line[key]) for line in spec_runs[0]["diagnosis"]
                ]
                for spec, spec_runs in runs.items()
                if spec_runs
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
        """The numbers in the text, by their names in the template."""
        values = {}
        for key, alpha in (("1", 1.0), ("03", 0.3), ("01", 0.1)):
            spec = "approx_ndcg" if alpha == 1 else f"approx_ndcg(alpha={alpha})"
            spread = self.runs(Task(MEDIUM, (spec,)))[0]["diagnosis"][-1]["spread"]
            values[f"spread_{key}"] = f"{spread:.0f}"
            values[f"scaled_{key}"] = f"{alpha * spread:.0f}"
        for key in ("approx", "neural", "smoothi"):
            values[f"{key}_test"] = _mean(self.runs(Task(MEDIUM, (f"{key}_ndcg@10",))), "test")
        return values

    def coverage(self) -> str:
        """A table of how many tasks of each group were run."""
        lines = ["| | planned | run |", "|:--|--:|--:|"]
        for label, group in GROUPS.items():
            tasks = list(group())
            lines.append(_row([label, len(tasks), sum(task.key in self.results for task in tasks)]))
        return "\n".join(lines)


def _versus(rows: Mapping[str, Runs], reference: str) -> dict[str, tuple[str, str, str]]:
    """Of each row but the reference: the difference from it, its interval, and Holm's p-value.

    The difference is over the seeds that both have; if these are fewer, their number is shown.
    """
    if reference not in rows:
        return {}
    cells, p_values = {}, []
    for label, runs in rows.items():
        seeds = {run["seed"] for run in runs} & {run["seed"] for run in rows[reference]}
        if label == reference or not seeds:
            continue
        values, base = (
            per_query(run for run in group if run["seed"] in seeds)
            for group in (runs, rows[reference])
        )
        mean, deviation = np.mean(values - base), np.std(values - base, ddof=1)
        half = 1.96 * deviation / len(values) ** 0.5
        count = f" ({len(seeds)})" if len(seeds) < len(runs) else ""
        cells[label] = (f"{mean:+.4f}{count}", f"{mean - half:+.4f} to {mean + half:+.4f}")
        p_values.append(paired_t_test(values, base))
    corrected = holm(p_values) if p_values else []
    return {
        label: (*pair, _p(p)) for (label, pair), p in zip(cells.items(), corrected, strict=True)
    }


def _times(value: float) -> str:
    """A ratio with two digits or more."""
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _p(value: float) -> str:
    """A p-value, bold if it is significant."""
    return f"**{value:.2g}**" if value < 0.05 else f"{value:.2g}"
