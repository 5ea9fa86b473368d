"""Run folders made without training: curves and scores are drawn at random."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankgrad.data import Dataset
from rankgrad.training import Settings
from rankgrad.training._evaluations import EvaluatedLists

METRICS = ("ndcg@5", "ndcg@10", "ap", "rr")


def make_data(queries: int, items: int = 12, seed: int = 0, qid: str = "q{}") -> Dataset:
    """Lists of unequal lengths with labels 0 to 4, and one feature that knows them."""
    random = np.random.default_rng(seed)
    lengths = random.integers(max(2, items // 2), items + 1, queries)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    labels = random.choice(5, offsets[-1], p=[0.6, 0.15, 0.1, 0.1, 0.05]).astype(np.float32)
    features = (labels + random.normal(size=len(labels)))[:, None].astype(np.float32)
    return Dataset(features, labels, offsets, [qid.format(i) for i in range(queries)])


def make_run(
    path: Path,
    data: Dataset,
    *,
    loss: str = "approx_ndcg",
    seed: int = 0,
    quality: float = 1.0,
    epochs: int = 6,
    candidate: str | None = None,
    fold: int | None = None,
    settings: dict[str, Any] | None = None,
    evaluate: bool = True,
    trained: bool = True,
    kind: str | None = None,
    metrics: tuple[str, ...] = METRICS,
) -> Path:
    """A run folder with curves and an evaluation; a better ``quality`` ranks better."""
    path.mkdir(parents=True)
    random = np.random.default_rng([seed, len(loss), int(quality * 1000), fold or 0])
    facts = {
        "format": "rankgrad run",
        "version": 1,
        "command": f"rankgrad train DATA --loss '{loss}' --seed {seed}",
        "versions": {"python": "3.11.0", "rankgrad": "0.1.0"},
        "data": {"train": {"lists": 9, "items": 99, "features": 3, "checksum": "ab" * 8}},
    }
    (path / "run.json").write_text(json.dumps(facts))
    if trained:
        known = Settings(seed=seed, epochs=epochs, **(settings or {})).to_toml()
        # Not by Settings, which refuses names that are not losses of ours.
        text = "\n".join(
            f"loss = {json.dumps(loss)}" if line.startswith("loss =") else line
            for line in known.splitlines()
        )
        (path / "settings.toml").write_text(text)
        (path / "best").mkdir()
        with (path / "metrics.jsonl").open("w") as file:
            for epoch in range(1, epochs + 1):
                rise = quality * (1 - np.exp(-epoch / 4)) / 2 + random.normal() * 0.01
                line = {name: 0.3 + rise - 0.05 * at for at, name in enumerate(METRICS)}
                line |= {"epoch": epoch, "loss": 0.7 - rise, "learning_rate": 0.01}
                file.write(json.dumps(line | {"seconds": epoch * 1.5}) + "\n")
    if evaluate:
        noise = random.normal(size=data.n_items) * 2 / quality
        scores = np.asarray(data.features)[:, 0] + noise
        labels: dict[str, Any] = {"loss": loss, "seed": seed}
        given = {"candidate": candidate, "fold": fold, "kind": kind}
        labels |= {name: value for name, value in given.items() if value is not None}
        EvaluatedLists.of(scores, data, metrics, labels).save(path)
    return path


@pytest.fixture(scope="session")
def run_folder() -> Callable[..., Path]:
    return make_run


@pytest.fixture(scope="session")
def lists() -> Callable[..., Dataset]:
    return make_data


def make_trees(path: Path, data: Dataset, *, trees: int = 40, **options: Any) -> Path:
    """A run folder of boosted trees, whose settings are among the facts."""
    make_run(path, data, loss="lambdarank", trained=False, **options)
    facts = json.loads((path / "run.json").read_text())
    settings = {"kind": "lightgbm", "options": {}, "rounds": 1000, "metric": "ndcg@5"}
    settings["values"] = {"num_leaves": 7, "learning_rate": 0.03}
    facts |= {"kind": "lightgbm", "settings": settings}
    (path / "run.json").write_text(json.dumps(facts))
    lines = [json.dumps({"epoch": at + 1, "ndcg@5": 0.4 + at / 1000}) for at in range(trees)]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def tree_folder() -> Callable[..., Path]:
    return make_trees
