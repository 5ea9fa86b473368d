"""The page of the study: tables of what was run, between the words of ``page.md``."""

from __future__ import annotations

import gzip
import json
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import choices
import dot_plot
import numpy as np
from choices import (
    BASE,
    FINAL,
    FRESH,
    FRESH_WEB30K,
    LARGE,
    LONG_ATTENTION,
    MEDIUM,
    ONE,
    POINTWISE,
    SMALL,
    WEB30K,
)
from data import Data
from plan import SOFTMAX, Task
from pool import read_results
from train import decode
from trees import Trees, points, read_trees

from rankgrad.data import synthetic
from rankgrad.metrics import evaluate
from rankgrad.significance import holm, paired_t_test

Runs = Sequence[Mapping[str, Any]]
#: In results of the default as it was, with ``softmax`` and without the L1 penalty, and before
#: it had smaller batches of few lists.
BEFORE, BATCHES_OF_32 = "before", "batch_size=32"
_SIZES = {lists: name for name, lists in synthetic.SIZES.items()}
_ENCODED = (SMALL, choices.FEW, MEDIUM, FRESH)  # on which encodings are compared
#: Options of ``large``, which the table of its variants leaves out.
_LARGE_OPTIONS = f"{LARGE.model[5:-1]}, in_list=[{', '.join(choices.IN_LIST)}], "
_SHARED_OPTIONS = f"dropout=0.2, activation=silu, in_list=[{', '.join(choices.IN_LIST)}], "


def best_achievable() -> dict[str, float]:
    """Test NDCG@10 of the simulator's own utility, by data."""
    found = {}
    fresh_pointwise = replace(FRESH, world="pointwise")
    pointwise = replace(SMALL, world="pointwise")
    first = (SMALL, pointwise, MEDIUM, WEB30K, POINTWISE)
    new = [choices.NEW, choices.LAST_NEW, choices.L1_NEW]
    new += [replace(SMALL, seed=seed) for seed in choices.DRAWS]
    new += [replace(data, world="pointwise") for data in new]
    web30k_pointwise = replace(WEB30K, world="pointwise")
    for data in (*first, FRESH, FRESH_WEB30K, fresh_pointwise, web30k_pointwise, *new):
        made = replace(data, features=len(synthetic.INFORMATIVE)).make("test")
        scores = synthetic.oracle(made, world=data.world)
        values = evaluate(scores, made.labels, offsets=made.offsets, metrics=["ndcg@10"])
        found[_name(data)] = round(float(values["ndcg@10"]), 5)
    return found | {"columns": round(achievable_with_columns(), 5)}


def achievable_with_columns() -> float:
    """Test NDCG@10 of the utility where a copy is known by its columns alone, at medium size.

    A page counts less if another one of its list has the same body and a higher PageRank. Columns
    say whether there is such another one, and where the page's PageRank is in the list, but not
    the other's: the term is its mean over pages of the same hundredth of ranks.
    """
    made = replace(MEDIUM, features=len(synthetic.INFORMATIVE)).make("test")
    assert made.feature_names is not None
    body, pagerank = (
        made.features[:, made.feature_names.index(name)] for name in ("body lmir.abs", "pagerank")
    )
    lists = np.repeat(np.arange(len(made)), made.lengths)
    copied = synthetic._copied(body, pagerank, lists).astype(float)
    pairs = np.stack([lists, body], 1)
    _, which, counts = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    order = np.lexsort((pagerank, lists))
    place = np.empty(made.n_items)
    place[order] = np.arange(made.n_items) - np.repeat(made.offsets[:-1], made.lengths)
    hundredth = (100 * place / np.repeat(made.lengths, made.lengths)).astype(int)
    group = np.where(counts[which.ravel()] > 1, hundredth, 100)
    mean = np.bincount(group, copied, 101) / np.maximum(np.bincount(group, minlength=101), 1)
    scores = synthetic.oracle(made) + 1.8 * copied - 1.8 * mean[group]
    values = evaluate(scores, made.labels, offsets=made.offsets, metrics=["ndcg@10"])
    return float(values["ndcg@10"])


def _name(data: Data) -> str:
    return f"{_SIZES.get(data.lists, 'few lists')}, {data.world}, seed {data.seed}"


def write(results: Path, path: Path) -> None:
    """Write the page, its figure, and the page of what was tried beside it.

    Args:
        results: the folder of packed results, with what :func:`best_achievable` gave.
        path: of the page, such as ``simulated.md``; the others are ``simulated.svg`` and
            ``simulated_trials.md``.
    """
    trees, best = results / "default_trees.jsonl.gz", results / "default_best.json"
    rules = (results / "default_rules.jsonl").read_text(encoding="utf-8").splitlines()
    together = (results / "default_together.jsonl").read_text(encoding="utf-8").splitlines()
    networks = read_results([results / "default.jsonl.gz"])
    default_runs = [json.loads(line) for line in rules]
    found = Found(networks, read_trees(trees), json.loads(best.read_text("utf-8")))
    words = {
        "goals": found.goals(),
        "expected_goals": found.expected_goals(),
        "earlier_goals": found.earlier_goals(),
        "rules": found.rules(default_runs),
        "draws_gain": found.draws_gain(default_runs, BEFORE),
        "batches_gain": found.draws_gain(default_runs, BATCHES_OF_32),
        "batches": found.batches(),
        "default_kinds": found.default_kinds(),
        "densities": found.densities(),
        "ablations": found.ablations(),
        "penalties": found.penalties(),
        "penalty_losses": found.penalty_losses(),
        "every_feature": every_feature(results / "default_every_feature.json"),
        "together": found.together([json.loads(line) for line in together]),
        "inputs": found.table(choices.inputs(), BASE),
        "sizes": found.table(choices.sizes(), BASE),
        "losses": found.table([BASE, *choices.losses()], BASE),
        "eligible": found.table(choices.eligible(), FINAL),
        "further": found.table([FINAL, *choices.further()], FINAL),
        "others": found.others(),
        "encodings": found.encodings(),
        "defaults": found.defaults(),
        "periodic": found.periodic(),
        "encoding_rates": found.encoding_rates(),
        "decays": found.decays(),
        "trees_regret": _regret(found.tuned(POINTWISE, in_list=False))[-1],
        "large_regret": found.large_regret(),
        "small": found.small(),
        "variants": found.variants(),
        "levels": found.levels(),
        "attention": found.attention(),
        "encoded_attention": found.encoded_attention(),
        "informative": found.informative(),
        "columns": f"{found.best['columns']:.4f}",
        "kinds": found.kinds(),
        "seconds": found.seconds(),
        "points": found.points(1),
        "all_points": found.points(4),
        "runs": len(found.results),
        "tree_runs": len(found.trees),
    }
    trials = path.with_stem(f"{path.stem}_trials")
    for template, page in (("page.md", path), ("trials.md", trials)):
        text = (Path(__file__).parent / template).read_text(encoding="utf-8")
        page.write_text(string.Template(text).substitute(words), encoding="utf-8")
    path.with_suffix(".svg").write_text(found.figure(default_runs), encoding="utf-8")


def pack_lines(paths: Iterable[Path], path: Path) -> None:
    """Write results that are lines by task into one file, compressed."""
    lines: dict[str, Any] = {}
    for each in paths:
        lines |= read_trees(each)
    text = "".join(json.dumps({"task": key, **own}) + "\n" for key, own in lines.items())
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _regret(own: Mapping[str, Any] | None) -> list[str]:
    """Validation and test NDCG, and what is lost of the best expected DCG, in percent."""
    if own is None:
        return ["", "", ""]
    regret = f"{100 * (1 - own['expected']):.2f} %" if "expected" in own else ""
    return [f"{own['best_value']:.4f}", f"{own['test']:.4f}", regret]


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _row(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


class Found:
    """Results, and tables of them.

    Args:
        results: of networks, by task.
        trees: of trees, by task.
        best: achievable, by data.
    """

    def __init__(
        self, results: Mapping[str, Any], trees: Mapping[str, Any], best: Mapping[str, float]
    ) -> None:
        self.results, self.trees, self.best = results, trees, best

    def table(self, tasks: Iterable[Task], reference: Task) -> str:
        """What differs from the reference, the best on validation lists first."""
        tasks = list(dict.fromkeys(tasks))
        there = [task for task in tasks if task.key in self.results]
        if reference.key not in self.results:
            return "*Not run.*"
        there.sort(key=lambda task: -self.results[task.key]["best_value"])
        other = decode(self.results[reference.key]["per_query"])
        tests = {}
        for task in there:
            if task != reference:
                tests[task] = paired_t_test(decode(self.results[task.key]["per_query"]), other)
        corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
        lines = [_row(["", "validation", "test", "training", "difference", "p"])]
        lines.append("|:--|--:|--:|--:|--:|--:|")
        for task in there:
            own = self.results[task.key]
            values = [f"{own[name]:.4f}" for name in ("best_value", "test", "train")]
            difference, p = "", ""
            if task in tests:
                difference = f"{decode(own['per_query']).mean() - other.mean():+.4f}"
                p = _p(corrected[task])
            lines.append(_row([_words(task, reference), *values, difference, p]))
        missing = [_words(task, reference) for task in tasks if task.key not in self.results]
        if missing:
            lines += ["", f"Planned and not run: {'; '.join(missing)}."]
        return "\n".join(lines)

    def goals(self) -> str:
        """The default between LightGBM and the best achievable."""
        rows = [("medium(heads=2)", data, choices.penalized(data)) for data in self._goal_data()]
        before = choices.present_default(MEDIUM)
        rows += [("before", data, replace(before, data=data)) for data in (MEDIUM, POINTWISE)]
        return self._goals(rows)

    def earlier_goals(self) -> str:
        """The same of networks that were no default, or are not any more."""
        small_pointwise = replace(SMALL, world="pointwise")
        fresh_pointwise = replace(FRESH, world="pointwise")
        unused = choices.NEW, choices.LAST_NEW
        new = [replace(data, world=world) for data in unused for world in choices.WORLDS]
        data_sets = (MEDIUM, POINTWISE, *new, SMALL, small_pointwise, FRESH, fresh_pointwise)
        best = choices.ENCODINGS[-1]
        large, one = (choices.encoded_by(task, f"{best}, heads=2") for task in (LARGE, ONE))
        study = {
            f"{name}, the study's": choices.attention_variant(task, choices.LIBRARY_ATTENTION)
            for name, task in (("large(heads=2)", LARGE), ("medium(heads=2)", ONE))
        }
        networks = {
            "large(heads=2)": large,
            "medium(heads=2)": one,
            "large(heads=2), weight decay": choices.regularized(large),
            "medium(heads=2), weight decay": choices.regularized(one),
            **study,
            "large": choices.encoded_by(LARGE, best),
            "large, frequencies of 0.3": choices.periodic(LARGE, "rate=6.0"),
            "medium": choices.encoded_by(ONE, best),
            "large, ramps": choices.with_bins(LARGE, 8),
            "medium, ramps": choices.with_bins(ONE, 8),
        }
        rows = [
            (name, data, replace(task, data=data))
            for data in data_sets
            for name, task in networks.items()
        ]
        for name, task in study.items():
            rows.append((name, WEB30K, replace(task, data=WEB30K, recipe="short")))
        web30k = replace(choices.periodic(ONE, "rate=6.0"), data=WEB30K, recipe="short")
        rows.append(("medium, frequencies of 0.3", WEB30K, web30k))
        for data in (MEDIUM, WEB30K, FRESH, FRESH_WEB30K):
            recipe = "short" if data.lists == WEB30K.lists else LARGE.recipe
            rows.append(("large, no encoding", data, replace(LARGE, data=data, recipe=recipe)))
        for data in (MEDIUM, POINTWISE, SMALL, FRESH):
            task = replace(LONG_ATTENTION, data=data)
            rows.append(("large, attention, no encoding", data, task))
        return self._goals(rows)

    @staticmethod
    def _goal_data() -> list[Data]:
        """The data on which the default of many lists was trained, with attention."""
        sizes = MEDIUM, choices.L1_NEW, WEB30K
        return [replace(data, world=world) for data in sizes for world in choices.WORLDS]

    def _goals(self, rows: Iterable[tuple[str, Data, Task]]) -> str:
        """A table of names, data and tasks, without those that did not run."""
        heads = ["data", "network", "LightGBM, features", "LightGBM, the list's columns too"]
        heads += ["network", "best", "way from the first", "from the second"]
        lines = [_row(heads), "|:--|:--" + "|--:" * 6 + "|"]
        for name, data, task in rows:
            if task.key in self.results:
                lines.append(self._goal(name, data, self.results[task.key]))
        return "\n".join(lines)

    def _goal(self, name: str, data: Data, own: Mapping[str, Any] | None) -> str:
        best = self.best[_name(data)]
        cells, ways = [_name(data), name], []
        for in_list in (False, True):
            other = self.tuned(data, in_list)
            few = "" if other is None or other["lists"] == data.lists[0] else " (few lists)"
            cells.append("not run" if other is None else f"{other['test']:.4f}{few}")
            ways.append("" if own is None or other is None else _way(own, other, best))
        return _row([*cells, f"{own['test']:.4f}" if own else "not run", f"{best:.4f}", *ways])

    def expected_goals(self) -> str:
        """What LightGBM and the default lose of the best expected NDCG@10 of the test lists.

        Of LightGBM's points that were measured so, each of its forms has the one that loses least.
        """
        heads = ["data", "LightGBM, features", "LightGBM, the list's columns too", "the default"]
        lines = [_row([*heads, "way from the better that was measured"]), "|:--" + "|--:" * 4 + "|"]
        for data in self._goal_data():
            own = self.results.get(choices.penalized(data).key)
            forms = [self._least_lost(data, in_list) for in_list in (False, True)]
            there = [lost for lost in forms if lost is not None]
            if own is None or not there:
                continue
            cells = ["not run" if lost is None else _percent(lost.mean()) for lost in forms]
            lost, better = decode(own["expected_per_query"]), min(there, key=np.mean)
            way = 1 - lost.mean() / better.mean()
            residuals = (lost - (1 - way) * better) / better.mean()
            error = residuals.std() / math.sqrt(len(residuals))
            p = _p(paired_t_test(lost, better / 2))
            cells += [_percent(lost.mean()), f"{100 * way:.0f} ± {100 * error:.0f} % (p {p})"]
            lines.append(_row([_name(data), *cells]))
        return "\n".join(lines)

    def _least_lost(self, data: Data, in_list: bool) -> np.ndarray | None:
        """What LightGBM loses by list, of its points that were trained on all lists."""
        which = Trees(_SIZES[data.lists], data.seed, data.world, in_list)
        found = [
            decode(own["expected_per_query"])
            for own in self._points(which).values()
            if own["lists"] == data.lists[0] and "expected_per_query" in own
        ]
        return min(found, key=np.mean, default=None)

    def rules(self, runs: Runs) -> str:
        """The default as users get it, beside LightGBM: each draw of queries, then new ones."""
        heads = ["data", "LightGBM, features", "LightGBM, the list's columns too", "model"]
        heads += ["epochs", "network", "best", "difference from the better", "p"]
        lines = [_row(heads), "|:--|--:|--:|:--" + "|--:" * 5 + "|"]
        # By world and model: of each draw, the network's values and LightGBM's.
        new: dict[tuple[str, str], list[np.ndarray]] = {}
        for run in runs:
            lists, seed = synthetic.SIZES[run["size"]], run["seed"]
            data = replace(SMALL, lists=lists, seed=seed, world=run["world"])
            pair = [self.tuned(data, in_list) for in_list in (False, True)]
            better = max((own for own in pair if own), key=lambda own: own["best_value"])
            values = np.stack([decode(own["per_query"]) for own in (run, better)])
            cells = [_name(data), *(f"{own['test']:.4f}" if own else "not run" for own in pair)]
            models = {"rules": "`medium`", BEFORE: "`medium`, before"}
            model = (models | {BATCHES_OF_32: "`medium`, batches of 32"}).get(*[run["model"]] * 2)
            cells += [model, run["epochs"], f"{run['test']:.4f}", f"{self.best[_name(data)]:.4f}"]
            if run["model"] not in (BEFORE, BATCHES_OF_32) or seed not in choices.DRAWS:
                lines.append(_row([*cells, *_difference(values)]))
            if seed in choices.DRAWS:
                new.setdefault((run["world"], model), []).append(values)
        for (world, model), draws in sorted(new.items()):
            values = np.concatenate(draws, -1)
            cells = [f"**{len(draws)} draws, {world}**", "", f"{values[1].mean():.4f} (the better)"]
            cells += [model, "", f"{values[0].mean():.4f}", ""]
            difference, p = _difference(values)
            means = np.stack([each.mean(-1) for each in draws], -1)  # [2, draws]
            by_draw = _difference(means)[1]
            lines.append(_row([*cells, difference, f"{p}; by draw {by_draw}"]))
        return "\n".join(lines)

    def figure(self, runs: Runs) -> str:
        """The default, LightGBM and the best achievable, by data, as SVG."""
        rows: dict[str, dict[str, float]] = {}
        for world, title in zip(choices.WORLDS, ("first world", "second world"), strict=True):
            draws = [replace(SMALL, seed=seed, world=world) for seed in choices.DRAWS]
            own = {
                r["seed"]: r["test"] for r in runs if (r["model"], r["world"]) == ("rules", world)
            }
            values = [self._markers(data, own[data.seed]) for data in draws]
            common = set.intersection(*(set(each) for each in values))
            rows[f"small, {title} (6 draws)"] = {
                name: float(np.mean([each[name] for each in values]))
                for name in values[0]
                if name in common
            }
        for data in self._goal_data():
            title = "second world" if data.world == "pointwise" else "first world"
            queries = ", new queries" if data == replace(choices.L1_NEW, world=data.world) else ""
            task = choices.penalized(data)
            if task.key in self.results:
                name = f"{_SIZES[data.lists]}, {title}{queries}"
                rows[name] = self._markers(data, self.results[task.key]["test"])
        rows = {name: rows[name] for name in sorted(rows, key=lambda name: "second" in name)}
        title = "Test NDCG@10, between LightGBM and the best achievable"
        return dot_plot.draw(rows, (0.58, 0.60, 0.62, 0.64, 0.66, 0.68), title, "the default")

    def _markers(self, data: Data, test: float) -> dict[str, float]:
        """The values of a row of the figure."""
        found = {"LightGBM, features": False, "LightGBM, with the list's columns": True}
        tuned = {name: self.tuned(data, in_list) for name, in_list in found.items()}
        values = {name: float(own["test"]) for name, own in tuned.items() if own}
        return values | {"the default": test, "the best achievable": self.best[_name(data)]}

    def together(self, runs: Runs) -> str:
        """The mean of boosted trees and a network, and its student, beside tuned LightGBM."""
        heads = ["data", "model", "validation", "test", "difference from tuned LightGBM", "p"]
        lines = [_row(heads), "|:--|:--" + "|--:" * 4 + "|"]
        for run in runs:
            data = replace(SMALL, world=run["world"])
            tuned = self.tuned(data, run["in_list"])
            names = {
                "lightgbm": "LightGBM, trained again",
                "network": "the default network",
                "mean": f"their mean, {run['weight']} of LightGBM",
                "student": "a student of the mean",
            }
            for name, words in names.items():
                own = run[name]
                cells = [_name(data), words, f"{own['validation']:.4f}", f"{own['test']:.4f}"]
                p = paired_t_test(decode(own["per_query"]), decode(tuned["per_query"]))
                lines.append(_row([*cells, f"{own['test'] - tuned['test']:+.4f}", _p(p)]))
        return "\n".join(lines)

    def tuned(self, data: Data, in_list: bool) -> Mapping[str, Any] | None:
        """LightGBM's best on validation lists, of those trained on the most lists."""
        found = self._points(Trees(_SIZES[data.lists], data.seed, data.world, in_list)).values()
        return max(found, key=lambda own: (own["lists"], own["best_value"]), default=None)

    def _points(self, which: Trees) -> dict[str, Mapping[str, Any]]:
        """Results of trees on some data, with their points and numbers of lists, by task."""
        found = {}
        for key, own in self.trees.items():
            task = json.loads(key)
            lists, point = task.pop("lists"), task.pop("point")
            library = task.pop("library", "lightgbm")
            if Trees(**task, library=library) == which:
                found[key] = {**own, "point": point, "lists": lists}
        return found

    def others(self) -> str:
        """The second world and small size."""
        found = []
        for data in (POINTWISE, SMALL):
            tasks = [task for task in choices.others() if task.data.world == data.world]
            tasks = [task for task in tasks if task.data.lists == data.lists]
            for claimed in (FINAL, choices.chosen(self.results) or FINAL):
                tasks += [task for task in choices.claims(claimed) if task.data == data]
            found += [f"{_name(data)}:", "", self.table(tasks, replace(BASE, data=data)), ""]
        return "\n".join(found).rstrip()

    def encodings(self) -> str:
        """A piecewise linear encoding of features, by data."""
        pointwise = replace(SMALL, world="pointwise")
        found = []
        for data in (POINTWISE, MEDIUM, pointwise, SMALL):
            reference = replace(LARGE, data=data)
            tasks = [
                task
                for task in (*choices.encodings(), *choices.combined())
                if task.model.startswith(("tabm", "encoded"))
                and replace(task.data, in_list=data.in_list) == data
            ]
            found += [f"{_name(data)}:", "", self.table([reference, *tasks], reference), ""]
        return "\n".join(found).rstrip()

    def defaults(self) -> str:
        """The library's encoding in both defaults, over the seeds that each has."""
        heads = ["data", "network", "bins", "seeds", "validation", "test", "difference", "p"]
        lines = [_row(heads), "|:--|:--" + "|--:" * 6 + "|"]
        small_pointwise = replace(SMALL, world="pointwise")
        fresh = (FRESH, replace(FRESH, world="pointwise"))
        for data in (SMALL, small_pointwise, MEDIUM, POINTWISE, *fresh):
            for name, network in {"medium": ONE, "large": LARGE}.items():
                without = self._seeds(replace(network, data=data))
                for bins in (0, 4, 8, 16):
                    task = replace(network, data=data)
                    runs = self._seeds(choices.with_bins(task, bins)) if bins else without
                    if not runs:
                        continue
                    cells = [_name(data), f"`{name}`", bins, len(runs)]
                    cells += [f"{_average(runs, each):.4f}" for each in ("best_value", "test")]
                    lines.append(_row([*cells, *_compared(runs, without)]))
        return "\n".join(lines)

    def periodic(self) -> str:
        """The encodings of both defaults, over the seeds that each has, beside eight bins."""
        heads = ["data", "network", "encoding", "seeds", "validation", "test", "difference", "p"]
        lines = [_row(heads), "|:--|:--|:--" + "|--:" * 5 + "|"]
        pairs = [replace(own, world=world) for own in _ENCODED for world in choices.WORLDS]
        for data in pairs:
            for name, network in {"medium": ONE, "large": LARGE}.items():
                task = replace(network, data=data)
                first = self._seeds(choices.with_bins(task, 8))
                encodings = {each: choices.encoded_by(task, each) for each in choices.ENCODINGS}
                encodings["the same, frequencies of 0.3"] = choices.periodic(task, "rate=6.0")
                for words, own in encodings.items():
                    runs = self._seeds(own)
                    if not runs:
                        continue
                    cells = [_name(data), f"`{name}`", words, len(runs)]
                    cells += [f"{_average(runs, each):.4f}" for each in ("best_value", "test")]
                    lines.append(_row([*cells, *_compared(runs, first)]))
        return "\n".join(lines)

    def encoding_rates(self) -> str:
        """Variants of ``medium`` on few lists, over the seeds that each has."""
        heads = ["data", "`medium`", "seeds", "validation", "test", "difference", "p"]
        lines = [_row(heads), "|:--|:--" + "|--:" * 5 + "|"]
        for world in choices.WORLDS:
            variants = choices.medium_variants(world)
            before = self._seeds(variants["before"])
            for name, task in variants.items():
                runs = self._seeds(task)
                cells = [_name(task.data), name, len(runs)]
                cells += [f"{_average(runs, each):.4f}" for each in ("best_value", "test")]
                lines.append(_row([*cells, *_compared(runs, before)]))
        return "\n".join(lines)

    def decays(self) -> str:
        """What ``medium`` loses on validation lists with weight decay, in both worlds."""
        groups = {
            "on few lists": choices.few_decay_options,
            "at medium size": choices.decay_options,
            "at medium size, two heads": choices.attention_options,
        }
        heads = ["`medium`", "first world: validation", "test", "regret"]
        heads += ["second world: validation", "test", "regret"]
        found = []
        for name, find_options in groups.items():
            lines = [f"`medium` {name}:", "", _row(heads), "|:--" + "|--:" * 6 + "|"]
            by_world = [find_options(world) for world in choices.WORLDS]
            for option in by_world[0]:
                runs = [self.results.get(options[option].key) for options in by_world]
                if any(runs):
                    lines.append(_row([option, *(cell for own in runs for cell in _regret(own))]))
            found.append("\n".join(lines))
        return "\n\n".join(found)

    def draws_gain(self, runs: Runs, before: str) -> str:
        """What the default gained at small size, over all draws, since an earlier one."""
        found = []
        for world in choices.WORLDS:
            pair = []
            for model in ("rules", before):
                own = [run for run in runs if (run["model"], run["world"]) == (model, world)]
                by_seed = {run["seed"]: decode(run["per_query"]) for run in own}
                pair.append(np.concatenate([by_seed[seed] for seed in choices.DRAWS]))
            difference, p = _difference(np.stack(pair))
            found.append(f"{difference} (p {p})")
        return " in the first world and ".join(found) + " in the second"

    def penalties(self) -> str:
        """The default, its parts and other losses, by size, in both worlds."""
        heads = ["", "first world: validation", "test", "regret", "of the test"]
        heads += ["second world: validation", "test", "regret", "of the test"]
        found = []
        for data in (choices.FEW, MEDIUM, WEB30K):
            lines = [
                f"{data.lists[0]:,} training lists:",
                "",
                _row(heads),
                "|:--" + "|--:" * 8 + "|",
            ]
            by_world = [choices.penalty_options(replace(data, world=w)) for w in choices.WORLDS]
            for option in by_world[0]:
                runs = [self._seeds(options[option]) for options in by_world]
                if any(runs):
                    lines.append(_row([option, *(cell for own in runs for cell in _means(own))]))
            found.append("\n".join(lines))
        return "\n\n".join(found)

    def batches(self) -> str:
        """The default on few lists by the size of batches: means over seeds, in both worlds."""
        heads = ["training lists", "lists in a batch"]
        heads += ["first world: validation", "test", "regret", "of the test"]
        heads += ["second world: validation", "test", "regret", "of the test"]
        lines = [_row(heads), "|--:|--:" + "|--:" * 8 + "|"]
        for lists, sizes in choices.BATCHES.items():
            for size in sizes:
                cells = [f"{lists:,}", size]
                for world in choices.WORLDS:
                    cells += _means(self._seeds(choices.batched(lists, size, world)))
                lines.append(_row(cells))
        return "\n".join(lines)

    def penalty_losses(self) -> str:
        """The default's loss beside others at WEB30K's size: each query's mean over the seeds."""
        heads = ["world", "`ordered_logit` beside", "seeds", "difference in test NDCG@10", "p"]
        heads += ["in expected NDCG@10 of these lists", "p"]
        lines = [_row(heads), "|:--|:--" + "|--:" * 5 + "|"]
        for world in choices.WORLDS:
            data = replace(WEB30K, world=world)
            own = self._seeds(choices.penalized(data))
            for loss in (choices.LAMBDA, SOFTMAX):
                other = self._seeds(choices.penalized(data, loss))
                seeds = sorted(own.keys() & other.keys())
                cells = [world, f"`{loss}`", len(seeds)]
                for name, sign in (("per_query", 1), ("expected_per_query", -1)):
                    pair = [_per_query([each[s] for s in seeds], name) for each in (own, other)]
                    difference, p = _difference(sign * np.stack(pair))
                    cells += [difference, p]
                lines.append(_row(cells))
        return "\n".join(lines)

    def _seeds(self, task: Task) -> dict[int, Mapping[str, Any]]:
        """The results of a task by its seed of training."""
        tasks = {seed: replace(task, seed=seed) for seed in choices.SEEDS}
        return {s: self.results[t.key] for s, t in tasks.items() if t.key in self.results}

    def large_regret(self) -> str:
        """That of ``large(heads=2)`` in the second world, without and with weight decay."""
        own = choices.encoded_by(replace(LARGE, data=POINTWISE), f"{choices.ENCODING}, heads=2")
        tasks = (own, choices.regularized(own, dropout=0.2), choices.regularized(own))
        plain, *decayed = (_regret(self.results[task.key])[-1] for task in tasks)
        return f"{plain} without, {' and '.join(decayed)} with dropout of 0.2 and of 0.1"

    def small(self) -> str:
        """Both defaults at small size over two seeds, beside the better LightGBM."""
        heads = ["data", "network", "seeds", "network's test", "LightGBM's", "difference", "p"]
        lines = [_row(heads), "|:--|:--" + "|--:" * 5 + "|"]
        for world in choices.WORLDS:
            data = replace(SMALL, world=world)
            tuned = [self.tuned(data, in_list) for in_list in (False, True)]
            better = max((own for own in tuned if own), key=lambda own: own["best_value"])
            for name, network in {"medium": ONE, "large": LARGE}.items():
                task = choices.encoded_by(replace(network, data=data), choices.ENCODINGS[-1])
                runs = self._seeds(task)
                values, other = _per_query(list(runs.values())), decode(better["per_query"])
                cells = [_name(data), f"`{name}`", len(runs), f"{_average(runs, 'test'):.4f}"]
                cells += [f"{better['test']:.4f}", f"{values.mean() - other.mean():+.4f}"]
                lines.append(_row([*cells, _p(paired_t_test(values, other))]))
        return "\n".join(lines)

    def variants(self) -> str:
        """Other forms of ``large`` on few lists, by world."""
        found = []
        for world in choices.WORLDS:
            data = replace(choices.FEW, world=world)
            tasks = [*choices.variants(), *choices.candidates(), *choices.scale_rates()]
            tasks = [t for t in tasks if replace(t.data, transforms=()) == data]
            tasks = [t for t in tasks if "members=16" in t.model]
            reference = choices.with_bins(replace(LARGE, data=data), 8)
            table = self.table(tasks, reference).replace(_LARGE_OPTIONS, "")
            found += [f"{_name(data)}:", "", table, ""]
        return "\n".join(found).rstrip()

    def levels(self) -> str:
        """The likelihood of label levels beside softmax, one seed, by data and network."""
        heads = ["data", "network", "`softmax`", "`level_likelihood`", "difference", "p"]
        lines = [_row([*heads[:2], "validation", *heads[2:]]), "|:--|:--" + "|--:" * 5 + "|"]
        for task in choices.levels():
            other = replace(task, losses=(SOFTMAX,))
            pair = [self.results.get(each.key) for each in (other, task)]
            if task.losses != (choices.LEVEL,) or task.seed or not all(pair):
                continue
            values = [decode(own["per_query"]) for own in pair]
            chosen = f"{pair[1]['best_value'] - pair[0]['best_value']:+.4f}"
            cells = [_name(task.data), _words(task, replace(LARGE, losses=task.losses)), chosen]
            cells += [f"{own['test']:.4f}" for own in pair]
            cells.append(f"{values[1].mean() - values[0].mean():+.4f}")
            lines.append(_row([*cells, _p(paired_t_test(values[1], values[0]))]))
        return "\n".join(lines)

    def attention(self) -> str:
        """Attention over the list, by world."""
        found = []
        for data in (MEDIUM, POINTWISE):
            tasks = [*choices.attentive(), *choices.combined()]
            tasks = [task for task in tasks if task.model.startswith(("attentive", "context"))]
            tasks = [task for task in tasks if task.data == data]
            reference = replace(LARGE, data=data)
            found += [f"{_name(data)}:", "", self.table([reference, *tasks], reference), ""]
        return "\n".join(found).rstrip()

    def encoded_attention(self) -> str:
        """Attention beside the periodic encoding, by data; the reference is ``large``."""
        found = []
        for data in (MEDIUM, choices.FEW):
            for world in choices.WORLDS:
                own = replace(data, world=world)
                tasks = [*choices.encoded_attention(), *choices.other_attentions()]
                tasks = [task for task in tasks if task.data == own]
                defaults = [
                    choices.encoded_by(replace(task, data=own), choices.ENCODING)
                    for task in (LARGE, ONE)
                ]
                table = self.table([*defaults, *tasks], defaults[0])
                found += [f"{_name(own)}:", "", table.replace(_SHARED_OPTIONS, ""), ""]
        return "\n".join(found).rstrip()

    def informative(self) -> str:
        """With the features that the utility reads alone, beside all."""
        heads = ["data", "network", "all features", "those of the utility", "difference", "p"]
        lines = [_row(heads), "|:--|:--|--:|--:|--:|--:|"]
        for task in choices.combined():
            if task.data.features == LARGE.data.features:
                continue
            both = replace(task, data=replace(task.data, features=LARGE.data.features))
            pair = [self.results[each.key] for each in (both, task)]
            values = [decode(own["per_query"]) for own in pair]
            cells = [_name(both.data), _model(task.model), *(f"{own['test']:.4f}" for own in pair)]
            cells.append(f"{values[1].mean() - values[0].mean():+.4f}")
            lines.append(_row([*cells, _p(paired_t_test(values[1], values[0]))]))
        return "\n".join(lines)

    def kinds(self) -> str:
        """Losses of every kind, by network and size, over the seeds that each has."""
        web30k = replace(LARGE, data=WEB30K, recipe="short")
        found = []
        for name, own in (
            (f"{_name(MEDIUM)}, `large`", LARGE),
            (f"{_name(WEB30K)}, `large`", web30k),
            (f"{_name(MEDIUM)}, context-aware", choices.CONTEXT_AWARE),
        ):
            best = self.best[_name(own.data)]
            found += [f"{name} (best achievable {best:.4f}):", "", self._kinds(own), ""]
        return "\n".join(found).rstrip()

    def _kinds(self, own: Task) -> str:
        runs: dict[str, dict[int, Mapping[str, Any]]] = {}
        for loss in choices.KINDS:
            if there := self._seeds(replace(own, losses=(loss,))):
                runs[loss] = there
        reference, tests, differences = runs[SOFTMAX], {}, {}
        for loss, of_loss in runs.items():
            seeds = of_loss.keys() & reference.keys()
            if loss != SOFTMAX:
                pair = [_per_query([each[s] for s in seeds]) for each in (of_loss, reference)]
                tests[loss], differences[loss] = (
                    paired_t_test(*pair),
                    pair[0].mean() - pair[1].mean(),
                )
        corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
        heads = ["", "seeds", "validation", "test", "of seeds", "training", "difference", "p"]
        lines = [_row(heads), "|:--" + "|--:" * 7 + "|"]
        for loss in sorted(runs, key=lambda loss: -_average(runs[loss], "best_value")):
            of_loss = runs[loss]
            test = [run["test"] for run in of_loss.values()]
            span = f"{min(test):.4f} to {max(test):.4f}" if len(test) > 1 else ""
            cells = [f"`{loss}`", len(test), f"{_average(of_loss, 'best_value'):.4f}"]
            cells += [f"{np.mean(test):.4f}", span, f"{_average(of_loss, 'train'):.4f}"]
            if loss in tests:
                cells += [f"{differences[loss]:+.4f}", _p(corrected[loss])]
            lines.append(_row(cells if loss in tests else [*cells, "", ""]))
        missing = [f"`{loss}`" for loss in choices.KINDS if loss not in runs]
        return "\n".join(lines + (["", f"Not run: {', '.join(missing)}."] if missing else []))

    def default_kinds(self) -> str:
        """The same with the default's network, penalty and recipe, in both worlds."""
        pairs = [
            replace(own, world=world)
            for own in (choices.FEW, MEDIUM, WEB30K)
            for world in choices.WORLDS
        ]
        found = []
        for data in pairs:
            runs = {
                loss: own
                for loss in choices.DEFAULT_KINDS
                if (own := self._seeds(choices.with_loss(data, loss)))
            }
            if len(runs) > 3:
                missing = [f"`{loss}`" for loss in choices.DEFAULT_KINDS if loss not in runs]
                found += [f"{_name(data)}:", "", _default_kinds(runs), ""]
                found += [f"Not run: {', '.join(missing)}.", ""] if missing else []
        return "\n".join(found).rstrip()

    def densities(self) -> str:
        """Losses with the default of few lists where few items are relevant, and where many are."""
        found = []
        for shift, words in zip(choices.SHIFTS, ("few", "many"), strict=True):
            data = replace(choices.FEW, shift=shift)
            runs = {
                loss: self._seeds(choices.with_loss(data, loss))
                for loss in (choices.ORDERED, SOFTMAX, choices.LAMBDA)
            }
            if all(runs.values()):
                title = f"{words} relevant items (shift {shift:g}):"
                found += [title, "", _default_kinds(runs), ""]
        return "\n".join(found).rstrip()

    def ablations(self) -> str:
        """What others found to work, in the default, by size, in both worlds."""
        own = ("validation", "test", "regret of the test", "difference", "p")
        heads = ["", *(f"first world: {own[0]}", *own[1:]), *(f"second world: {own[0]}", *own[1:])]
        found = []
        for data in (choices.FEW, MEDIUM):
            by_world = [choices.ablation_options(replace(data, world=w)) for w in choices.WORLDS]
            columns = [self._ablations(options) for options in by_world]
            names = [name for name in by_world[0] if any(name in cells for cells in columns)]
            if len(names) < 2:
                continue
            lines = [f"{data.lists[0]:,} training lists:", "", _row(heads)]
            lines.append("|:--" + "|--:" * 10 + "|")
            for name in names:
                cells = [cell for own in columns for cell in own.get(name, [""] * 5)]
                lines.append(_row([name, *cells]))
            found.append("\n".join(lines))
        return "\n\n".join(found)

    def _ablations(self, options: Mapping[str, Task]) -> dict[str, list[str]]:
        """The cells of each variant in one world, compared with the first over common seeds."""
        runs = {name: own for name, task in options.items() if (own := self._seeds(task))}
        default = next(iter(options))
        differences, tests = {}, {}
        for name in runs.keys() - {default}:
            seeds = sorted(runs[name].keys() & runs[default].keys())
            if not seeds:
                continue
            pair = [
                _per_query([each[s] for s in seeds], "expected_per_query")
                for each in (runs[name], runs[default])
            ]
            differences[name] = 100 * (pair[0].mean() - pair[1].mean())
            tests[name] = paired_t_test(*pair)
        corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
        cells = {}
        for name, own in runs.items():
            validation, test, _, lost = _means(own)
            compared = ["", ""]
            if name in tests:
                compared = [f"{differences[name]:+.2f} %", _p(corrected[name])]
            cells[name] = [validation, test, lost, *compared]
        return cells

    def seconds(self) -> str:
        """Seconds of an epoch, of trainings that had the GPU to themselves."""
        lines = [_row(["network", "loss", "seconds"]), "|:--|:--|--:|"]
        for task in choices.timed():
            if task.key in self.results:
                seconds = f"{self.results[task.key]['epoch_seconds']:.2f}"
                lines.append(_row([_model(task.model), f"`{task.losses[0]}`", seconds]))
        return "\n".join(lines)

    def points(self, most: int) -> str:
        """Trainings of trees: the best ones of a kind, and how many points of it were trained."""
        heads = ["data", "library", "columns", "lists", "points", "options"]
        lines = [_row([*heads, "validation", "test", "trees"])]
        lines.append("|:--|:--|:--|--:|--:|:--" + "|--:" * 3 + "|")
        shown: dict[tuple[Any, ...], list[tuple[str, Mapping[str, Any]]]] = {}
        for key, own in self.trees.items():
            task = json.loads(key)
            if task["seed"] not in choices.DRAWS:
                names = ("size", "world", "seed", "in_list", "lists", "library")
                kind = tuple(task.get(name, "lightgbm") for name in names)
                shown.setdefault(kind, []).append((_point(task["point"]), own))
        used = set()
        for kind in sorted(shown):
            size, world, seed, in_list, lists, library = kind
            trained = sorted(shown[kind], key=lambda each: -each[1]["best_value"])
            for point, own in trained[:most]:
                used.add(point)
                name = {"xgboost": "XGBoost", "lightgbm": "LightGBM"}[library]
                columns = "features and the list's" if in_list else "features"
                cells = [f"{size}, {world}, seed {seed}", name, columns, f"{lists:,}", len(trained)]
                values = [f"{own['best_value']:.4f}", f"{own['test']:.4f}", own["trees"]]
                lines.append(_row([*cells, point, *values]))
        named = {_point(point): point for point in points()}
        for point in sorted(used & named.keys()):
            options = ", ".join(f"{name} {value}" for name, value in named[point].items())
            lines += ["", f"{point}: {options}."]
        return "\n".join(lines)


def _point(options: Mapping[str, Any]) -> str:
    """The name of a point of LightGBM: a letter, in the order in which points were drawn."""
    return chr(ord("A") + points().index(dict(options))) if options else "defaults"


def every_feature(path: Path) -> str:
    """LightGBM and variants of the default in the third world, by regret on test lists."""
    runs = json.loads(path.read_text(encoding="utf-8"))
    default = next(run for run in runs if run["name"] == "the default")
    lines = [_row(["", "test", "regret", "difference", "p"]), "|:--" + "|--:" * 4 + "|"]
    for run in sorted(runs, key=lambda run: -run["expected"]):
        cells = [run["name"], f"{run['test']:.4f}", f"{100 * (1 - run['expected']):.2f} %"]
        if run is not default:
            values, reference = (decode(own["expected_per_query"]) for own in (run, default))
            cells.append(f"{100 * (values.mean() - reference.mean()):+.2f} %")
            cells.append(_p(paired_t_test(values, reference)))
        lines.append(_row(cells if run is not default else [*cells, "", ""]))
    return "\n".join(lines)


def _default_kinds(runs: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
    """A table of losses by regret on validation lists, beside ``ordered_logit``.

    Args:
        runs: by loss and seed of training; each has a measured expectation.
    """
    compared: dict[str, list[tuple[float, float]]] = {}  # by loss: differences and their p
    for loss, own in runs.items():
        seeds = sorted(own.keys() & runs[choices.ORDERED].keys())
        if loss == choices.ORDERED or not seeds:
            continue
        compared[loss] = []
        for name, sign in (("per_query", 1), ("expected_per_query", -1)):
            of_both = own, runs[choices.ORDERED]
            pair = [sign * _per_query([each[s] for s in seeds], name) for each in of_both]
            compared[loss].append((pair[0].mean() - pair[1].mean(), paired_t_test(*pair)))
    corrected = [
        dict(zip(compared, holm([both[column][1] for both in compared.values()]), strict=True))
        for column in (0, 1)
    ]
    heads = ["", "validation", "test", "regret", "of the test", "difference", "p"]
    lines = [_row([*heads, "in expected NDCG@10", "p"]), "|:--" + "|--:" * 8 + "|"]
    for loss in sorted(runs, key=lambda loss: -_average(runs[loss], "expected")):
        cells = [f"`{loss}`", *_means(runs[loss])]
        for column in (0, 1):
            there = loss in compared
            cells += [f"{compared[loss][column][0]:+.4f}"] if there else [""]
            cells += [_p(corrected[column][loss])] if there else [""]
        lines.append(_row(cells))
    return "\n".join(lines)


def _average(runs: Mapping[int, Mapping[str, Any]], name: str) -> float:
    return float(np.mean([run[name] for run in runs.values()]))


def _compared(
    runs: Mapping[int, Mapping[str, Any]], others: Mapping[int, Mapping[str, Any]]
) -> list[str]:
    """The difference of test NDCG over the seeds that both have, and its p; empty for itself."""
    common = sorted(runs.keys() & others.keys())
    if runs == others or not common:
        return ["", ""]
    pair = [_per_query([each[s] for s in common]) for each in (runs, others)]
    return [f"{pair[0].mean() - pair[1].mean():+.4f}", _p(paired_t_test(*pair))]


def _difference(values: np.ndarray) -> list[str]:
    """The mean difference of two rows of values by query, and its p."""
    first, second = values
    return [f"{first.mean() - second.mean():+.4f}", _p(paired_t_test(first, second))]


def _per_query(runs: Runs, name: str = "per_query") -> np.ndarray:
    """The mean of several trainings, by query."""
    values: np.ndarray = np.mean([decode(run[name]) for run in runs], 0)
    return values


def _means(runs: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Validation and test NDCG, and both regrets, means over seeds; how many, if several."""
    if not runs:
        return [""] * 4
    values = [f"{_average(runs, name):.4f}" for name in ("best_value", "test")]
    if len(runs) > 1:
        values[0] += f" ({len(runs)} seeds)"
    values.append(f"{100 * (1 - _average(runs, 'expected')):.2f} %")
    if not all("expected_per_query" in run for run in runs.values()):
        return [*values, ""]  # of a training before it was measured
    lost = np.mean([decode(run["expected_per_query"]) for run in runs.values()])
    return [*values, f"{100 * lost:.2f} %"]


def _way(own: Mapping[str, Any], other: Mapping[str, Any], best: float) -> str:
    """How far from one to the best achievable another is, with standard error; if they differ."""
    values = decode(own["per_query"]), decode(other["per_query"])
    way = (own["test"] - other["test"]) / (best - other["test"])
    differences = values[0] - values[1]
    error = differences.std() / math.sqrt(len(differences)) / abs(best - other["test"])
    return f"{100 * way:.0f} ± {100 * error:.0f} % (p {_p(paired_t_test(*values))})"


def _p(value: float) -> str:
    shown = f"{value:.2g}" if value >= 1e-300 else "below 1e-300"
    shown = f"{value:.3g}" if shown == "0.05" else shown
    return f"**{shown}**" if value < 0.05 else shown


def _words(task: Task, reference: Task) -> str:
    """What a task does differently."""
    if task == reference:
        return f"{_model(task.model)}, `{task.losses[0]}`"
    found = []
    if task.data.in_list != reference.data.in_list:
        found.append("columns of the list: " + (", ".join(task.data.in_list) or "none"))
    if task.data.transforms != reference.data.transforms:
        names = {choices.QUANTILE: "quantile", choices.LOG: "log1p", choices.NORMAL: "normal"}
        found.append("transforms: " + " and ".join(names[each] for each in task.data.transforms))
    if task.model != reference.model:
        found.append(_model(task.model))
    if task.losses != reference.losses:
        found.append(", then ".join(f"`{loss}`" for loss in task.losses))
    found += [f"{name} {value}" for name, value in task.changes if name != "graphs"]
    return "; ".join(found)


def _model(spec: str) -> str:
    return f"`{spec}`"
