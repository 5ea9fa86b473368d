"""Training of text rankers: the loop, cross-validation in run folders, resuming, interpolation."""

import itertools
import sys
from dataclasses import replace

import numpy as np
import pytest
import tiny_models
import torch

from rankgrad.data.trec import RankedList, read_run
from rankgrad.experiments._cross_validation import CrossValidation, cross_validate, save_first_stage
from rankgrad.results._groups import group
from rankgrad.results.runs import find, read
from rankgrad.text import _text_run
from rankgrad.text._candidates import Candidates, folds
from rankgrad.text._interpolation import choose_weight, interpolate
from rankgrad.text._reading import Reading
from rankgrad.text._text_ranker import TextRanker
from rankgrad.text._text_run import TextRun
from rankgrad.text._text_settings import TextSettings
from rankgrad.text._training import Callbacks, TextData, fit


def candidates(queries=8, documents=6, seed=0):
    """Queries of one word; documents that have it are relevant. BM25 would know, but does not."""
    random = np.random.default_rng(seed)
    texts, run, qrels, topics = {}, {}, {}, {}
    for q in range(queries):
        qid, word = f"q{q}", tiny_models.WORDS[q % 4]
        topics[qid], qrels[qid], names = word, {}, []
        for d in range(documents):
            others = [tiny_models.WORDS[10 + int(w)] for w in random.integers(0, 25, 3)]
            relevant = d % 3 == 0
            name = f"{qid}d{d}"
            texts[name] = " ".join([word if relevant else tiny_models.WORDS[9], *others])
            qrels[qid][name] = 2 if relevant else 0
            names.append(name)
        qrels[qid]["missed"] = 1
        run[qid] = RankedList.sort(names, random.random(documents))
    return Candidates.of(run, texts, topics, qrels)


def ranker(seed=0, **reading):
    torch.manual_seed(seed)
    return TextRanker(tiny_models.bert(dropout=0.1), tiny_models.tokenizer(), Reading(**reading))


def settings(**options):
    fast = {"epochs": 3, "learning_rate": 0.01, "head_learning_rate": 0.02, "device": "cpu"}
    return TextSettings(**{"model": "tiny", "mini_batch_size": 8, **fast, **options})


def data(lists, own):
    return TextData(lists, own.tokenize(*lists.pairs()), np.arange(len(lists)))


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "softmax", "epochs": 8},
        {"loss": "bce", "documents": 4, "epochs": 8, "cache": False},
        {"loss": "lambdaloss@5", "epochs": 8, "precision": "bf16-mixed", "schedule": "constant"},
    ],
    ids=lambda options: options["loss"],
)
def test_training_learns_to_rank(options):
    lists, own = candidates(), ranker()
    made = data(lists, own)
    before = lists.evaluate(own.score(made.inputs), ["ap"]).values.mean["ap"]
    made.vali = made.train
    done = fit(own, made, settings(**options))
    after = lists.evaluate(own.score(made.inputs), ["ap"]).values.mean["ap"]
    assert before < 0.62
    assert after == pytest.approx(2 / 3)  # one of three relevant documents was not retrieved
    best = done.state.history[done.state.best_epoch - 1]
    assert best["ndcg@10(gain=linear)"] == done.state.best_value


def test_metrics_that_are_undefined_in_validation():
    judged = candidates(queries=2)
    lists, own = replace(judged, qrels={qid: {"missed": 0} for qid in judged.qids}), ranker()
    made = data(lists, own)
    made.vali = made.train
    undefined = "ap(empty=skip)"
    done = fit(own, made, settings(epochs=1, metrics=(undefined,)))
    assert undefined not in done.state.history[0]  # NaN is not JSON
    with pytest.raises(ValueError, match=r"ap\(empty=skip\) is undefined on every list"):
        fit(own, made, settings(epochs=1, metric=undefined))


def test_a_last_step_that_diverges_is_named():
    lists, own = candidates(queries=2), ranker()
    made = data(lists, own)
    made.vali = made.train
    wild = settings(learning_rate=1e30, warmup=0, clip=None)
    with pytest.raises(ValueError, match=r"diverged in epoch 1: a score is not a number\. Lower"):
        fit(own, made, wild)


def test_gradient_caching_changes_nothing():
    found = []
    for cache in (True, False):
        own = ranker()
        made = data(candidates(), own)
        done = fit(own, made, settings(loss="bce", cache=cache, mini_batch_size=4, epochs=1))
        found.append([done.state.history[0]["loss"], *own.score(made.inputs)])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_the_head_has_its_own_learning_rate():
    own = ranker()
    before = {n: p.detach().clone() for n, p in own.named_parameters()}
    rates = {"learning_rate": 1e-12, "head_learning_rate": 0.1}
    frozen = settings(loss="bce", epochs=1, weight_decay=0, **rates)
    fit(own, data(candidates(), own), frozen)
    moved = {n for n, p in own.named_parameters() if (p - before[n]).abs().max() > 1e-6}
    assert moved == {"network.classifier.weight", "network.classifier.bias"}


def test_a_list_is_cut_to_relevant_documents_up_to_a_half():
    lists, own = candidates(queries=1, documents=9), ranker()  # 3 of 9 are relevant
    taken = []

    def loss(scores, labels, offsets):
        taken.append((labels > 0).sum().item() / len(labels))
        return scores.sum() * 0

    fit(own, data(lists, own), settings(documents=4, epochs=2), loss=loss)
    assert taken == [0.5, 0.5]
    fit(own, data(lists, own), settings(documents=8, epochs=1), loss=loss)
    assert taken[2] == 3 / 8
    fit(own, data(lists, own), settings(documents=1, epochs=1), loss=loss)
    assert taken[3] == 1


def test_queries_without_candidates_without_relevant_documents_and_with_ties_are_harmless():
    lists = candidates(queries=4)
    grades = {name: dict(own) for name, own in lists.qrels.items()}
    run = {q: RankedList(list(lists.docids[6 * i : 6 * i + 6]), lists.first_stage[:6])
           for i, q in enumerate(lists.qids)}  # fmt: skip
    del run["q0"]  # no candidates
    grades["q1"] = dict.fromkeys(grades["q1"], 0)  # nothing relevant
    grades["q2"] = dict.fromkeys(grades["q2"], 1)  # all tied
    texts = dict(zip(lists.docids, lists.texts, strict=True))
    topics = dict(zip(lists.qids, lists.queries, strict=True))
    odd = Candidates.of(run, texts, topics, grades)
    assert odd.lengths.tolist() == [0, 6, 6, 6]
    own = ranker()
    before = [p.detach().clone() for p in own.parameters()]
    for loss in ("softmax", "bce", "lambdaloss@5", "margin_mse"):
        made = data(odd, own)
        made.vali = made.train
        done = fit(own, made, settings(loss=loss, epochs=1, lists_per_step=1))
        assert all(np.isfinite(value) for value in done.state.history[0].values())
    assert all(p.isfinite().all() for p in own.parameters())
    assert any((p != b).any() for p, b in zip(own.parameters(), before, strict=True))
    values = odd.evaluate(own.score(made.inputs), ["ap"]).values.per_list["ap"].tolist()
    assert values[:2] == [0, 0]
    with pytest.raises(ValueError, match="no query to train on has candidates"):
        fit(own, TextData(odd, made.inputs, np.array([0])), settings())


def test_candidates_name_what_is_missing():
    run = {"1": RankedList.sort(["a", "b"], [2.0, 1.0])}
    with pytest.raises(ValueError, match="the collection has no document 'b', which the run has"):
        Candidates.of(run, {"a": "text"}, {"1": "query"})
    with pytest.raises(
        ValueError, match=r"candidates for none of 1 topics: .* '1', are not theirs"
    ):
        Candidates.of(run, {"a": "text"}, {"7": "query"})
    topics = {"1": "query", "051": "query"}  # the other query would be there alone
    texts, qrels = {"a": "text", "b": "text"}, {"1": {"a": 1}, "51": {"a": 1}}
    with pytest.raises(ValueError, match="query '051' of the topics is '51' in the judgments"):
        Candidates.of(run, texts, topics, qrels)
    with pytest.raises(ValueError, match="query '051' of the topics is '51' in the run"):
        Candidates.of({**run, "51": run["1"]}, texts, topics)


def test_folds_hold_each_query_once():
    splits = folds(23, 5, seed=3)
    tests = np.concatenate([split.test for split in splits])
    assert sorted(tests.tolist()) == list(range(23))
    for split in splits:
        parts = [split.train, split.vali, split.test]
        assert sorted(np.concatenate(parts).tolist()) == list(range(23))
    for count, queries in ((2, 9), (5, 4)):
        with pytest.raises(ValueError, match="folds"):
            folds(queries, count)


def test_interpolation_takes_the_weight_that_is_best():
    lists = candidates()
    good = lists.labels + 0.1 * np.arange(len(lists.labels)) % 1
    assert choose_weight(good, lists, "ndcg@10(gain=linear)") == 0.0
    swapped = Candidates(**{**vars(lists), "first_stage": lists.labels.astype(float)})
    assert choose_weight(-swapped.first_stage, swapped, "ap") > 0.5
    mixed = interpolate(good, lists.first_stage, lists.offsets, 0.25)
    own = slice(0, 6)
    z = [(v[own] - v[own].mean()) / v[own].std() for v in (good, lists.first_stage)]
    np.testing.assert_allclose(mixed[own], 0.75 * z[0] + 0.25 * z[1])
    with pytest.raises(ValueError, match="from 0 to 1, found 2"):
        interpolate(good, lists.first_stage, lists.offsets, 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    ranker().save(folder)
    return str(folder)


def test_cross_validation_is_run_folders_that_reports_read_and_resumes_to_the_same(model, tmp_path):
    plan = CrossValidation(settings(model=model, epochs=2), ("softmax",), folds=3, interpolate=True)
    lists = candidates()
    before = torch.get_rng_state()
    assert cross_validate(plan, lists, tmp_path / "whole")
    assert torch.equal(torch.get_rng_state(), before)
    found = {c.name: c for c in group([read(p) for p in find([tmp_path / "whole"])])}
    assert set(found) == {"first stage", "softmax + first stage"}
    for entry in found.values():
        assert not any(run.problems for run in entry.runs)
        assert len([run for run in entry.runs if run.evaluated is not None]) == 3
    one = tmp_path / "whole" / "runs" / "softmax" / "fold1-seed0"
    scores = read_run(one / "test.run")
    assert set(scores) == {lists.qids[b] for b in folds(len(lists), 3)[0].test}
    assert TextRun.open(one).weight is not None

    def stopping():
        """Interrupts in the second epoch of the second run; an epoch has one step."""
        steps = itertools.count(1)
        return lambda: next(steps) == 4

    asked = stopping()
    assert not cross_validate(
        plan, lists, tmp_path / "halves", lambda *_: Callbacks(interrupted=asked)
    )
    assert cross_validate(plan, lists, tmp_path / "halves")
    for path in ("softmax/fold1-seed0", "softmax/fold2-seed0"):
        own, other = (tmp_path / side / "runs" / path for side in ("whole", "halves"))
        assert (own / "test.run").read_text() == (other / "test.run").read_text(), path
        assert len(TextRun.open(other).path.joinpath("metrics.jsonl").read_text().split("\n")) == 3

    changed = CrossValidation(settings(model=model, epochs=3), ("softmax",), folds=3)
    with pytest.raises(ValueError, match="other settings; epochs: 3, not 2"):
        cross_validate(changed, lists, tmp_path / "halves")
    with pytest.raises(ValueError, match="train data are not those"):
        cross_validate(plan, candidates(seed=1), tmp_path / "halves")
    alone = replace(plan, interpolate=False)
    with pytest.raises(ValueError, match="was made with interpolation"):
        cross_validate(alone, lists, tmp_path / "halves")


def test_noise_with_a_seed_goes_on_where_it_was_and_the_callers_random_state_stays(model, tmp_path):
    lists, found = candidates(), []
    for stop in (99, 3):  # an epoch has two steps
        own, left = ranker(), iter([False] * (stop - 1) + [True])
        how = settings(model=model, epochs=2, loss="gumbel_neural_ndcg(seed=5)")
        run = TextRun.create(tmp_path / f"run{stop}", how, {"train": lists})
        before = torch.get_rng_state()
        done = fit(
            own, data(lists, own), how, run=run, callbacks=Callbacks(interrupted=left.__next__)
        )
        assert torch.equal(torch.get_rng_state(), before)
        if done.stopped == "interrupted":
            own = ranker()
            fit(own, data(lists, own), how, run=run)
        found.append((run.path / "last" / "model.safetensors").read_bytes())
    assert found[0] == found[1]


def test_a_damaged_state_is_named(model, tmp_path):
    own, lists = ranker(), candidates()
    run = TextRun.create(tmp_path / "run", settings(model=model, epochs=2), {"train": lists})
    fit(own, data(lists, own), settings(model=model, epochs=1), run=run)
    state = tmp_path / "run" / "last" / "state.json"
    for text in ('{"epoch": 3}', "[1", '{"epochs": 1}'):
        state.write_text(text)
        with pytest.raises(ValueError, match=r"state\.json is damaged"):
            fit(own, data(lists, own), settings(model=model, epochs=2), run=run)
    with pytest.raises(FileExistsError, match="is there already"):
        TextRun.create(tmp_path / "run", settings(model=model), {"train": lists})
    metadata = tmp_path / "run" / "run.json"
    for text in ("[]", '{"ranker": "text", "data": [1]}'):
        metadata.write_text(text)
        with pytest.raises(ValueError, match=r"run\.json is damaged"):
            TextRun.open(tmp_path / "run")
        with pytest.raises(ValueError, match=r"run\.json is damaged"):
            run.check(run.settings, {"train": lists})


def test_a_run_that_another_process_makes_meanwhile_stays(tmp_path, monkeypatch):
    def other(*_):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "theirs").write_text("")
        return {}

    monkeypatch.setattr(_text_run, "metadata", other)
    with pytest.raises(FileExistsError, match="is there already: choose another"):
        TextRun.create(tmp_path / "run", settings(), {})
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "theirs"]


def test_the_best_ranker_is_read_as_a_whole_while_it_is_replaced(tmp_path, monkeypatch):
    run = TextRun.create(tmp_path / "run", settings(), {})
    first, second = ranker(), ranker()
    with torch.no_grad():
        second.network.classifier.bias.add_(1)
    first.save(run.path / "best")
    real = _text_run.TextRanker.from_pretrained

    def replaced(place):
        found = real(place)
        if not torch.equal(found.network.classifier.bias, second.network.classifier.bias):
            second.save(run.path / "best")
        return found

    monkeypatch.setattr(_text_run.TextRanker, "from_pretrained", replaced)
    torch.testing.assert_close(
        run.best().network.classifier.bias, second.network.classifier.bias, rtol=0, atol=0
    )


def test_the_first_stage_is_of_these_data_and_metrics(model, tmp_path):
    lists, how = candidates(), settings(model=model)
    (first, *_) = CrossValidation(how, ("softmax",), folds=3).runs()
    save_first_stage(first, lists, tmp_path)
    with pytest.raises(ValueError, match=r"the test data are not those .* was made with"):
        save_first_stage(first, candidates(seed=1), tmp_path)
    other = replace(first, settings=settings(model=model, metric="rr"))
    save_first_stage(other, lists, tmp_path)
    (found,) = (read(path) for path in find([tmp_path]))
    assert set(found.evaluated.metrics) == {"rr", "ap", "ndcg@10(gain=linear)"}


def test_a_run_that_goes_on_without_interpolation_has_no_weight(model, tmp_path):
    plan = CrossValidation(
        settings(model=model, epochs=1), ("softmax",), folds=3, chosen_folds=(1,)
    )
    lists, (run,) = candidates(), plan.runs()
    assert not cross_validate(plan, lists, tmp_path, lambda *_: Callbacks(interrupted=lambda: True))
    TextRun.open(run.path(tmp_path)).save_weight(0.5)
    for _ in range(2):
        assert cross_validate(plan, lists, tmp_path)
    assert TextRun.open(run.path(tmp_path)).weight is None


def test_without_transformers_the_install_line_is_said(monkeypatch, model):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r'pip install "rankgrad\[text\]"'):
        TextRanker.from_pretrained(model)


def test_settings_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"'los'. Did you mean 'loss'"):
        settings(los="softmax")
    with pytest.raises(ValueError, match="learning_rate should be greater than 0, found -1"):
        settings(learning_rate=-1)
    with pytest.raises(ValueError, match="the setting 'model' is missing"):
        TextSettings()
