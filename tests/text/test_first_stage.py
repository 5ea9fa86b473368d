"""BM25: its formula, ties, what is not retrieved, and the folder it is saved as."""

import inspect
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from rankgrad.text import _classic
from rankgrad.text._evaluation import evaluate_run
from rankgrad.text._first_stage import BM25Index, BM25Settings

TEXTS = {
    "a": "Wing wing slipstream",
    "b": "the wing of a plane",
    "d": "heat slabs",
    "c": "heat slabs",
    "empty": "",
}


class Package:
    """What is used of PyStemmer, with a stemmer that keeps four letters."""

    algorithms = staticmethod(lambda: ["cut"])

    class Stemmer:
        def __init__(self, name):
            assert name == "cut"

        def stemWords(self, words):
            return [word[:4] for word in words]


@pytest.fixture
def stemming(monkeypatch):
    monkeypatch.setitem(sys.modules, "Stemmer", Package)


@pytest.fixture(scope="module")
def index():
    return BM25Index.build(TEXTS)


def test_the_formula(index):
    """Lucene's: idf = ln(1 + (N - df + 0.5) / (df + 0.5)); stop words and case do not count."""
    ranked = index.search("Wing, the")
    lengths = {"a": 3, "b": 2, "d": 2, "c": 2, "empty": 0}
    idf = math.log(1 + (5 - 2 + 0.5) / (2 + 0.5))

    def score(name, tf):
        norm = 1 - 0.75 + 0.75 * lengths[name] / (sum(lengths.values()) / 5)
        return idf * tf / (tf + 1.5 * norm)

    assert ranked.documents == ["a", "b"]
    assert ranked.scores.tolist() == pytest.approx([score("a", 2), score("b", 1)], rel=1e-5)


def test_ties_go_by_document_id_also_at_the_cut(index):
    assert index.search("heat").documents == ["d", "c"]
    assert index.search("heat", depth=1).documents == ["d"]
    reverse = BM25Index.build(dict(reversed(TEXTS.items())))
    assert reverse.search("heat", depth=1).documents == ["d"]


def test_a_query_without_candidates(index):
    assert index.search("unheard of").documents == [] == index.search("the").documents
    run = index.retrieve({"1": "wing", "2": "unheard of"}, depth=1)
    assert run.queries == ["1"] and run["1"].documents == ["a"]


def test_saved_and_loaded(index, tmp_path):
    index.save(tmp_path / "index")
    loaded = BM25Index.load(tmp_path / "index")
    assert loaded.documents == index.documents and loaded.settings == index.settings
    for text in ("wing", "heat slabs plane"):
        assert loaded.search(text).documents == index.search(text).documents
        assert loaded.search(text).scores.tobytes() == index.search(text).scores.tobytes()
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        index.save(tmp_path / "index")
    BM25Index.build({"x": "other"}).save(tmp_path / "index", overwrite=True)
    assert BM25Index.load(tmp_path / "index").documents == ["x"]
    assert [inside.name for inside in tmp_path.iterdir()] == ["index"]
    with pytest.raises(FileExistsError, match="not an index, so it is not replaced"):
        index.save(tmp_path, overwrite=True)
    with pytest.raises(ValueError, match="is not an index"):
        BM25Index.load(tmp_path)


def pickled(path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(path.parent / "harm"),)

    np.save(path, np.array([Harm()], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("data.csc.index.npy", pickled),
        ("data.csc.index.npy", lambda path: path.write_bytes(path.read_bytes()[:-8])),
        ("indices.csc.index.npy", lambda path: np.save(path, np.load(path) + 9)),
        ("vocab.index.json", lambda path: path.write_text('{"wing": 0')),
        ("vocab.index.json", lambda path: path.write_text('{"wing": 99}')),
        ("data.csc.index.npy", lambda path: np.save(path, np.load(path) * 2)),
        ("documents.txt", lambda path: path.write_text("a\n")),
        ("params.index.json", lambda path: path.unlink()),
        ("index.json", lambda path: path.write_text("{}")),
        ("index.json", lambda path: path.write_text("[]")),
    ],
)
def test_a_damaged_index(index, tmp_path, name, damage):
    folder = tmp_path / "index"
    index.save(folder)
    damage(folder / name)
    with pytest.raises(ValueError, match=r"index.* is damaged"):
        BM25Index.load(folder)
    assert not (folder / "harm").exists()


def test_the_same_bytes_in_every_process(tmp_path, stemming):
    """Also with stems, which bm25s numbers in the order of a set."""
    settings = BM25Settings(stemmer="cut")
    BM25Index.build(TEXTS, settings).save(tmp_path / "here")
    code = (
        f"import sys\n{inspect.getsource(Package)}\nsys.modules['Stemmer'] = Package\n"
        "from rankgrad.text._first_stage import BM25Index, BM25Settings\n"
        f"BM25Index.build({TEXTS!r}, {settings!r}).save(sys.argv[1])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "there")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    for file in (tmp_path / "here").iterdir():
        assert file.read_bytes() == (tmp_path / "there" / file.name).read_bytes(), file.name


@pytest.mark.parametrize(
    ("name", "ndcg", "recall"), [("cranfield", 0.337, 0.704), ("cisi", 0.364, 0.419)]
)
def test_real_collections(real, name, ndcg, recall):
    """Titles and texts, English stop words; measured once, as a guard."""
    collection = _classic.load(real(name))
    run = BM25Index.build(collection.documents).retrieve(collection.topics)
    found = evaluate_run(run, collection.qrels, ["nDCG@10", "R@100"])
    assert list(found.values.mean.values()) == pytest.approx([ndcg, recall], abs=5e-4)
    assert len(found.queries) == len(collection.qrels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k1": 0}, "k1 must be a number above 0"),
        ({"b": 2}, "b must lie between 0 and 1"),
        ({"stop_words": "german"}, "stop_words must be one of 'english', 'none'"),
    ],
)
def test_settings_that_are_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        BM25Settings(**options)


def test_what_is_missing_is_said(monkeypatch):
    with pytest.raises(ValueError, match="none of the documents has a word"):
        BM25Index.build({"a": "", "b": "?"})
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(ImportError, match="pip install PyStemmer"):
        BM25Index.build(TEXTS, BM25Settings(stemmer="english"))
    monkeypatch.setitem(sys.modules, "bm25s.tokenization", None)
    with pytest.raises(ImportError, match=r'pip install "rankgrad\[text\]"'):
        BM25Index.build(TEXTS)


def test_stems(stemming):
    index = BM25Index.build(TEXTS, BM25Settings(stemmer="cut"))
    assert index.search("slip").documents == ["a"] == index.search("slippery").documents
    with pytest.raises(ValueError, match="stemmer must be one of cut; found other"):
        BM25Index.build(TEXTS, BM25Settings(stemmer="other"))
