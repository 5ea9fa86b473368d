"""The ablation behind the default of Ranker: MQ2008, configurations x folds x seeds.

python benchmarks/ablation.py --data MQ2008 --out runs.jsonl [--seeds N] [--processes N]
python benchmarks/ablation.py --summary runs.jsonl [--seeds N] [--test] [--csv runs.csv]

Every run is one line of JSON in the output, with its validation metrics epoch by epoch. Runs that
are there already are not repeated, so the command can be stopped and given again. Choices are made
on validation data; the summary shows the test folds only where --test is given.
"""

from __future__ import annotations

import argparse
import base64
import csv
import itertools
import json
import multiprocessing
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

METRIC = "ndcg@5(gain=linear)"  # that of trec_eval: lists without a relevant item count 0
METRICS = [METRIC, "ndcg@10(gain=linear)", "ndcg(gain=linear)", "ap"]
FOLDS = (1, 2, 3, 4, 5)


def _model(members=8, share="nothing", in_list="[rank, score]", hidden="[64]", dropout=0.3):
    return (
        f"tabm(hidden={hidden}, members={members}, share={share}, dropout={dropout}, "
        f"in_list={in_list})"
    )


_ALONE = "mlp(hidden=[64], dropout=0.3)"
_CONTEXT = "context_aware(fc=[32], blocks=1, ff=64, dropout=0.3)"

#: Most telling first. Each says what it changes in the default settings, which are the recipe.
CONFIGURATIONS = {
    "recipe": {},
    "without rank and score in the list": {"model": _model(in_list="[]")},
    "one member": {"model": _model(members=1)},
    "members share weights (TabM)": {"model": _model(share="adapters")},
    "plain perceptron": {"model": _ALONE},
    "plain perceptron, approx_ndcg": {"model": _ALONE, "loss": "approx_ndcg"},
    "rank only": {"model": _model(in_list="[rank]")},
    "score only": {"model": _model(in_list="[score]")},
    "averaged weights": {"average": 0.98},
    "32 members": {"model": _model(members=32)},
    "self-attention": {"model": _CONTEXT, "learning_rate": 1e-3},
    "self-attention, ranks": {"model": _CONTEXT, "learning_rate": 1e-3, "inputs": "rank"},
    "means of the list": {"inputs": "mean"},
    "piecewise-linear, 4 bins": {
        "model": _model(in_list="[]"),
        "inputs": "piecewise4",
        "transforms": ["drop_constant"],
    },
    "piecewise-linear, 8 bins": {
        "model": _model(in_list="[]"),
        "inputs": "piecewise8",
        "transforms": ["drop_constant"],
    },
    "standardized only": {"transforms": ["drop_constant", "standardize"]},
    "cosine, 40 epochs": {"schedule": "cosine", "epochs": 40, "patience": None},
    "no dropout": {"model": _model(dropout=0.0)},
    "dropout 0.5": {"model": _model(dropout=0.5)},
    "hidden 16": {"model": _model(hidden="[16]")},
    "hidden 256": {"model": _model(hidden="[256]")},
    "hidden 64, 64": {"model": _model(hidden="[64, 64]")},
    "linear": {"model": _model(hidden="[]", dropout=0.0)},
    **{
        loss: {"loss": loss}
        for loss in (
            "lambdaloss",
            "listnet",
            "approx_ndcg",
            "approx_dcg(gain=linear)",
            "neural_ndcg",
            "lambdarank",
            "ranknet",
            "approx_ap",
            "mse",
        )
    },
}


def run(task):
    """Train one configuration on one fold with one seed."""
    import torch

    import rankgrad
    from rankgrad.training import Settings, fit

    torch.set_num_threads(1)
    folder, name, given, fold, seed, keep = task
    options = dict(given)
    splits = _inputs(_splits(folder, fold), options.pop("inputs", None))
    began = time.perf_counter()
    settings = Settings(**{"metrics": METRICS, "device": "cpu", "seed": seed, **options})
    done = fit(settings, splits["train"], splits["vali"])
    seconds = time.perf_counter() - began
    line = {"name": name, "fold": fold, "seed": seed, "options": given, "seconds": seconds}
    line |= {"best_epoch": done.best_epoch, "epochs": len(done.history)}
    line["curves"] = {m: [round(h[m], 5) for h in done.history] for m in METRICS}
    for part in ("vali", "test"):
        data = splits[part]
        scores = done.model.predict(data.features, data.offsets)
        found = rankgrad.evaluate(scores, data.labels, offsets=data.offsets, metrics=METRICS)
        line[part] = {m: round(float(found[m]), 6) for m in METRICS}
        if keep:
            scores = (scores - scores.mean()) / (scores.std() + 1e-9)
            line[f"{part}_scores"] = base64.b64encode(scores.astype(np.float16).tobytes()).decode()
    return line


_loaded = {}


def _splits(folder, fold):
    from rankgrad import data

    if fold not in _loaded:
        _loaded[fold] = data.load_splits(folder, fold=fold)
    return _loaded[fold]


def _inputs(splits, kind):
    """The data with other or more features: what was tried and is not in the library.

    ``mean``: the means over the list beside the features. ``score``: how many deviations an item is
    from them. ``rank``: its rank in the list. ``piecewise8``: in place of each feature, how far it
    has come through each of 8 bins between quantiles (Gorishniy et al. 2022).
    """
    from rankgrad.data import Dataset

    if kind is None:
        return splits
    if kind.startswith("piecewise"):
        bins = int(kind.removeprefix("piecewise"))
        edges = np.quantile(splits["train"].features, np.linspace(0, 1, bins + 1), axis=0)
        bounds = [(at, *pair) for at, e in enumerate(edges.T) for pair in itertools.pairwise(e)]
        source, low, high = np.array([b for b in bounds if b[2] > b[1]]).T
        columns = source.astype(int)
    changed = {}
    for part, data in splits.items():
        if kind.startswith("piecewise"):
            features = ((data.features[:, columns] - low) / (high - low)).clip(0, 1)
        else:
            added = [_IN_LIST[kind](data.features[a:b].astype(np.float64)) for a, b in _spans(data)]
            features = np.concatenate([data.features, np.concatenate(added)], 1)
        features = features.astype(np.float32)
        changed[part] = Dataset(features, data.labels, data.offsets, data.qids)
    return changed


_IN_LIST = {
    "mean": lambda x: np.broadcast_to(x.mean(0), x.shape),
    "score": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-3),
    "rank": lambda x: (x[None] < x[:, None]).mean(1) + 0.5 * (x[None] == x[:, None]).mean(1),
}


def _spans(data):
    return zip(data.offsets[:-1], data.offsets[1:], strict=True)


def run_all(configurations, folder, out, seeds, processes, deadline, keep):
    """Run what is not in ``out`` yet, first configurations first, until the deadline."""
    began = time.monotonic()
    done = {(line["name"], line["fold"], line["seed"]) for line in read(out)}
    tasks = [
        (folder, name, options, fold, seed, keep)
        for seed in seeds
        for name, options in configurations.items()
        for fold in FOLDS
        if (name, fold, seed) not in done
    ]
    print(f"{len(tasks)} runs to do, {len(done)} done", flush=True)
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool, Path(out).open("a", encoding="utf-8") as file:
        found = pool.imap_unordered(run, tasks)
        for number in range(len(tasks)):
            left = None if deadline is None else deadline - (time.monotonic() - began)
            try:
                line = found.next(timeout=left if left is None else max(0.0, left))
            except multiprocessing.TimeoutError:
                print(f"deadline: {len(tasks) - number} runs are left", flush=True)
                pool.terminate()
                break
            file.write(json.dumps(line) + "\n")
            file.flush()
    print(f"{time.monotonic() - began:.0f} s", flush=True)


def read(path):
    """The lines of an output; the last may be cut short."""
    lines = []
    if Path(path).exists():
        for text in Path(path).read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                continue
    return lines


def summary(lines, test):
    """A Markdown table: means over the folds, and over seeds their mean and deviation."""
    parts = ["vali", "test"] if test else ["vali"]
    by_name = {}
    for line in lines:
        by_name.setdefault(line["name"], {})[line["seed"], line["fold"]] = line
    heads = [f"{part} {metric}" for part in parts for metric in METRICS[: 1 if test else None]]
    rows = ["| configuration | seeds | " + " | ".join(heads) + " | best epoch | seconds |"]
    rows.append("|---" * (len(heads) + 4) + "|")
    for name, runs in by_name.items():
        seeds = [s for s in sorted({s for s, _ in runs}) if all((s, f) in runs for f in FOLDS)]
        if not seeds:
            continue
        cells = []
        for part in parts:
            for metric in METRICS[: 1 if test else None]:
                means = [np.mean([runs[s, f][part][metric] for f in FOLDS]) for s in seeds]
                cells.append(f"{np.mean(means):.4f} ± {np.std(means, ddof=len(means) > 1):.4f}")
        whole = [runs[s, f] for s in seeds for f in FOLDS]
        cells += [f"{np.mean([r[key] for r in whole]):.1f}" for key in ("best_epoch", "seconds")]
        rows.append(f"| {name} | {len(seeds)} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def write_csv(lines, path):
    """A row per run: validation and test metrics at its best epoch."""
    heads = [f"{part} {metric}" for part in ("vali", "test") for metric in METRICS]
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["configuration", "fold", "seed", "best epoch", *heads])
        for line in lines:
            found = [line[part][metric] for part in ("vali", "test") for metric in METRICS]
            writer.writerow([line["name"], line["fold"], line["seed"], line["best_epoch"], *found])


def chosen_per_fold(lines):
    """The test value where each fold takes the configuration that is best on its own validation."""
    found = {}
    for line in lines:
        found.setdefault((line["fold"], line["name"]), []).append(line)
    values, names = [], []
    for fold in FOLDS:
        here = {name: runs for (f, name), runs in found.items() if f == fold}
        best = max(here, key=lambda name: np.mean([r["vali"][METRIC] for r in here[name]]))
        names.append(best)
        values.append(np.mean([r["test"][METRIC] for r in here[best]]))
    return float(np.mean(values)), names


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="the folder with Fold1 to Fold5")
    parser.add_argument("--out", help="where lines are added")
    parser.add_argument("--configurations", help="others than those here: JSON, by name")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--deadline", type=float, help="stop after so many seconds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scores", action="store_true", help="keep the scores in the lines too")
    parser.add_argument("--summary", nargs="+", metavar="FILE", default=[])
    parser.add_argument("--test", action="store_true", help="show test values in the summary")
    parser.add_argument("--csv", help="write what the summary is of, a row per run")
    given = parser.parse_args()
    if given.summary:
        lines = [line for path in given.summary for line in read(path)]
        lines = [line for line in lines if line["seed"] < given.seeds]
        if given.csv:
            write_csv(lines, given.csv)
        print(summary(lines, given.test))
        if given.test:
            value, names = chosen_per_fold(lines)
            print(f"\nchosen fold by fold on its own validation: {value:.4f} ({', '.join(names)})")
        return
    configurations = CONFIGURATIONS
    if given.configurations:
        configurations = json.loads(Path(given.configurations).read_text(encoding="utf-8"))
    seeds = range(given.seeds)
    run_all(
        configurations,
        given.data,
        given.out,
        seeds,
        given.processes,
        given.deadline,
        given.scores,
    )


if __name__ == "__main__":
    main()
