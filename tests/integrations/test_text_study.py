"""The study of losses for text runs, goes on and makes its page, on a tiny model."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_models

from rankgrad import kernels

STUDY = Path(__file__).parents[2] / "benchmarks" / "text_study"
MODULES = ("plan", "prepare", "train", "pool", "values", "page")


@pytest.fixture
def study(monkeypatch):
    """The modules of the study, with fewer losses, folds and choices."""
    monkeypatch.syspath_prepend(str(STUDY))
    plan = importlib.import_module("plan")
    few = {"LOSSES": {"bce": "bce", plan.LAMBDA: None}, "FOLDS": 3, "DECIDING": ("bce",)}
    few |= {"SEEDS": (0,), "CHOICES": dict(list(plan.CHOICES.items())[1:])}
    few["RECIPE"] = {**plan.RECIPE, "max_length": 12, "precision": "32-true"}
    for name, value in few.items():
        monkeypatch.setattr(plan, name, value)
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        sys.modules.pop(name)


def cranfield(folder: Path) -> Path:
    """Nine queries, each with a relevant document of its own words."""
    folder.mkdir(parents=True)
    texts = tiny_models.texts(27, max_length=9)
    documents = [f".I {i}\n.T\n{t}\n.W\n{t}\n" for i, t in enumerate(texts, start=1)]
    queries = [f".I {i:03d}\n.W\n{texts[3 * i - 3]}\n" for i in range(1, 10)]
    judged = [f"{i} {3 * i - 2} 1\n{i} {3 * i - 1} 3\n" for i in range(1, 10)]
    (folder / "cran.all.1400").write_text("".join(documents))
    (folder / "cran.qry").write_text("".join(queries))
    (folder / "cranqrel").write_text("".join(judged))
    return folder.parent


def test_the_study_resumes_and_its_page_is_made_of_the_raw_result(study, tmp_path, capsys):
    model = tmp_path / "model"
    tiny_models.bert(dropout=0.0).base_model.save_pretrained(model)
    tiny_models.tokenizer().save_pretrained(model)
    place, results = tmp_path / "study", tmp_path / "results"
    study["prepare"].prepare(cranfield(tmp_path / "data" / "cranfield"), place, model)

    def run(seconds):
        with kernels.using("eager"):  # nothing to compile
            study["pool"].run(
                place,
                results,
                collections=["cranfield"],
                seconds=seconds,
                workers=0,
                changes={"epochs": 1, "mini_batch_size": 8},
            )
        return len(study["pool"].read_results([results]))

    assert run(0.0) == 0
    assert run(600.0) == 9  # 2 choices and 3 folds, then the other loss on 3 folds
    assert not (results / "failures.jsonl").exists()
    assert run(600.0) == 9  # nothing is made twice
    with pytest.raises(SystemExit, match="another recipe: epochs, mini_batch_size"):
        study["pool"].check_recipe(study["pool"].read_results([results]), {"mini_batch_size": 9})
    raw, page = tmp_path / "raw.npz", tmp_path / "page.md"
    study["values"].collect(place, study["pool"].read_results([results]), raw)
    (found,) = study["values"].load(raw).values()
    assert not np.isnan(found.values).any()
    assert set(found.fold) == {1, 2, 3}
    study["page"].write(raw, page)
    text = page.read_text()
    assert "validation chooses" in text
    assert "| chosen per fold |" in text
    assert "<" not in text.replace("< 0.001", "")
    assert "6 of 6 runs" in capsys.readouterr().out


def test_every_family_of_tests_is_corrected_and_missing_runs_are_named(study):
    page, random = study["page"], np.random.default_rng(0)
    values = random.random((2, 1, 2, 2, 30)).astype(np.float32)
    values[0] += 0.5
    best_epoch = np.ones((2, 1, 3), np.int8)
    best_epoch[1, 0, 2] = -1
    validation = np.array([[[0.5, 0.1, 0.3]], [[0.4, 0.2, np.nan]]], np.float32)
    fold = np.repeat([1, 2, 3], 10)
    values[1, 0][..., fold == 3] = np.nan
    references = random.random((2, 2, 2, 30)).astype(np.float32)
    rest = np.zeros((2, 1, 3))
    found = study["values"].CollectionValues(
        np.arange(30).astype(str), fold, references, values, validation, best_epoch, rest, rest,
        rest, np.zeros(3, np.int8),
    )  # fmt: skip
    rows = page.rows_of(found)
    chosen = next(row for row in rows if row.name == "chosen per fold")
    best = np.where(fold == 2, 1, 0)
    np.testing.assert_allclose(
        chosen.values, values[best, 0, ..., np.arange(30)].transpose(1, 2, 0)
    )
    assert page.missing(found) == [f"- {study['plan'].LAMBDA}: 1 of 3 runs ended in NaN."]
    tests = page.p_values(rows)
    # The loss without a whole seed is in no test.
    assert {name: len(own) for name, own in tests.items()} == {
        "against BM25": 4,
        "against untrained": 4,
        "against untrained + BM25": 2,
        "chosen against": 2,
    }
    from rankgrad.significance import correct, paired_t_test

    single = [
        paired_t_test(row.values[how, 0].astype(float), references[0, 0, 0].astype(float))
        for how in (0, 1)
        for row in rows[2:]
        if row.is_complete
    ]
    corrected = [p for _, p in tests["against BM25"].values()]
    np.testing.assert_allclose(corrected, correct(single, "holm"), rtol=1e-9)
