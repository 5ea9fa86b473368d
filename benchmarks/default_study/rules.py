"""The default as users get it: rules of the data applied, trained by the library, on any device."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from train import encode, ndcg

from rankgrad.data import synthetic
from rankgrad.training import Settings, fit
from rankgrad.training._settings import for_data


def run(
    output: Path, size: str, seed: int, world: str, model: str, batch_size: int | None = None
) -> None:
    """Train once and add a line to the results.

    Args:
        output: a file.
        size: a size of the simulator.
        seed: of the queries.
        world: of the simulator.
        model: ``rules``, or a model that is trained with the other defaults.
        batch_size: in place of that of the rules.
    """
    splits = synthetic.splits(size, seed=seed, world=world)
    explicit: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    explicit |= {} if model == "rules" else {"model": model}
    settings, notes = for_data(Settings(**explicit), splits["train"], explicit)
    name = model if batch_size is None else f"batch_size={batch_size}"
    began = time.perf_counter()
    done = fit(settings, splits["train"], splits["vali"])
    seconds = round(time.perf_counter() - began, 1)
    test = splits["test"]
    scores = np.asarray(done.model.predict(test.features, test.offsets))
    values = ndcg(torch.from_numpy(scores), test)
    own = {"size": size, "seed": seed, "world": world, "model": name, "notes": notes}
    own |= {"best_value": done.best_value, "test": float(values.mean()), "seconds": seconds}
    own |= {"epochs": len(done.history), "per_query": encode(values)}
    with output.open("a", encoding="utf-8") as file:
        file.write(json.dumps(own) + "\n")
    shown = f"validation {own['best_value']:.4f}, test {own['test']:.4f}, {seconds} s"
    print(f"{size}, {world}, seed {seed}, {name}: {shown}", *notes, sep="\n")
