"""Seconds per epoch of training at WEB30K's size: synthetic data, two networks of the papers.

    python benchmarks/training.py                        # on a GPU; data made anew
    python benchmarks/training.py --data FOLDER          # made once, then opened from there
    python benchmarks/training.py --small --device cpu   # a quick look whether it works
    python benchmarks/training.py mlp --without-graphs   # each kernel asked for by itself
    python benchmarks/training.py --out training.json

Trained are the LambdaLoss paper's MLP (1024-512-256, batch normalization, dropout) with lambdaloss,
all items of each list, and the NeuralNDCG paper's context-aware ranker (first layer 96, 2 blocks,
hidden 384) with neural_ndcg on lists of 240; 64 lists a step (neither batch size is the paper's:
the first does not state one). Data: 18,919 lists to train on, about 2.3 million items of 136
features, and 6,306 to validate on after each epoch.

An epoch's seconds are those from the end of one to the end of the next, evaluation included; given
is the median of all but the first, in which kernels are compiled. Loading the features and fitting
the transforms comes before. Evaluation is timed once more by itself. After the timed epochs one
more runs while PyTorch notes where the host waited for the GPU: how often, and where.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import platform
import statistics
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import torch

from rankgrad.data import Dataset, store, synthetic
from rankgrad.data.batches import Batches
from rankgrad.metrics import metrics
from rankgrad.training import Settings, fit
from rankgrad.training._evaluations import validate

SHARED = {
    "metric": "ndcg@5",
    "metrics": ("ndcg@5", "ndcg@10", "ap", "rr"),
    "transforms": ("log1p", "standardize"),
    "learning_rate": 1e-3,
    "patience": None,
}
RUNS = {
    "mlp": {"model": "lambdaloss", "loss": "lambdaloss"},
    "context_aware": {
        "model": "neuralndcg_web30k",
        "loss": "neural_ndcg",
        "list_size": 240,
    },
}
SPLITS = {"train": 18919, "vali": 6306}
SMALL = {"train": 60, "vali": 30}

began = time.perf_counter()


def say(text: str) -> None:
    print(f"[{time.perf_counter() - began:6.1f} s] {text}", flush=True)


def load(folder: Path | None, sizes: dict[str, int]) -> dict[str, Dataset]:
    """The data, out of the folder or made, and then left in the folder."""
    if folder is not None and folder.exists():
        found = {split: store.open(folder / split) for split in sizes}
    else:
        found = {}
        for split, queries in sizes.items():
            found[split] = synthetic.make(queries, split=split)
            say(f"made {split}: {found[split]}")
        if folder is not None:
            store.write_splits(found, folder)
            say(f"written to {folder}")
    return found


def train(name: str, data: dict[str, Dataset], given: argparse.Namespace) -> dict[str, object]:
    """One run: its epochs timed, and what it needed."""
    on_gpu = given.device == "cuda"
    options = SHARED | RUNS[name] | {"batch_size": given.batch_size, "precision": given.precision}
    options |= {"device": given.device, "graphs": not given.without_graphs}
    settings = Settings(**options, epochs=given.epochs + on_gpu)
    ends: list[float] = []
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()

    def end(line: dict[str, float]) -> None:
        ends.append(time.perf_counter())
        took = "" if len(ends) < 2 else f", {ends[-1] - ends[-2]:.3f} s"
        say(f"{name}: epoch {line['epoch']:.0f}{took}, loss {line['loss']:.4f}")
        if on_gpu and len(ends) == given.epochs:  # the next one is watched
            torch.cuda.set_sync_debug_mode("warn")

    say(f"{name}: {settings.model} with {settings.loss}, {settings.batch_size} lists a step")
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        try:
            done = fit(settings, data["train"], data["vali"], on_epoch=end)
        finally:
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")
    epochs = [later - before for before, later in itertools.pairwise(ends[: given.epochs])]
    found: dict[str, object] = {
        "settings": settings.model_dump(mode="json"),
        "steps": -(-len(data["train"]) // settings.batch_size),
        "epoch_seconds": statistics.median(epochs),
        "epochs": epochs,
        "history": done.history,
    }
    if on_gpu:
        found["peak_memory_mib"] = torch.cuda.max_memory_allocated() / 2**20
        found["waits_per_epoch"] = count(waits)
    found["evaluation_seconds"] = evaluate(done.model, data["vali"], settings)
    return found


def evaluate(model: object, data: Dataset, settings: Settings) -> float:
    """Seconds of scoring all lists and computing the metrics, features loaded; of three times."""
    model.to(settings.device)
    batches = Batches(
        data, flat=model.per_item, device=settings.device, transform=model.transform, memory=None
    )
    chosen = [metrics.get(spec) for spec in settings.logged]
    alone = SimpleNamespace(global_rank=0, world_size=1)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        validate(model.network, batches, chosen, alone)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def count(waits: list[warnings.WarningMessage]) -> dict[str, int]:
    """How often the host waited for the GPU, by place; the watched epoch's alone."""
    places = collections.Counter(
        f"{Path(wait.filename).name}:{wait.lineno}"
        for wait in waits
        if "called a synchronizing" in str(wait.message)
    )
    return dict(places.most_common())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="*", default=list(RUNS), metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--data", type=Path, help="a folder to keep the data in")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    parser.add_argument("--small", action="store_true", help="90 lists in place of 25,225")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--epochs", type=int, default=5, help="timed ones, the first not counted")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--without-graphs", action="store_true", help="no CUDA graphs")
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed"])
    given = parser.parse_args()
    if given.epochs < 2:
        parser.error("--epochs must be at least 2: the first is not counted")
    for name in given.runs:
        if name not in RUNS:
            parser.error(f"there is no run {name!r}: {', '.join(RUNS)}")
    import lightning_fabric  # noqa: F401 (if it is missing, say so before data are made)

    data = load(given.data, SMALL if given.small else SPLITS)
    say(f"data ready: {data['train'].n_items:,} and {data['vali'].n_items:,} items")
    results = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": torch.cuda.get_device_name() if given.device == "cuda" else platform.processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lists": {split: len(part) for split, part in data.items()},
        "items": {split: part.n_items for split, part in data.items()},
        "runs": {},
    }
    for name in given.runs:
        found = results["runs"][name] = train(name, data, given)
        memory = found.get("peak_memory_mib")
        say(
            f"{name}: {found['epoch_seconds']:.3f} s per epoch with evaluation, evaluation alone "
            f"{found['evaluation_seconds']:.3f} s"
            + ("" if memory is None else f", peak memory {memory:,.0f} MiB")
        )
        if "waits_per_epoch" in found:
            say(f"{name}: the host waited in one epoch at {found['waits_per_epoch'] or 'no place'}")
        if given.out is not None:
            given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
