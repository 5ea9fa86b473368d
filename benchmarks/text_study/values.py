"""The raw result: what every run has for every test query, in one small file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from plan import (
    AP,
    CHOICES,
    COLLECTIONS,
    DECIDING,
    FOLDS,
    LOSSES,
    METRIC,
    OF_COLLECTION,
    RECIPE,
    SEEDS,
    Task,
    choose,
)
from prepare import load_candidates
from train import decode

from rankgrad.text._candidates import Candidates, folds
from rankgrad.text._interpolation import choose_weight, interpolate

_ARRAYS = ("qids", "fold", "references", "values", "validation", "best_epoch", "weight")
_ARRAYS += ("seconds", "choices", "chosen")


@dataclass(frozen=True)
class CollectionValues:
    """The values of one collection; NaN where a run is missing.

    Attributes:
        qids: of the queries, ``[Q]``.
        fold: whose test query each is, from 1, ``[Q]``.
        references: BM25 and the untrained encoder, ``[2, mixed, metric, Q]``: alone and mixed with
            BM25, nDCG@10 and AP.
        values: ``[loss, seed, mixed, metric, Q]``.
        validation: nDCG@10 of the best epoch, ``[loss, seed, fold]``.
        best_epoch: -1 of a run that diverged, ``[loss, seed, fold]``.
        weight: of BM25, ``[loss, seed, fold]``.
        seconds: ``[loss, seed, fold]``.
        choices: validation nDCG@10 of the runs that chose a recipe, ``[choice, loss, fold]``.
        chosen: the number of the choice of each fold, -1 where none is made, ``[fold]``.
    """

    qids: np.ndarray
    fold: np.ndarray
    references: np.ndarray
    values: np.ndarray
    validation: np.ndarray
    best_epoch: np.ndarray
    weight: np.ndarray
    seconds: np.ndarray
    choices: np.ndarray
    chosen: np.ndarray


def collect(study: Path, results: Mapping[str, Mapping[str, Any]], output: Path) -> None:
    """Evaluate the scores of all runs and write the values of every query."""
    arrays: dict[str, np.ndarray] = {}
    for name in COLLECTIONS:
        if not (study / f"{name}.json.gz").is_file():
            continue
        found = _values(study, name, results)
        done = int((~np.isnan(found.validation)).sum())
        print(f"{name}: {done} of {found.validation.size} runs")
        arrays |= {f"{name}/{array}": getattr(found, array) for array in _ARRAYS}
    recipe = {"all": RECIPE, "of the collection": OF_COLLECTION, "chosen per fold": CHOICES}
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, recipe=np.array(json.dumps(recipe)), **arrays)
    print(f"{output}: {output.stat().st_size / 1e3:.0f} kB")


def load(path: Path) -> dict[str, CollectionValues]:
    """Read what :func:`collect` wrote, by collection."""
    with np.load(path, allow_pickle=False) as file:
        return {
            name: CollectionValues(**{array: file[f"{name}/{array}"] for array in _ARRAYS})
            for name in COLLECTIONS
            if f"{name}/qids" in file
        }


def _values(study: Path, name: str, results: Mapping[str, Mapping[str, Any]]) -> CollectionValues:
    candidates = load_candidates(study, name)
    splits = folds(len(candidates), FOLDS)
    queries, shape = len(candidates), (len(LOSSES), len(SEEDS), FOLDS)
    fold = np.zeros(queries, np.int8)
    values = np.full((len(LOSSES), len(SEEDS), 2, 2, queries), np.nan, np.float32)
    validation, weights, seconds = (np.full(shape, np.nan, np.float32) for _ in range(3))
    best_epoch, chosen = np.zeros(shape, np.int8), np.full(FOLDS, -1, np.int8)
    references = np.full((2, 2, 2, queries), np.nan, np.float32)
    references[0, 0] = per_query(candidates, candidates.first_stage)
    untrained = np.load(study / f"{name}-untrained.npy", allow_pickle=False)
    for number, split in enumerate(splits):
        fold[split.test] = number + 1
        vali, test = candidates.select(split.vali), candidates.select(split.test)
        parts = [untrained[candidates.items(own)] for own in (split.vali, split.test)]
        references[1][..., split.test] = alone_and_mixed(vali, test, *parts)[0]
        choice = choose(results, name, number + 1)
        if choice is None:
            continue
        chosen[number] = list(CHOICES).index(choice)
        for at, loss in enumerate(LOSSES):
            for seed in SEEDS:
                own = results.get(Task(name, number + 1, seed, loss, choice).key)
                if own is None:
                    continue
                place = (at, seed, number)
                seconds[place] = own["seconds"]
                best_epoch[place] = own.get("best_epoch", -1)
                if "test" not in own:
                    continue
                both, weight = alone_and_mixed(vali, test, decode(own["vali"]), decode(own["test"]))
                values[at, seed][..., split.test] = both
                validation[place], weights[place] = own["best_value"], weight
    return CollectionValues(
        qids=np.array(candidates.qids),
        fold=fold,
        references=references,
        values=values,
        validation=validation,
        best_epoch=best_epoch,
        weight=weights,
        seconds=seconds,
        choices=_choices(name, results),
        chosen=chosen,
    )


def _choices(name: str, results: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    found = np.full((len(CHOICES), len(DECIDING), FOLDS), np.nan, np.float32)
    for row, choice in enumerate(CHOICES):
        for at, loss in enumerate(DECIDING):
            for fold in range(FOLDS):
                own = results.get(Task(name, fold + 1, 0, loss, choice).key, {})
                found[row, at, fold] = own.get("best_value", np.nan)
    return found


def alone_and_mixed(
    vali: Candidates, test: Candidates, on_vali: np.ndarray, on_test: np.ndarray
) -> tuple[np.ndarray, float]:
    """Values of test queries ``[2, metric, q]`` by scores alone and with BM25's, and its weight."""
    weight = choose_weight(on_vali, vali, METRIC)
    mixed = interpolate(on_test, test.first_stage, test.offsets, weight)
    return np.stack([per_query(test, on_test), per_query(test, mixed)]), weight


def per_query(candidates: Candidates, scores: np.ndarray) -> np.ndarray:
    """nDCG@10 and AP of every query, ``[2, q]``."""
    found = candidates.evaluate(scores, [METRIC, AP]).values.per_list
    return np.stack([found[METRIC].numpy(), found[AP].numpy()])
