"""Small things beside LightGBM's, in one run: a default fit, one list's scores, short lists.

    python benchmarks/small_data.py --data MQ2008
    python benchmarks/small_data.py --repeats 5 --json small_data.json

Everything runs on one thread, and what is counted is CPU time of this process, so that other
processes matter little; the two sides take turns, and the table has the median of each and the
ratio. Without ``--data``, lists are drawn at random with the sizes of MQ2008's first fold.

- fit: ``Ranker()`` and ``LGBMRanker()`` with their defaults, on the same lists with the same
  validation lists. LightGBM's default is 100 trees, whatever the validation lists say; the row
  "beside early stopping" is the same ``Ranker()`` beside a LightGBM that stops after 20 trees
  without a better NDCG@10. The sum over all folds of the data unless ``--fold`` says which: how
  many epochs there are differs much between them.
- predict: one list of 100 items with 46 features.
- epoch, validate, evaluate: 10 times as many lists of 10 items as of 100, the same model. The same
  number of items is in both, so a ratio above 1 is what lists and steps cost by themselves.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from rankgrad import Ranker, evaluate
from rankgrad.data import Dataset, _layout, load_splits
from rankgrad.training import Settings, fit, trainer

FEATURES = 46


def draw(count: int, length: int, seed: int = 0) -> Dataset:
    """Lists of random features with labels that depend on some of them."""
    random = np.random.default_rng(seed)
    features = random.random((count * length, FEATURES), dtype=np.float32)
    labels = (3 * features[:, :3].mean(1) + 0.3 * random.normal(size=len(features)) - 0.5).round()
    offsets = np.arange(0, len(features) + 1, length)
    return Dataset(features, labels.clip(0, 2), offsets, np.arange(count).astype(np.str_))


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turns(
    ours: Callable[[], Any], others: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, dict[str, float]]:
    """The medians of pieces of work that take turns, ours beside each of the others."""
    works = (ours, *others.values())
    for work in works:  # compiled, imported and cached
        work()
    rounds = [[cpu_seconds(work) for work in works] for _ in range(repeats)]
    mine, *theirs = (statistics.median(side) for side in zip(*rounds, strict=True))
    return {name: _row(mine, other) for name, other in zip(others, theirs, strict=True)}


def _row(ours: float, theirs: float) -> dict[str, float]:
    return {"ours": ours, "theirs": theirs, "ratio": ours / theirs}


def fits(train: Dataset, vali: Dataset, repeats: int) -> dict[str, dict[str, float]]:
    """A default fit beside LightGBM's default and beside one that stops early, all in turns."""

    def ours() -> None:
        Ranker(device="cpu").fit(
            train.features,
            train.labels,
            group=train.lengths,
            eval_set=(vali.features, vali.labels),
            eval_group=vali.lengths,
        )

    # Newer versions of LightGBM have other names for the validation data.
    warnings.filterwarnings("ignore", message="The argument 'eval_set' is deprecated")

    def theirs(*callbacks: Any) -> None:
        lightgbm.LGBMRanker(verbosity=-1, n_jobs=1).fit(
            train.features,
            train.labels,
            group=train.lengths,
            eval_set=[(vali.features, vali.labels)],
            eval_group=[vali.lengths],
            eval_at=[10],
            callbacks=[*callbacks],
        )

    def theirs_stopped() -> None:
        theirs(lightgbm.early_stopping(20, verbose=False))

    return in_turns(ours, {"fit": theirs, "fit, beside early stopping": theirs_stopped}, repeats)


def predictions(train: Dataset, repeats: int) -> dict[str, float]:
    """Of one list of 100 items, many times, so that a clock can tell."""
    ours = Ranker(device="cpu", epochs=1).fit(train.features, train.labels, group=train.lengths)
    theirs = lightgbm.LGBMRanker(verbosity=-1, n_jobs=1)
    theirs.fit(train.features, train.labels, group=train.lengths)
    one, qid, times = draw(1, 100).features, np.zeros(100, np.int64), range(200)
    found = in_turns(
        lambda: [ours.predict(one, qid) for _ in times],
        {"predict": lambda: [theirs.predict(one) for _ in times]},
        repeats,
    )["predict"]
    return _row(found["ours"] / len(times), found["theirs"] / len(times))


def short_lists(lists: int) -> dict[str, dict[str, float]]:
    """An epoch, a validation and an evaluation over lists of 10, and over lists of 100."""
    spent: dict[str, float] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            found = function(*arguments, **options)
            spent[name] = time.process_time() - start
            return found

        return call

    trainer.Trainer._epoch = timed("epoch", trainer.Trainer._epoch)  # type: ignore[method-assign]
    trainer.validate = timed("validate", trainer.validate)
    settings, sides = Settings(epochs=1, device="cpu"), []
    fit(settings, draw(40, 10), draw(40, 100))
    for count, length in ((lists, 10), (lists // 10, 100)):
        data = draw(count, length)
        model = fit(settings, data, data).model
        scores = timed("predict", model.predict)(data.features, data.offsets)
        timed("evaluate", evaluate)(scores, data.labels, offsets=data.offsets)
        sides.append(dict(spent))
    short, long = sides
    return {f"{name} of short lists": _row(short[name], long[name]) for name in short}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="a folder of train and vali")
    parser.add_argument("--fold", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lists", type=int, default=100_000, help="of 10 items")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pairs = [(draw(470, 20), draw(157, 20, seed=1))]
    if arguments.data is not None:
        folds = [arguments.fold] if arguments.fold else _layout.folds(arguments.data) or [None]
        splits = [load_splits(arguments.data, fold) for fold in folds]
        pairs = [(each["train"], each["vali"]) for each in splits]
    train, _ = pairs[0]
    each_fit = [fits(*pair, arguments.repeats) for pair in pairs]
    found = {
        **{
            name: _row(*(sum(one[name][side] for one in each_fit) for side in ("ours", "theirs")))
            for name in each_fit[0]
        },
        "predict": predictions(train, arguments.repeats),
        **short_lists(arguments.lists),
    }
    print(f"{'':<28}{'ours':>10}{'LightGBM':>10}{'ratio':>8}   (CPU seconds; short: of 10, of 100)")
    for name, line in found.items():
        print(f"{name:<28}{line['ours']:>10.4f}{line['theirs']:>10.4f}{line['ratio']:>8.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
