"""Missing values: the default ranker with and without indicators beside LightGBM's own handling.

    python benchmarks/missing_values.py [--queries 120] [--seeds 3] [-o docs/results/missing.md]

Pages and judgments are simulated (rankgrad.data.synthetic). Of the feature values 30 % are then
removed, not at random: in a third of the features the larger values, in a third those of items
whose next feature is large, in a third those of irrelevant pages are missing more often. Every
ranker is trained on the complete data and on those with missing values, its epoch or number of
trees chosen on validation data, and tested on queries of its own; scores of seeds are averaged per
query before the paired t-test over queries.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np

import rankgrad
from rankgrad import significance
from rankgrad.data import Dataset, synthetic
from rankgrad.training import Settings, fit

METRIC = "ndcg@10"
SHARE = 0.3  # of the values, missing
TREES = {"objective": "lambdarank", "num_leaves": 31, "learning_rate": 0.05, "verbosity": -1}
DEFAULT, PLAIN, LIGHTGBM = "rankgrad, default", "rankgrad, impute(indicator=false)", "LightGBM"


def remove(lists: Dataset, reference: Dataset, seed: int) -> Dataset:
    """The lists with missing values; ``reference`` says which values of a feature are large."""
    random = np.random.default_rng(seed)
    features = np.array(lists.features)
    ordered = np.sort(reference.features, axis=0)
    ranks = np.stack(
        [np.searchsorted(o, f, side="right") for o, f in zip(ordered.T, features.T, strict=True)], 1
    ) / len(ordered)
    for column in range(features.shape[1]):
        if column % 3 == 2:
            chance = np.where(lists.labels > 0, 0.9, 1.1)
        else:
            by = column if column % 3 == 0 else (column + 1) % features.shape[1]
            chance = 0.2 + 1.6 * ranks[:, by]
        chance = SHARE * chance / chance.mean()
        features[random.random(len(features)) < chance, column] = np.nan
    return replace(lists, features=features)


def network_scores(splits: dict[str, Dataset], seed: int, indicator: bool) -> np.ndarray:
    """Test scores of the default settings, or of those without missing values' indicators."""
    transforms = Settings().transforms
    if not indicator:
        transforms = (*transforms, "impute(indicator=false)")
    settings = Settings(seed=seed, device="cpu", transforms=transforms)
    model = fit(settings, splits["train"], splits["vali"]).model
    return model.predict(splits["test"].features, splits["test"].offsets)


def tree_scores(splits: dict[str, Dataset], seed: int) -> np.ndarray:
    """Test scores of LightGBM's lambdarank, which sends missing values down learned branches."""
    train, vali = (
        lightgbm.Dataset(part.features, part.labels, group=part.lengths)
        for part in (splits["train"], splits["vali"])
    )
    options = TREES | {"metric": "ndcg", "eval_at": [10], "seed": seed, "num_threads": 1}
    options |= {"feature_fraction": 0.8, "bagging_fraction": 0.8, "bagging_freq": 1}
    stop = lightgbm.early_stopping(50, verbose=False)
    booster = lightgbm.train(options, train, 500, valid_sets=[vali], callbacks=[stop])
    return np.asarray(booster.predict(splits["test"].features))


def values(scores: np.ndarray, test: Dataset) -> np.ndarray:
    """The metric on each test list."""
    found = rankgrad.evaluate(scores, test.labels, offsets=test.offsets, metrics=[METRIC])
    return found.per_list[METRIC].double().numpy()


def run(queries: int, seeds: int) -> dict[tuple[str, str], np.ndarray]:
    """The metric on each test list by data and ranker, the mean over seeds."""
    sizes = {"train": queries, "vali": queries // 2, "test": 2 * queries}
    whole = {name: synthetic.make(size, features=32, split=name) for name, size in sizes.items()}
    missing = {
        name: remove(part, whole["train"], seed) for seed, (name, part) in enumerate(whole.items())
    }
    found: dict[tuple[str, str], np.ndarray] = {}
    for kind, splits in (("complete", whole), ("missing", missing)):
        rankers = {
            DEFAULT: lambda seed, s=splits: network_scores(s, seed, True),
            PLAIN: lambda seed, s=splits: network_scores(s, seed, False),
            LIGHTGBM: lambda seed, s=splits: tree_scores(s, seed),
        }
        for name, ranker in rankers.items():
            if (kind, name) == ("complete", PLAIN):
                continue  # the same as the default
            began = time.perf_counter()
            each = [values(ranker(seed), splits["test"]) for seed in range(seeds)]
            found[kind, name] = np.mean(each, 0)
            seconds = time.perf_counter() - began
            print(f"{kind:9}{name:36}{np.mean(each):.4f}  {seconds:6.1f} s", flush=True)
    return found


def page(found: dict[tuple[str, str], np.ndarray], command: str) -> str:
    """The results as Markdown."""
    text = [
        "# Missing values",
        "",
        f"```sh\n{command}\n```",
        "",
        " ".join((__doc__ or "").split("\n\n", 2)[2].split()),
        "",
        "| data | ranker | NDCG@10 | from LightGBM | p |",
        "|:--|:--|--:|--:|--:|",
    ]
    for (kind, name), value in found.items():
        base = found[kind, LIGHTGBM]
        difference = f"{value.mean() - base.mean():+.4f}" if name != LIGHTGBM else ""
        p = f"{significance.paired_t_test(value, base):.2g}" if name != LIGHTGBM else ""
        text.append(f"| {kind} | {name} | {value.mean():.4f} | {difference} | {p} |")
    with_, without = found["missing", DEFAULT], found["missing", PLAIN]
    p = significance.paired_t_test(with_, without)
    ahead = {
        k: found[k, DEFAULT].mean() - found[k, LIGHTGBM].mean() for k in ("complete", "missing")
    }
    lost = {
        n: found["complete", n].mean() - found["missing", n].mean() for n in (DEFAULT, LIGHTGBM)
    }
    text += [
        "",
        f"- Indicators add {with_.mean() - without.mean():+.4f} (p = {p:.2g}, paired t-test over "
        f"{len(with_)} queries).",
        f"- The default is ahead of LightGBM by {ahead['complete']:+.4f} on complete data and by "
        f"{ahead['missing']:+.4f} with missing values. These cost the default "
        f"{lost[DEFAULT]:.4f} and LightGBM {lost[LIGHTGBM]:.4f}.",
        "",
    ]
    return "\n".join(text)


def main() -> None:
    """Train, test, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=120, help="training queries (120)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each ranker (3)")
    parser.add_argument("-o", "--output", type=Path, help="a Markdown file to write")
    arguments = parser.parse_args()
    found = run(arguments.queries, arguments.seeds)
    command = f"python benchmarks/missing_values.py --queries {arguments.queries}"
    text = page(found, f"{command} --seeds {arguments.seeds} -o docs/results/missing.md")
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
