"""Small data and runs under the names that shell blocks of the documentation use."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import tiny_models
from typer.testing import CliRunner

from rankgrad.cli import app
from rankgrad.data import Dataset, columnar
from rankgrad.data.trec import write_qrels, write_run
from rankgrad.text._reading import Reading
from rankgrad.text._text_ranker import TextRanker
from rankgrad.training import Settings, fit

FEATURES = 46  # MQ2008's
FIRST_QUERY = 18219  # of the test part of each fold; pages ask about it
FOLDS = [*(("MQ2008", fold) for fold in range(1, 6)), ("MSLR-WEB30K", 1), ("MSLR-WEB30K", 2)]
QUICK = {"model": "mlp(hidden=[4])", "transforms": ("standardize",), "epochs": 1, "device": "cpu"}


def lists(queries: int, first: int, names: tuple[str, ...] = ()) -> Dataset:
    """Lists of eight items whose labels follow from the first feature."""
    random = np.random.default_rng(first)
    features = random.random((8 * queries, len(names) or FEATURES)).astype(np.float32)
    qids = [str(first + query) for query in range(queries)]
    offsets = np.arange(0, 8 * queries + 1, 8)
    labels = (3 * features[:, 0]).astype(int)
    return Dataset(features, labels, offsets, qids, feature_names=names or None)


def write_letor(data: Dataset, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt") as file:
        for row, label in enumerate(data.labels):
            values = " ".join(f"{at}:{value:.4f}" for at, value in enumerate(data.features[row], 1))
            file.write(f"{label:g} qid:{data.qids[row // 8]} {values}\n")


def prepare(place: Path) -> None:
    """All that a block may name; what a page writes itself is removed before it does."""
    (place / "docs" / "results" / "tables").mkdir(parents=True)
    parts = {"train": lists(16, 1), "vali": lists(4, 101), "test": lists(4, FIRST_QUERY)}
    for split, data in parts.items():
        folds = [f"{name}/Fold{fold}" for name, fold in FOLDS]
        for folder in ("data", "DATA", ".", *folds):
            write_letor(data, place / folder / f"{split}.txt")
        write_letor(data, place / f"{split}.txt.gz")
    columnar.write(parts["test"], place / "test.parquet")
    for part in (1, 2):
        write_letor(lists(4, 200 * part), place / f"part{part}.txt")
    _tables(place)
    scores = np.asarray(parts["test"].features[:, 0])
    for name in ("scores.txt", "lightgbm-scores.txt", "other-tools-scores.txt"):
        (place / name).write_text("".join(f"{score}\n" for score in scores))
    (place / "one.json").write_text(json.dumps({"one": {"model": "mlp(hidden=[4])", "epochs": 1}}))
    _texts(place)
    _runs(place, parts)


def _tables(place: Path) -> None:
    """A search log with codes for missing values, a column of texts and one of codes."""
    random = np.random.default_rng(0)
    names = ["qid", "label", "session", "clicks", "price", "age", "country", "12"]
    rows = []
    for row in range(120):
        age = random.choice(["3", "7", "-999", "unknown"])
        country = random.choice(["at", "de"])
        query, label = row // 10, row % 3
        rows.append([query, label, query, label % 2, random.random(), age, country, row % 4])
    (place / "splits").mkdir()
    for name in ("log.csv", "clicks.csv", *(f"splits/{s}.csv" for s in ("train", "vali", "test"))):
        kept = [5, 6] if "splits" in name or name == "clicks.csv" else []
        with (place / name).open("w", newline="") as file:
            for line in [names, *rows]:
                csv.writer(file).writerow([v for at, v in enumerate(line) if at not in kept])
    import pyarrow
    from pyarrow import parquet

    columns = [[row[at] for row in rows] for at in range(len(names)) if names[at] != "age"]
    table = pyarrow.table(columns, names=[name for name in names if name != "age"])
    parquet.write_table(table, place / "log.parquet")


def _texts(place: Path) -> None:
    """One collection in several formats, nine queries, judgments, runs, and tiny models."""
    texts = tiny_models.texts(36, max_length=9)
    documents = {str(at): text for at, text in enumerate(texts, 1)}
    queries = {str(at): texts[4 * at - 4] for at in range(1, 10)}
    records = [json.dumps({"id": name, "text": text}) + "\n" for name, text in documents.items()]
    (place / "docs.jsonl").write_text("".join(records))
    with gzip.open(place / "corpus.jsonl.gz", "wt") as file:
        file.writelines(records)
    for name in ("collection.tsv", "docs.tsv"):
        (place / name).write_text("".join(f"{n}\t{t}\n" for n, t in documents.items()))
    for name in ("topics.tsv", "new_topics.tsv", "queries.tsv"):
        (place / name).write_text("".join(f"{n}\t{t}\n" for n, t in queries.items()))
    for name in ("topics.txt", "topics.robust04.txt"):
        topic = "<top>\n<num> Number: {}\n<title> {}\n<desc> Description:\n{}\n</top>\n"
        (place / name).write_text("".join(topic.format(n, t, t) for n, t in queries.items()))
    _folders_of_texts(place, documents, queries)
    run = {q: {str(4 * int(q) - 3 + at): 4.0 - at for at in range(4)} for q in queries}
    for name in ("bm25.run", "new.run", "llm.run", "reranked.run.gz"):
        write_run(place / name, run)
    judged = {q: {str(4 * int(q) - 3): 2, str(4 * int(q) - 1): 1} for q in queries}
    for name in ("qrels", "qrels.txt", "new_qrels.txt"):
        write_qrels(place / name, judged)


def _folders_of_texts(place: Path, documents: dict[str, str], queries: dict[str, str]) -> None:
    for name in ("cranfield", "robust04"):
        (place / name).mkdir()
    smart = [f".I {n}\n.T\n{t}\n.W\n{t}\n" for n, t in documents.items()]
    (place / "cranfield" / "cran.all.1400").write_text("".join(smart))
    asked = [f".I {int(n):03d}\n.W\n{t}\n" for n, t in queries.items()]
    (place / "cranfield" / "cran.qry").write_text("".join(asked))
    judged = [f"{n} {4 * int(n) - 3} 1\n{n} {4 * int(n) - 1} 3\n" for n in queries]
    (place / "cranfield" / "cranqrel").write_text("".join(judged))
    trec = [f"<DOC><DOCNO>{n}</DOCNO><TEXT>{t}</TEXT></DOC>\n" for n, t in documents.items()]
    (place / "robust04" / "docs.trec").write_text("".join(trec))
    encoder = TextRanker(tiny_models.bert(), tiny_models.tokenizer(), Reading())
    for name in ("bert-base-uncased", "MiniLM", "cross-encoder/ms-marco-MiniLM-L6-v2"):
        encoder.save(place / name)
    causal = place / "Qwen" / "Qwen3-Reranker-0.6B"
    tiny_models.causal().save_pretrained(causal)
    tiny_models.tokenizer(model_max_length=64).save_pretrained(causal)


def _runs(place: Path, parts: dict[str, Dataset]) -> None:
    """Copies of one run, trees, and what some pages find there already."""
    first = place / "runs" / "first"
    fit(Settings(**QUICK), parts["train"], parts["vali"], folder=first, quiet=True)
    for name in ("runs/neural", "runs/a", "runs/mlp", "runs/student", "RUN"):
        shutil.copytree(first, place / name)
    other = Settings(**QUICK, loss="mse")
    fit(other, parts["train"], parts["vali"], folder=place / "runs" / "b", quiet=True)
    shutil.copytree(place / "runs" / "b", place / "runs" / "mse")
    for name in ("mse", "neural"):
        _command(place, f"evaluate runs/{name} data --save")
    trees = QUICK | {"model": "xgboost(max_leaves=4)", "transforms": ()}
    fit(Settings(**trees), parts["train"], folder=place / "runs" / "trees", quiet=True)
    compare = "--losses mse,softmax --epochs 1 --workers 0 -m ndcg@5"
    _command(place, f"compare data {compare} --lightgbm -o comparison")
    shutil.copytree(place / "comparison", place / "runs" / "losses")
    _command(place, "import MSLR-WEB30K -o web30k")
    _command(place, "predict runs/neural test.parquet -o scores.run")
    _command(place, "text index collection.tsv -o msmarco.index")
    _command(place, "text index robust04 -o robust.index")
    texts = "--collection docs.jsonl --topics topics.tsv --qrels qrels --model MiniLM"
    options = "-l softmax --epochs 1 --folds 3 --interpolate"
    _command(place, f"text train bm25.run {texts} {options} -o runs/text")


def _command(place: Path, line: str) -> None:
    with contextlib.chdir(place):
        result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 0, f"{line}\n{result.output}{result.exception!r}"


def named_runs(place: Path, names: tuple[str, ...]) -> None:
    """The runs that are served, of features that have names."""
    for run in ("first", "student"):
        shutil.rmtree(place / "runs" / run)
        data = lists(8, 1, names)
        fit(Settings(**QUICK), data, data, folder=place / "runs" / run, quiet=True)
