import csv
import io
from dataclasses import replace

import pytest
from rich.console import Console

from rankgrad.results.tables import Cell, Table

TABLE = Table(
    title="A_B & 5%",
    columns=("ranker", "ndcg@5", "ap"),
    rows=(
        (Cell("mse"), Cell("0.45", 0.45123, mark="†"), Cell("0.50", 0.5, bold=True)),
        (Cell("neural_ndcg@10"), Cell("0.47", 0.47456, bold=True), Cell("0.49", 0.49)),
        (Cell("a | b"), Cell("missing (1/2)", missing=True), Cell("missing (1/2)", missing=True)),
    ),
    notes=("† significantly worse", "gain: 2^y - 1"),
)


def test_markdown():
    lines = TABLE.to_markdown().splitlines()
    assert lines[0] == "**A_B & 5%**"
    assert lines[2:5] == [
        "| ranker | ndcg@5 | ap |",
        "|:--|--:|--:|",
        "| mse | 0.45† | **0.50** |",
    ]
    assert lines[6] == r"| a \| b | missing (1/2) | missing (1/2) |"
    assert lines[-2:] == ["† significantly worse  ", "gain: 2^y - 1"]


def test_latex():
    text = TABLE.to_latex()
    assert r"\caption{A\_B \& 5\%}" in text
    assert r"mse & 0.45$^{\dagger}$ & \textbf{0.50} \\" in text
    assert r"neural\_ndcg@10 & \textbf{0.47} & 0.49 \\" in text
    assert r"gain: 2\textasciicircum{}y - 1" in text
    for what in ("table", "tabular"):
        assert text.count(rf"\begin{{{what}}}") == text.count(rf"\end{{{what}}}") == 1


def test_csv_has_numbers_in_full_and_nothing_but_rows():
    text = TABLE.to_csv()
    rows = list(csv.reader(io.StringIO(text)))
    assert rows == [
        ["ranker", "ndcg@5", "ndcg@5 mark", "ap"],
        ["mse", "0.45123", "†", "0.5"],
        ["neural_ndcg@10", "0.47456", "", "0.49"],
        ["a | b", "", "", ""],
    ]
    header = replace(TABLE, rows=(), marked=("ndcg@5", "ap")).to_csv()
    assert header == "ranker,ndcg@5,ndcg@5 mark,ap,ap mark"  # whatever is significant


def test_marks_that_mean_something_to_markdown():
    table = Table(("a", "b"), ((Cell("x"), Cell("0.5", mark="*")),))
    assert r"| x | 0.5\* |" in table.to_markdown()
    table = Table(("a", "b"), ((Cell("two\nlines"), Cell("1")),), title="its\ntitle")
    assert table.to_markdown().splitlines()[0::4] == ["**its title**", "| two lines | 1 |"]


def test_terminal():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system="standard")
    console.print(TABLE.to_rich())
    lines = out.getvalue().splitlines()
    row = next(line for line in lines if "neural_ndcg" in line)
    assert "\x1b[1m         0.47" in row  # bold
    plain = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines]
    one, other = (next(line for line in plain if name in line) for name in ("mse", "neural_"))
    assert one.index("0.45†") == other.index("0.47")  # digits stand in line
    assert "gain: 2^y - 1" in plain


def test_render_knows_its_formats():
    assert TABLE.render("csv") == TABLE.to_csv()
    with pytest.raises(ValueError, match="format must be one of"):
        TABLE.render("html")


def test_rows_must_fit_the_columns():
    with pytest.raises(ValueError, match="a row has 1 cells under 2 columns: 'x'"):
        Table(("a", "b"), ((Cell("x"),),))


def test_a_table_without_rows_is_printed():
    empty = Table(("a", "b"), ())
    Console(file=io.StringIO()).print(empty.to_rich())
    assert empty.to_markdown() == "| a | b |\n|:--|--:|"
