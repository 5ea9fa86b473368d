"""The catalog: known sets are recognized, and what differs is said."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankgrad.data import Dataset, catalog, load, load_splits, store


def entry(name: str) -> catalog.KnownDataset:
    return next(entry for entry in catalog.ENTRIES if entry.name == name)


def made(lists: int, items: int, features: int, highest: int = 4) -> Dataset:
    offsets = np.linspace(0, items, lists + 1).astype(np.int64)
    zeros = np.broadcast_to(np.float32(0), (items, features))
    return Dataset(zeros, np.arange(items) % (highest + 1), offsets, np.arange(lists))


@pytest.mark.parametrize("known", catalog.ENTRIES, ids=lambda known: known.name)
def test_parts_add_up_to_the_whole(known: catalog.KnownDataset) -> None:
    for fold in {fold for fold, _ in known.parts}:
        parts = [known.parts[fold, split] for split in known.splits]
        assert sum(part.queries for part in parts) == known.total.queries
        if all(part.documents for part in parts):
            assert sum(part.documents for part in parts) == known.total.documents
    assert known.url.startswith("http") and known.license


@pytest.mark.parametrize("fold", [1, 2, 3, 4, 5])
def test_mq2008(real: Callable[[str], Path], fold: int) -> None:
    folder, known = real("MQ2008"), entry("MQ2008")
    assert catalog.recognize(folder) is known
    assert catalog.recognize(folder / f"Fold{fold}") is known
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        datasets = load_splits(folder, fold=fold)
    assert catalog.check(known, datasets, fold=fold) == []
    for split, data in datasets.items():
        counts = known.parts[fold, split]
        assert (len(data), data.n_items) == (counts.queries, counts.documents)
        assert data.n_features == 46
    if fold == 3:
        assert load(folder, fold=3, split="vali").checksum() == datasets["vali"].checksum()


def test_an_incomplete_copy_is_warned_of(real: Callable[[str], Path], tmp_path: Path) -> None:
    source, copy = real("MQ2008") / "Fold1", tmp_path / "MQ2008"
    for number in range(1, 6):
        (copy / f"Fold{number}").mkdir(parents=True)
        for split in ("train", "vali", "test"):
            (copy / f"Fold{number}" / f"{split}.txt").symlink_to(source / f"{split}.txt")
    lines = (source / "test.txt").read_text().splitlines(keepends=True)
    (copy / "Fold1" / "test.txt").unlink()
    (copy / "Fold1" / "test.txt").write_text("".join(lines[:-100]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_splits(copy, fold=1)
    said = [str(warning.message) for warning in caught]
    assert f"{copy}: MQ2008 has 156 queries in test of fold 1, here there are 151" in said
    assert f"{copy}: MQ2008 has 2,874 documents in test of fold 1, here there are 2,774" in said
    assert f"{copy}: MQ2008 has 784 queries in all splits together, here there are 779" in said


def test_it_is_recognized_as_stores_and_under_another_name(
    real: Callable[[str], Path], tmp_path: Path
) -> None:
    datasets = load_splits(real("MQ2008"), fold=1)
    for number in range(1, 6):
        store.write_splits(datasets, tmp_path / "x" / f"Fold{number}")
    assert catalog.recognize(tmp_path / "x") is entry("MQ2008")


def test_what_is_like_a_known_set_is_not_one(real: Callable[[str], Path], tmp_path: Path) -> None:
    assert catalog.recognize(real("mslr_sample")) is None
    assert catalog.recognize(real("lightgbm_rank")) is None
    assert catalog.recognize(tmp_path) is None
    assert catalog.recognize(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("name", "place", "files"),
    [
        ("Istella", "istella-letor/full", ["train.txt", "test.txt"]),
        ("Istella-S", "istella-s-letor/sample", ["train.txt", "vali.txt", "test.txt"]),
        ("Yahoo C14", "ltrc_yahoo", ["set1.train.txt", "set1.valid.txt", "set1.test.txt"]),
        ("MSLR-WEB10K", "MSLR-WEB10K", ["train.txt", "vali.txt", "test.txt"]),
        ("MSLR-WEB30K", "web30k", ["train.txt", "vali.txt", "test.txt"]),
        ("MQ2007", "MQ2007", ["train.txt", "vali.txt", "test.txt"]),
    ],
)
def test_layouts(tmp_path: Path, name: str, place: str, files: list[str]) -> None:
    known = entry(name)
    for fold in [f"Fold{number + 1}" for number in range(known.folds)] or [""]:
        folder = tmp_path / place / fold
        folder.mkdir(parents=True)
        for file in files:
            (folder / file).write_text(f"1 qid:1 {known.features}:1 # 999:1\n")
    assert catalog.recognize(tmp_path / place) is known


def test_set_1_of_yahoo_beside_set_2(tmp_path: Path) -> None:
    for number in (1, 2):
        for split in ("train", "valid", "test"):
            path = tmp_path / "yahoo" / f"set{number}.{split}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text("1 qid:1 699:1\n")
    assert catalog.recognize(tmp_path / "yahoo" / "set1") is entry("Yahoo C14")
    assert catalog.recognize(tmp_path / "yahoo" / "set2") is None


def test_check_says_what_differs() -> None:
    known = entry("MSLR-WEB10K")
    assert catalog.check(known, {"vali": made(2_000, 235_259, 136)}, fold=1) == []
    assert catalog.check(known, {"vali": made(2_000, 9_000, 136)}, fold=2) == []
    assert catalog.check(known, {"vali": made(1_999, 9_000, 135, highest=5)}, fold=2) == [
        "MSLR-WEB10K has 136 features, vali has 135",
        "MSLR-WEB10K has 2,000 queries in vali of fold 2, here there are 1,999",
        "MSLR-WEB10K has whole labels from 0 to 4, vali has others, the highest 5",
    ]
    yahoo = entry("Yahoo C14")
    assert catalog.check(yahoo, {"vali": made(2_994, 71_083, 699)}) == []
    three = {split: made(10, 20, 700) for split in yahoo.splits}
    assert catalog.check(yahoo, three)[-1] == (
        "Yahoo C14 has 709,877 documents in all splits together, here there are 60"
    )
