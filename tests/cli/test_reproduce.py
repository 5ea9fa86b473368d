"""``rankgrad reproduce``: what there is, what is missing, a quick run, and figures."""

import io
import json

import numpy as np
import pytest

from rankgrad.data import catalog
from rankgrad.papers.protocol import protocols


@pytest.fixture
def mq2008(tmp_path):
    """A little of what could be MQ2008: 46 features, two folds, 30 queries."""
    random = np.random.default_rng(0)
    for fold in (1, 2):
        place = tmp_path / "MQ2008" / f"Fold{fold}"
        place.mkdir(parents=True)
        for split, first, number in (("train", 0, 18), ("vali", 18, 6), ("test", 24, 6)):
            lines = []
            for query in range(first, first + number):
                for _ in range(8):
                    values = random.random(46)
                    label = int(values[0] * 3)
                    features = " ".join(f"{i}:{v:.4f}" for i, v in enumerate(values, 1))
                    lines.append(f"{label} qid:{100 * fold + query} {features}\n")
            (place / f"{split}.txt").write_text("".join(lines))
    return tmp_path / "MQ2008"


def test_the_list_names_every_table_its_data_and_where_to_get_them(rankgrad, mq2008):
    lines = json.loads(rankgrad("reproduce", "--list", "--data", mq2008, "--json").stdout)
    assert set(protocols()) <= {line["name"] for line in lines}
    there = {(line["name"], line["data"]): line["there"] for line in lines}
    assert there["smoothi_table1", "MQ2008"] == str(mq2008)
    assert there["smoothi_table1", "MQ2007"] is None
    shown = rankgrad("reproduce", "--list", "--data", mq2008).stdout
    assert "pirank_figure7" in shown and "webscope" in shown and "not run here" in shown
    some = json.loads(rankgrad("reproduce", "pirank", "--list", "--json").stdout)
    assert {line["paper"] for line in some} == {"pirank"}
    one = ["reproduce", "smoothi", "--table", "smoothi_table2", "--list", "--json"]
    assert [line["name"] for line in json.loads(rankgrad(*one).stdout)] == ["smoothi_table2"]


@pytest.mark.filterwarnings("ignore:.*MQ2008 has")
def test_a_quick_table_beside_the_paper(rankgrad, mq2008, tmp_path):
    arguments = ["reproduce", "comparison", "--data", mq2008, "--only", "MQ2008", "--quick"]
    arguments += ["--workers", 0, "--device", "cpu", "-o", tmp_path / "out"]
    metadata = json.loads(rankgrad(*arguments, "--json").stdout)
    [one] = metadata
    assert one["quick"] and one["data"] == "MQ2008"
    rows = {(row["row"], row["metric"]): row for row in one["rows"]}
    row = rows["NeuralNDCGQbQ", "NDCG@2"]
    assert row["paper"] == 0.74 and row["difference"] == pytest.approx(row["ours"] - 0.74)
    shown = rankgrad(*arguments, "--format", "markdown").stdout  # nothing is run again
    assert "| NeuralNDCGQbQ | paper | 0.89 | 0.74 | 0.8 |" in shown and "quick" in shown
    place = tmp_path / "out" / "comparison_table1-quick" / "MQ2008"
    assert (place / "table.md").exists() and (place / "reproduction.json").exists()
    prepared = place / "prepared" / "data"
    assert (prepared / "Fold1").is_dir() and catalog.recognize(prepared) is None


def test_the_bar_of_a_terminal(monkeypatch):
    from rich.console import Console

    from rankgrad.cli import reproduce
    from rankgrad.experiments.compare import Progress, Row

    text = io.StringIO()
    terminal = Console(file=text, width=120, force_terminal=True, color_system=None)
    monkeypatch.setattr(reproduce, "console", lambda *, stderr: terminal)
    rows = (Row("mse", 1, 1, 3, (), {}), Row("[softmax]", 0, 0, 3, ("seed 0: epoch [1/9]",), {}))
    with reproduce._progress() as show:
        show("Table 9 [quick]", Progress(rows))
        show("Table 9 [quick]", Progress(rows, "something ended"))
        show("Table 10", Progress(rows))
    shown = text.getvalue()
    assert "2/6 runs [softmax] seed 0: epoch [1/9]" in shown
    assert "Table 9 [quick]" in shown and "Table 10" in shown


def test_figures_that_need_no_data(rankgrad, tmp_path):
    shown = rankgrad("reproduce", "neuralndcg", "--figures", "-o", tmp_path).stdout
    assert "neuralndcg_figure2.html" in shown
    assert (tmp_path / "neuralndcg_figure1.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reproduce"], "say which paper"),
        (["reproduce", "--table", "smoothi_table1"], "say which paper has the table"),
        (["reproduce", "smoothi"], "no folder was given"),
        (["reproduce", "pirank", "--data", "."], "webscope.sandbox.yahoo.com"),
        (["reproduce", "smoothi", "--table", "table7", "--data", "."], "smoothi_table1"),
        (["reproduce", "smoothi", "--table", "smoothi_table2", "--data", "."], "Robust04"),
        (["reproduce", "smoothi", "--only", "MQ2009", "--data", "."], "MQ2009"),
        (["reproduce", "smoothi", "--data", "nothere"], "nothere: no such folder"),
        (["reproduce", "--list", "--data", "nothere"], "nothere: no such folder"),
        (["reproduce", "comparison", "--figures"], "no figures of comparison"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(arguments, said, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from rankgrad.cli import app

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
