"""MQ2008, five folds: train with default settings, choose the epoch on validation, test.

python benchmarks/mq2008.py FOLDER [LOSS ...] [--seeds N] [--set NAME=VALUE ...]

FOLDER holds Fold1 to Fold5. Only the loss is given, all else is the default unless --set says so.
NDCG@5 is that of trec_eval: linear gain, and lists without a relevant item count 0.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import rankgrad
from rankgrad import data
from rankgrad.training import Settings, fit

METRIC = "ndcg@5(gain=linear)"


def run(folder, loss, seeds=1, **options):
    """The test and validation values of each fold, meaned over seeds, and the seconds."""
    began = time.perf_counter()
    test, vali = np.zeros(5), np.zeros(5)
    for fold in range(1, 6):
        splits = data.load_splits(folder, fold=fold)
        for seed in range(seeds):
            settings = Settings(loss=loss, seed=seed, device="cpu", **options)
            model = fit(settings, splits["train"], splits["vali"]).model
            for values, part in ((test, splits["test"]), (vali, splits["vali"])):
                scores = model.predict(part.features, part.offsets)
                found = rankgrad.evaluate(
                    scores, part.labels, offsets=part.offsets, metrics=[METRIC]
                )
                values[fold - 1] += found[METRIC] / seeds
    return test, vali, time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("losses", nargs="*", default=[Settings().loss])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    options = dict(text.split("=", 1) for text in given.set)
    print(f"{METRIC}, lists without relevant items count 0; {torch.get_num_threads()} threads")
    print(
        f"{'loss':<24}" + "".join(f"  fold {n}" for n in range(1, 6)) + "    test    vali  seconds"
    )
    for loss in given.losses:
        test, vali, seconds = run(given.folder, loss, given.seeds, **options)
        folds = "".join(f"  {value:.4f}" for value in test)
        print(
            f"{loss:<24}{folds}  {test.mean():.4f}  {vali.mean():.4f}  {seconds:7.1f}", flush=True
        )


if __name__ == "__main__":
    main()
