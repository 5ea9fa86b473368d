"""The protocols of the papers' tables: whole, parseable, and with the numbers that are printed."""

import tomllib

import pytest

from rankgrad import losses, metrics
from rankgrad.papers.protocol import Cell, of_paper, protocols, read
from rankgrad.training import Settings

PAPERS = ("neuralndcg", "smoothi", "comparison", "lambdaloss_at_k", "pirank")

NAMES = [
    "comparison_table1",
    "lambdaloss_at_k_table1",
    "lambdaloss_at_k_table2",
    "neuralndcg_table3",
    "pirank_table1",
    "smoothi_table1",
    "smoothi_table2",
]
# Read off the papers by eye: (table, data set, row, metric, as printed).
PRINTED = [
    ("comparison_table1", "MQ2008", "NeuralNDCGBatched", "NDCG@6", "0.88"),
    ("comparison_table1", "MQ2008", "MseNetBatched", "Pre@2", "0.28"),
    ("comparison_table1", "MQ2008", "ApproxNDCGQbQ", "MAP", "0.63"),
    ("comparison_table1", "MSLR-WEB10K", "MseNetBatched", "Pre@6", "0.308"),
    ("comparison_table1", "MSLR-WEB10K", "RankNet", "NDCG", "-"),
    ("lambdaloss_at_k_table1", "MSLR-WEB30K", "Pairwise", "NDCG@1", "45.31v"),
    ("lambdaloss_at_k_table1", "MSLR-WEB30K", "LambdaLoss@1", "NDCG@5", "47.40^"),
    ("lambdaloss_at_k_table1", "Istella", "Gumbel", "NDCG@1", "71.27"),
    ("lambdaloss_at_k_table1", "Yahoo C14", "LambdaLoss@5", "NDCG", "83.17"),
    ("lambdaloss_at_k_table2", "Istella", "LambdaRank", "NDCG@5", "67.55^"),
    ("lambdaloss_at_k_table2", "Yahoo C14", "LambdaRank@1", "NDCG@5", "69.46v"),
    ("lambdaloss_at_k_table2", "MSLR-WEB30K", "LambdaLoss@5", "NDCG@5", "47.08"),
    ("neuralndcg_table3", "MSLR-WEB30K", "NeuralNDCG@max", "NDCG@5", "51.56*"),
    ("neuralndcg_table3", "Istella", "NeuralNDCG^T@10", "NDCG@5", "66.02*"),
    ("neuralndcg_table3", "Istella", "ListMLE", "NDCG@10", "66.24"),
    ("neuralndcg_table3", "MSLR-WEB30K", "XGBoost", "NDCG@10", "49.17"),
    ("pirank_table1", "MSLR-WEB30K", "PiRank-NDCG", "NDCG@15", "0.465309*"),
    ("pirank_table1", "MSLR-WEB30K", "NeuralSort", "ARP", "44.966999*"),
    ("pirank_table1", "Yahoo C14", "RankNet", "MRR", "0.889641"),
    ("smoothi_table1", "MQ2008", "SmoothI", "NDCG@5", "0.477"),
    ("smoothi_table1", "MQ2008", "LambdaLoss", "P@5", "0.337†"),
    ("smoothi_table1", "MQ2007", "ListNet", "P@1", "0.463"),
    ("smoothi_table1", "MSLR-WEB30K", "Approx", "P@5", "0.716"),
    ("smoothi_table1", "Yahoo C14", "SmoothI", "P@1", "0.869†"),
    ("smoothi_table1", "Yahoo C14", "FastSort", "NDCG", "0.851†"),
    ("smoothi_table2", "Robust04", "SmoothI-NDCG@N", "NDCG@20", "0.480±0.017"),
]


def test_every_table_of_every_paper_is_there():
    assert list(protocols()) == NAMES
    assert {protocol.paper for protocol in protocols().values()} == set(PAPERS)
    assert [protocol.table for protocol in of_paper("lambdaloss_at_k")] == ["Table 1", "Table 2"]


@pytest.mark.parametrize(("table", "data", "row", "metric", "text"), PRINTED)
def test_published_numbers(table, data, row, metric, text):
    cell = protocols()[table].cell(data, row, metric)
    assert cell is not None and cell.text == text


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_row_and_spec_is_sound(name):
    protocol = protocols()[name]
    assert protocol.choices and all(choice.why for choice in protocol.choices)
    for data in protocol.data:
        for row in protocol.rows_on(data.name):
            for metric in protocol.printed:
                assert protocol.cell(data.name, row.name, metric) is not None
            for point in protocol.grid_points(data.name, row.name):
                settings = Settings(**point)
                assert str(losses.get(settings.loss)) == settings.loss
    for metric in protocol.metrics:
        assert str(metrics.get(metric.spec)) == metric.spec


def test_a_grid_is_every_combination_and_its_first_value_without():
    pirank = protocols()["pirank_table1"]
    found = pirank.grid_points("MSLR-WEB30K", "PiRank-NDCG")
    assert len({point["loss"] for point in found}) == 9
    assert "pirank_ndcg@20(temperature=0.01)" in {point["loss"] for point in found}
    [only] = pirank.grid_points("MSLR-WEB30K", "PiRank-NDCG", search=False)
    assert only["loss"] == "pirank_ndcg@10(temperature=1.0)"
    smoothi = protocols()["smoothi_table1"].grid_points("MQ2008", "ListNet")
    assert [point["learning_rate"] for point in smoothi] == [0.001, 0.0001, 0.01]


def test_a_profile_gives_the_settings_of_a_row_on_a_data_set():
    table = protocols()["neuralndcg_table3"]
    [with_tanh] = table.grid_points("Istella", "NeuralNDCG@5")
    [without] = table.grid_points("Istella", "ListNet")
    assert with_tanh["model"] == "neuralndcg_istella"
    assert without["model"] == "neuralndcg_istella(output=none)"


def test_marks_and_decimals():
    assert (Cell.of("47.40^").value, Cell.of("47.40^").decimals) == (47.4, 2)
    assert Cell.of("0.474±0.028†").marks == "±0.028†"
    with pytest.raises(ValueError, match="is no number"):
        Cell.of("n/a")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('losses = ["listnet"]', 'losses = ["listnett"]', "rows.ListNet on MQ2007.*listnett"),
        ('spec = "precision@1"', 'spec = "precission@1"', "metrics.0.spec.*precission"),
        ('model = "smoothi"', 'modl = "smoothi"', "there is no setting 'modl'"),
        ('correction = "bonferroni"', 'correction = "all"', "significance.correction"),
        ('["0.463", "0.412†", ', '["0.463", ', "published.MQ2007.ListNet has 4 cells for 5"),
        ('table = "Table 1"\n', "", "table is missing"),
        ('table = "Table 1"\n', 'table = "Table 1"\ncolor = 1\n', "there is no key color"),
        ('against = "best"', 'against = "Nobody"', "there is no row 'Nobody'"),
        ('name = "MQ2007"', 'name = "MQ2006"', "MQ2006.*not in the catalog"),
        ('"0.463"', '"about half"', "published.MQ2007.ListNet: 'about half'"),
        ('paper = "smoothi"', "paper = smoothi", "is not TOML"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path, old, new, said):
    from importlib import resources

    text = (resources.files("rankgrad.papers") / "protocols/smoothi_table1.toml").read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"mine.toml.*{said}"):
        read(path)


def test_the_files_are_plain_toml():
    from importlib import resources

    for path in (resources.files("rankgrad.papers") / "protocols").iterdir():
        assert tomllib.loads(path.read_text())["paper"] in PAPERS
