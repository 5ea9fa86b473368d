"""``rankgrad text train`` and ``rerank``, on a tiny random encoder."""

import json
import tomllib

import pytest
import tiny_models
from transformers import AutoModel
from typer.testing import CliRunner

from rankgrad.cli import app
from rankgrad.cli.text_train import settings_of
from rankgrad.data.trec import read_run, write_qrels, write_run
from rankgrad.report import write
from rankgrad.text._reading import Reading
from rankgrad.text._text_ranker import TextRanker


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A collection of six queries with four candidates each, and an encoder."""
    place = tmp_path_factory.mktemp("text")
    texts = tiny_models.texts(24)
    names = [f"d{at}" for at in range(24)]
    lines = [json.dumps({"id": n, "text": t}) for n, t in zip(names, texts, strict=True)]
    (place / "docs.jsonl").write_text("\n".join(lines))
    (place / "topics.tsv").write_text("".join(f"q{q}\tword{q}\n" for q in range(6)))
    run = {f"q{q}": {f"d{4 * q + at}": 4.0 - at for at in range(4)} for q in range(6)}
    write_run(place / "bm25.run", run)
    write_qrels(place / "qrels", {f"q{q}": {f"d{4 * q + 2}": 1} for q in range(6)})
    own = TextRanker(tiny_models.bert(), tiny_models.tokenizer(), Reading())
    own.save(place / "model")
    return place


def texts(place):
    return ["--collection", place / "docs.jsonl", "--topics", place / "topics.tsv"]


def train(place, *options):
    fast = ["--epochs", 1, "--folds", 3, "--device", "cpu", "--qrels", place / "qrels"]
    return ["text", "train", place / "bm25.run", *texts(place), *fast, *options]


def test_train_rerank_evaluate_report(place, rankgrad, tmp_path):
    out = tmp_path / "runs"
    options = ["--model", place / "model", "-l", "softmax", "-l", "hinge", "--interpolate"]
    said = rankgrad(*train(place, *options, "-o", out)).output
    assert "first stage" in said
    assert "p: against the first stage" in said
    again = json.loads(rankgrad(*train(place, *options, "-o", out, "--json")).stdout)
    names = {row["candidate"]: row for row in again["candidates"]}
    assert set(names) == {"first stage", "softmax + first stage", "hinge + first stage"}
    assert "softmax: weights of the first stage" in said
    assert names["first stage"]["ndcg@10(gain=linear)"] == pytest.approx(0.5)  # third of four
    one = out / "runs" / "softmax" / "fold1-seed0"
    rerank = ["text", "rerank", one, place / "bm25.run", *texts(place), "--device", "cpu"]
    found = rankgrad(*rerank, "-o", tmp_path / "new.run", "--interpolate", "chosen")
    assert "queries were trained or validated on" in " ".join(found.stderr.split())
    reranked, tested = read_run(tmp_path / "new.run"), read_run(one / "test.run")
    assert set(reranked) == {f"q{q}" for q in range(6)}
    for query in tested:
        assert reranked[query].documents == tested[query].documents
        assert reranked[query].scores == pytest.approx(tested[query].scores, abs=1e-4)
    rankgrad("evaluate", tmp_path / "new.run", place / "qrels")
    found = write([out], tmp_path / "report.html")
    assert set(found.names) == set(names)


def test_a_loss_without_all_folds_has_no_numbers(place, rankgrad, tmp_path):
    model = ["--model", place / "model", "-o", tmp_path / "runs"]
    rankgrad(*train(place, *model, "-l", "hinge", "--fold", 1))
    said = rankgrad(*train(place, *model, "-l", "softmax")).stdout
    rows = {line.split("│")[1].strip(): line for line in said.splitlines() if "│" in line}
    assert rows["hinge"].count(" - ") == rows["hinge"].count("│") - 2
    assert " - " not in rows["softmax"]


def test_options_go_before_a_file_of_settings(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("epochs = 2\nmax_length = 32\n")
    found = settings_of({"model": "x", "epochs": 1, "loss": None}, file)
    assert (found.model, found.epochs, found.max_length) == ("x", 1, 32)
    with pytest.raises(ValueError, match=r"a\.toml: the setting 'model' is missing"):
        settings_of({"model": None}, file)
    with pytest.raises(ValueError, match=r"a\.toml and the options: epochs should be greater"):
        settings_of({"model": "x", "epochs": 0}, file)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--model is missing"),
        (["--model", "x", "--protocol", "smoothi_table1"], "There are: smoothi_table2"),
        (["--model", "x", "--epochs", "0"], "epochs should be greater than or equal to 1"),
        (["--protocol", "smoothi_table2", "--settings", "a.toml"], "leave out --settings"),
    ],
)
def test_errors_are_one_line(place, tmp_path, options, said):
    arguments = [str(a) for a in [*train(place, "-o", tmp_path / "out"), *options]]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert said in found.stderr
    assert not (tmp_path / "out").exists()


def test_rerank_says_what_is_wrong(place, tmp_path):
    base = ["text", "rerank", place / "model", place / "bm25.run", *texts(place)]
    for options, said in (
        (["--interpolate", "chosen"], "there is no weight"),
        (["--interpolate", "1.5"], "a number from 0 to 1, or 'chosen'; found '1.5'"),
    ):
        arguments = [str(a) for a in [*base, "-o", tmp_path / "x.run", *options]]
        found = CliRunner().invoke(app, arguments)
        assert found.exit_code == 2
        assert said in found.stderr


def test_a_causal_language_model_trains_and_reranks(place, rankgrad, refused, tmp_path):
    tiny_models.causal().save_pretrained(tmp_path / "lm")
    tiny_models.tokenizer(model_max_length=64).save_pretrained(tmp_path / "lm")
    words = tiny_models.PROMPT
    lines = [f"{name} = '{value}'\n" for name, value in vars(words).items()]
    (tmp_path / "prompt.toml").write_text("".join(lines))
    options = ["--model", tmp_path / "lm", "--fold", 1, "-l", "lambdaloss@10"]
    said = refused(*train(place, *options, "--max-length", 20, "-o", tmp_path / "none"))
    assert "max_length=20 leaves nothing for the pair" in said  # the default prompt is long
    asked = ["--prompt", tmp_path / "prompt.toml"]
    rankgrad(*train(place, *options, *asked, "--lr", 1e-3, "-o", tmp_path / "runs"))
    one = tmp_path / "runs/runs/lambdaloss-at-10/fold1-seed0"
    rerank = [place / "bm25.run", *texts(place), "--device", "cpu"]
    rankgrad("text", "rerank", one, *rerank, "-o", tmp_path / "trained.run")
    rankgrad("text", "rerank", tmp_path / "lm", *rerank, *asked, "-o", tmp_path / "before.run")
    trained, before = read_run(tmp_path / "trained.run"), read_run(tmp_path / "before.run")
    tested = read_run(one / "test.run")
    for query in tested:
        assert trained[query].scores == pytest.approx(tested[query].scores, abs=1e-4)
    assert any(list(before[q].scores) != list(trained[q].scores) for q in tested)
    said = refused("text", "rerank", one, *rerank, *asked, "-o", tmp_path / "c.run")
    assert "has the prompt that it was trained with" in said


def test_compare_takes_texts_and_text_runs(place, rankgrad, refused, tmp_path):
    out = tmp_path / "compared"
    base = [place / "bm25.run", *texts(place), "--qrels", place / "qrels", "--device", "cpu"]
    options = ["--models", place / "model", "--losses", "softmax, hinge", "--epochs", 1]
    options += ["--max-length", 24]
    made = ["compare", *base, *options, "--seeds", 2, "--folds", "1,2", "-o", out]
    found = json.loads(rankgrad(*made, "--json").stdout)
    assert [row["candidate"] for row in found["rows"]] == ["first stage", "hinge", "softmax"]
    assert not found["problems"]
    assert (found["plan"]["folds"], found["plan"]["seeds"]) == ([1, 2], [0, 1])
    run = out / "runs/softmax/fold2-seed1"
    assert tomllib.loads((run / "settings.toml").read_text())["max_length"] == 24
    written = run.stat().st_mtime_ns, (run / "metrics.jsonl").stat().st_mtime_ns
    said = rankgrad(*made).output  # goes on with what is there
    assert (run.stat().st_mtime_ns, (run / "metrics.jsonl").stat().st_mtime_ns) == written
    assert "relevant documents that were not retrieved count" in said
    # The folder of text runs alone, with another test; the report takes it over.
    again = ["compare", out, "--baseline", "first stage", "--correction", "holm", "--json"]
    printed = json.loads(rankgrad(*again).stdout)
    means = [row["mean"]["ndcg@10(gain=linear)"] for row in printed["rows"]]
    assert means == [row["mean"]["ndcg@10(gain=linear)"] for row in found["rows"]]
    assert {d["reference"] for d in printed["differences"]} == {"first stage"}
    assert "Holm" in printed["significance"]
    shown = write([out], tmp_path / "page.html")
    assert shown.baseline == "first stage"
    assert "Holm" in str(shown.how)
    assert "ndcg@10(gain=linear)" in rankgrad("compare", out, "--format", "csv").stdout
    (out / "runs/hinge/fold1-seed0/evaluations/test/evaluation.json").unlink()
    less = CliRunner().invoke(app, ["compare", str(out)])
    assert less.exit_code == 1
    assert "missing run: hinge, fold 1 seed 0: evaluations/test" in less.stdout
    for more, message in (
        ([out, "--losses", "softmax"], "are compared as they are: leave out --losses"),
        ([*base, *options, "-o", out, "--tune", 3], "--tune is not for text"),
        ([*base, *options, "-o", out, "--trees", "softmax"], "--trees is not for text: leave it"),
        ([out, "--topics", place / "topics"], "--topics is for text: it goes with --collection"),
        ([out, "--trees", "softmax"], "are compared as they are: leave out --trees"),
        ([*base, *options], "-o is missing"),
    ):
        assert message in refused("compare", *more)


def test_the_papers_protocol_is_what_it_prints(place):
    from rankgrad.papers.protocol import protocols
    from rankgrad.text._text_settings import TextSettings

    paper = protocols()["smoothi_table2"]
    settings = TextSettings(**paper.text.settings)
    assert (paper.text.depth, paper.text.folds, paper.text.seeds) == (150, 5, (66,))
    assert (settings.learning_rate, settings.head_learning_rate) == (2e-5, 1e-3)
    assert (settings.passages, settings.document_tokens, settings.documents) == (2, 800, 4)
    assert {m.spec for m in paper.metrics} == set(settings.logged)


def test_a_teacher_is_trained_on_and_the_grades_evaluate(place, rankgrad, refused, tmp_path):
    teacher = {f"q{q}": {f"d{4 * q + at}": float(at) for at in range(4)} for q in range(6)}
    write_run(tmp_path / "teacher.run", teacher)
    options = ["--model", place / "model", "-l", "ranknet", "--fold", 1]
    distilled = [*options, "--teacher", tmp_path / "teacher.run", "--teacher-labels", "rank"]
    rankgrad(*train(place, *options, "-o", tmp_path / "plain"))
    rankgrad(*train(place, *distilled, "-o", tmp_path / "distilled"))
    run = "runs/ranknet/fold1-seed0/test.run"
    assert (tmp_path / "plain" / run).read_text() != (tmp_path / "distilled" / run).read_text()
    beside = [*distilled, "--teacher-weight", 0.5, "--teacher-loss", "margin_mse"]
    rankgrad(*train(place, *beside, "-o", tmp_path / "mixed"))
    found = {(tmp_path / name / run).read_text() for name in ("plain", "distilled", "mixed")}
    assert len(found) == 3
    settings = (tmp_path / "mixed/runs/ranknet/fold1-seed0/settings.toml").read_text()
    assert 'teacher_weight = 0.5\nteacher_loss = "margin_mse"' in settings
    said = refused(*train(place, *options, "--teacher-weight", 0.5, "-o", tmp_path / "none"))
    assert "need a teacher: give --teacher RUN" in said
    said = refused(*train(place, *options, "-o", tmp_path / "distilled"))
    assert "the train data are not those" in said
    said = refused("predict", tmp_path / "plain/runs/ranknet/fold1-seed0", place / "docs.jsonl")
    assert "is of a ranker of texts" in said
    (tmp_path / "few.tsv").write_text("q0\tword0\n")
    few = ["--collection", place / "docs.jsonl", "--topics", tmp_path / "few.tsv"]
    trained = tmp_path / "plain/runs/ranknet/fold1-seed0"
    said = rankgrad("text", "rerank", trained, place / "bm25.run", *few, "-o", tmp_path / "a.run")
    assert "5 queries of" in said.output
    write_run(tmp_path / "other.run", {"z": {"d1": 1.0}})
    AutoModel.from_pretrained(place / "model").save_pretrained(tmp_path / "bare")
    tiny_models.tokenizer().save_pretrained(tmp_path / "bare")
    rerank = ["text", "rerank", tmp_path / "bare", place / "bm25.run", *few]
    assert "is not trained to rank" in refused(*rerank, "-o", tmp_path / "b.run")
    typo = ["--model", "/no/model", "-o", tmp_path / "typo"]
    assert "there is no folder /no/model" in refused(*train(place, *typo))
    assert not list((tmp_path / "typo").glob("runs/softmax/*"))
    beyond = ["--model", place / "model", "--fold", 4, "-o", tmp_path / "none"]
    assert "fold must be from 1 to 3, found 4" in refused(*train(place, *beyond))
    wrong = [*options, "--teacher", tmp_path / "other.run", "-o", tmp_path / "none"]
    assert "the teacher's run has none of the 6 queries" in refused(*train(place, *wrong))
