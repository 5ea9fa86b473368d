"""The papers' figures: the right curves, and pages that need no network."""

import json
import math
import signal

import numpy as np
import pytest

from rankgrad.data import Dataset, store
from rankgrad.papers import figures
from rankgrad.papers.figures import FIGURES, Inputs, _vary_last_score
from rankgrad.training import trainer


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    parts = {}
    for name, number in (("train", 20), ("vali", 8), ("test", 8)):
        features = random.normal(size=(number * 12, 4)).astype(np.float32)
        labels = np.clip(np.round(features[:, 0] + 1), 0, 4)
        qids = [f"{name}{q}" for q in range(number)]
        parts[name] = Dataset(features, labels, np.arange(number + 1) * 12, qids)
    return store.write_splits(parts, tmp_path / "data")


def test_every_figure_that_was_asked_for_is_there():
    assert list(FIGURES) == [
        "neuralndcg_figure1",
        "neuralndcg_figure2",
        "pirank_figure5",
        "pirank_figure6",
        "pirank_figure7",
        "lambdaloss_at_k_figure1",
    ]


def test_figure_1_is_ndcg_and_its_relaxations():
    chart = FIGURES["neuralndcg_figure1"].make(Inputs())
    exact, scaled, plain = chart.series
    at = exact.x.index(-2.0)
    assert exact.y[at] == pytest.approx(1.0)  # [4, 1, 0, 0, -2] is in the right order
    top = exact.x.index(6.0)  # the irrelevant item is first
    ideal = 3 + 1 / math.log2(3)
    assert exact.y[top] == pytest.approx((3 / math.log2(3) + 1 / 2) / ideal)
    # Without Sinkhorn scaling a worse ranking may score higher, near where scores tie.
    climbs = [np.diff(one.y).clip(min=0).sum() for one in (scaled, plain)]
    assert climbs[0] < 1e-3 and climbs[1] > 0.02


def test_figure_2_tends_to_ndcg_as_the_temperature_falls():
    chart = FIGURES["neuralndcg_figure2"].make(Inputs())
    exact, *relaxed = chart.series
    away = [i for i, x in enumerate(exact.x) if abs(x - round(x)) > 0.2]  # from the jumps
    gaps = [max(abs(one.y[i] - exact.y[i]) for i in away) for one in relaxed]
    assert gaps[0] < 1e-3 and gaps == sorted(gaps)


@pytest.mark.parametrize("name", ["pirank_figure5", "pirank_figure6", "lambdaloss_at_k_figure1"])
def test_no_figure_is_drawn_after_ctrl_c(folder, tmp_path, monkeypatch, name):
    validate = trainer.validate

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGINT)
        return validate(*arguments)

    monkeypatch.setattr(trainer, "validate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        figures.write(FIGURES[name], tmp_path / "out", data=folder, quick=True)
    assert not (tmp_path / "out").exists()


def test_vary_last_score_takes_any_loss():
    curves = {"approx": "approx_ndcg(alpha=50)"}
    exact, relaxed = _vary_last_score([1, 0], [0.0], [-1.0, 1.0], curves, "a note").series
    assert relaxed.y == pytest.approx(exact.y, abs=1e-3)


@pytest.mark.parametrize("name", ["neuralndcg_figure1", "pirank_figure5", "pirank_figure6"])
def test_pages_have_all_they_need(name, folder, tmp_path):
    made = figures.write(FIGURES[name], tmp_path / "out", data=folder, quick=True)
    page = made["html"].read_text()
    assert "Plotly.newPlot" in page and "<script src=" not in page
    assert '<html lang="en">' in page and page.count("</body>") == 1
    facts = json.loads(made["json"].read_text())
    points = sum(len(one["x"]) for one in facts["series"])
    assert len(made["csv"].read_text().splitlines()) == points + 1
    assert facts["notes"] and "(quick)" in facts["title"]


def test_figure_5_follows_relaxed_and_exact(folder):
    chart = FIGURES["pirank_figure5"].make(figures._load_inputs(folder, True))
    assert [one.name for one in chart.series][:2] == ["τ = 0.1", "τ = 0.1, NDCG@10"]
    for relaxed, exact in zip(chart.series[::2], chart.series[1::2], strict=True):
        assert len(relaxed.y) == len(exact.y) == 3
    # At a low temperature the relaxed metric is the exact one, at a high one it is not.
    low = abs(chart.series[0].y[-1] - chart.series[1].y[-1])
    high = abs(chart.series[6].y[-1] - chart.series[7].y[-1])
    assert low < 0.05 < high


def test_figure_5_of_data_with_missing_values(folder):
    parts = {}
    for name, part in figures._load_inputs(folder, True).data.items():
        features = np.array(part.features)
        features[::7, 0] = np.nan
        parts[name] = Dataset(features, part.labels, part.offsets, part.qids)
    chart = FIGURES["pirank_figure5"].make(Inputs(True, parts, "gaps"))
    assert np.isfinite([line.y for line in chart.series]).all()


def test_figure_1_of_lambdaloss_has_a_value_for_each_rate(folder):
    chart = FIGURES["lambdaloss_at_k_figure1"].make(figures._load_inputs(folder, True))
    assert len(chart.series) == 4
    for one in chart.series:
        assert list(one.x) == [0.01, 0.1, 1.0, 10.0] and all(0 < y <= 100 for y in one.y)
    assert "at 0.01 / 0.1 / 1 / 10, 3 epochs" in chart.notes[1]  # all rates, not the protocol's


def test_figure_1_of_lambdaloss_says_why_values_are_missing(folder, monkeypatch):
    def fail(settings, train, vali):
        raise ValueError("an infinite feature")

    monkeypatch.setattr(figures, "fit_to_end", fail)
    chart = FIGURES["lambdaloss_at_k_figure1"].make(figures._load_inputs(folder, True))
    expected = "Softmax at learning rate 0.01 has no value: an infinite feature"
    assert expected in chart.notes and len(chart.notes) >= 16


def test_figure_6_has_no_gain_over_nothing(folder, monkeypatch):
    class Result:
        model = None

    values = iter([0.0] * 4 + [0.5] * 12)  # trained on lists of 10, then on longer ones
    monkeypatch.setattr(figures, "fit_to_end", lambda *arguments: Result())
    monkeypatch.setattr(
        figures, "_evaluate", lambda model, lists, specs: dict.fromkeys(specs, next(values))
    )
    chart = FIGURES["pirank_figure6"].make(figures._load_inputs(folder, True))
    assert np.isnan([line.y for line in chart.series]).all()


def test_figure_7_times_three_ways_to_the_same_loss(monkeypatch):
    import torch

    monkeypatch.setattr(figures, "_time_training", lambda loss, length, steps: float(length))
    chart = FIGURES["pirank_figure7"].make(Inputs(quick=True))
    assert [one.name[:5] for one in chart.series] == ["d = 1", "d = 1", "d = 3"]
    scores = torch.randn(2, 27, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(54).reshape(2, 27) % 3
    from rankgrad import losses

    expected = losses.get("pirank_ndcg@1(temperature=5)")(scores, labels.float())
    torch.testing.assert_close(figures._dense_pirank_loss(scores, labels.float()), expected)


def test_data_without_all_parts_are_an_error(folder, tmp_path):
    (folder / "test").rename(tmp_path / "gone")
    with pytest.raises(ValueError, match="has no test"):
        figures.write(FIGURES["pirank_figure6"], tmp_path / "out", data=folder, quick=True)
