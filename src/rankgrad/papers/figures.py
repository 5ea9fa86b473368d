"""The papers' figures, drawn again from data or from formulas.

``rankgrad reproduce --figures`` calls :func:`write`, which writes a figure as a self-contained page
and its numbers as JSON and CSV. Each figure has a function that computes its :class:`_Chart` from
:class:`Inputs`; the decorator :func:`_figure` registers the function in ``FIGURES``.
"""

from __future__ import annotations

import html
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad import _files
from rankgrad.data import Dataset, _layout, catalog, load_splits, synthetic
from rankgrad.data.transforms import Pipeline
from rankgrad.extras import requires
from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.models import models
from rankgrad.papers._splits import cut, find
from rankgrad.papers.protocol import protocols
from rankgrad.training import FittedRanker, Settings
from rankgrad.training._evaluations import EvaluatedLists
from rankgrad.training._fitting import fit_to_end

__all__ = ["FIGURES", "Inputs", "of_paper", "write"]


@dataclass(frozen=True)
class _Series:
    """A line of a chart.

    Attributes:
        name: the line's entry in the legend.
        x: ``[points]``.
        y: ``[points]``; NaN where there is no value.
        panel: the title of the panel that the line is in.
        dashed: whether the line is dashed, as exact metrics are beside relaxed ones.
        group: lines of a group have the same color; a line without a group has its own.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    panel: str = ""
    dashed: bool = False
    group: str = ""


@dataclass(frozen=True)
class _Chart:
    """The numbers of a figure, the titles of its axes, and the notes below it."""

    series: tuple[_Series, ...]
    x: str  # the title of the x axis
    y: str  # the title of the y axis
    log_x: bool = False
    log_y: bool = False
    notes: tuple[str, ...] = ()

    def to_csv(self) -> str:
        """CSV with a row for each point."""
        rows = (
            (line.panel, line.name, repr(float(x)), repr(float(y)))
            for line in self.series
            for x, y in zip(line.x, line.y, strict=True)
        )
        return _files.csv_text(("panel", "series", self.x, self.y), rows)

    def to_html(self, title: str) -> str:
        """A self-contained page."""
        with requires("report"):
            import plotly.graph_objects as go
            from plotly.subplots import make_subplots

        panels = list(dict.fromkeys(line.panel for line in self.series))
        plot = make_subplots(1, len(panels), subplot_titles=panels, shared_yaxes=True)
        groups = list(dict.fromkeys(line.group or line.name for line in self.series))
        for line in self.series:
            color = _COLORS[groups.index(line.group or line.name) % len(_COLORS)]
            plot.add_trace(
                go.Scatter(
                    x=list(line.x),
                    y=list(line.y),
                    name=line.name,
                    legendgroup=line.name,
                    showlegend=line.panel == panels[0],
                    line={"color": color, "dash": "dash" if line.dashed else None},
                    mode="lines" if len(line.x) > _MAX_MARKERS else "lines+markers",
                ),
                row=1,
                col=panels.index(line.panel) + 1,
            )
        plot.update_xaxes(title_text=self.x, type="log" if self.log_x else "linear")
        plot.update_yaxes(type="log" if self.log_y else "linear")
        plot.update_yaxes(title_text=self.y, col=1)
        plot.update_layout(title=title, template="plotly_white", height=560)
        page: str = plot.to_html(include_plotlyjs=True, full_html=True)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        # Plotly's script, between the page's own tags, contains the same strings. Hence only the
        # first <html> and <head> and the last </body> are replaced.
        page = page.replace("<html>", '<html lang="en">', 1)
        page = page.replace("<head>", f"<head><title>{html.escape(title)}</title>{_STYLE}", 1)
        before, after = page.rsplit("</body>", 1)
        return f"{before}{notes}</body>{after}"


@dataclass(frozen=True)
class Inputs:
    """What a figure is made from.

    Args:
        quick: whether to use little data and training.
        data: the parts train, vali and test; empty for figures that need no data.
        name: the name of the data, for the notes.
    """

    quick: bool = False
    data: Mapping[str, Dataset] = field(default_factory=dict)
    name: str = ""


_Make = Callable[[Inputs], _Chart]  # computes the chart of a figure


@dataclass(frozen=True)
class _Figure:
    """A figure of a paper.

    Attributes:
        name: the key in ``FIGURES``, such as ``pirank_figure5``.
        paper: a key of ``_PAPERS``.
        title: the title, with the paper and the number of the figure.
        needs: the data that the figure is drawn from, in words for users; ``nothing`` for none.
        make: computes the chart.
    """

    name: str
    paper: str
    title: str
    needs: str
    make: _Make


FIGURES: dict[str, _Figure] = {}
_PAPERS = {"neuralndcg": "NeuralNDCG", "pirank": "PiRank", "lambdaloss_at_k": "LambdaLoss@K"}
# Colors that people with any kind of color vision can tell apart (Okabe and Ito).
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE = (
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<style>p { font-family: sans-serif; margin: 0 5em 0.5em; }</style>"
)
_MAX_MARKERS = 60  # a line of more points is drawn without markers
_QUICK_LISTS = 60  # lists of each part of the data, with --quick
_ANY_DATA = "MSLR-WEB30K, or any set, or none: simulated"


def _figure(
    paper: str, number: int, title: str, needs: str = "nothing"
) -> Callable[[_Make], _Make]:
    """A decorator that registers a function as the one that computes a figure's chart."""

    def register(make: _Make) -> _Make:
        name = f"{paper}_figure{number}"
        full_title = f"{_PAPERS[paper]}, figure {number}: {title}"
        FIGURES[name] = _Figure(name, paper, full_title, needs, make)
        return make

    return register


def write(
    figure: _Figure, folder: Path, *, data: Path | None = None, quick: bool = False
) -> dict[str, Path]:
    """Make a figure: a page, and its numbers as JSON and CSV.

    Args:
        figure: one of ``FIGURES``.
        folder: the folder to write to; created if it does not exist.
        data: a data set, or a folder of data sets; None for simulated data.
        quick: whether to use little data and training.

    Returns:
        The paths by kind: ``html``, ``json`` and ``csv``.

    Raises:
        ValueError: the data lack a part.
    """
    inputs = Inputs(quick) if figure.needs == "nothing" else _load_inputs(data, quick)
    chart = figure.make(inputs)
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{figure.title} (quick)" if quick else figure.title
    metadata = {
        "figure": figure.name,
        "title": title,
        "x": chart.x,
        "y": chart.y,
        "notes": chart.notes,
        "series": [
            vars(line) | {"y": [float(y) if np.isfinite(y) else None for y in line.y]}
            for line in chart.series
        ],
    }
    paths = {kind: folder / f"{figure.name}.{kind}" for kind in ("html", "json", "csv")}
    _files.write(paths["html"], chart.to_html(title))
    _files.write(paths["json"], json.dumps(metadata, indent=1) + "\n")
    _files.write(paths["csv"], chart.to_csv())
    return paths


def of_paper(paper: str) -> list[_Figure]:
    """The figures of a paper that can be drawn.

    Args:
        paper: the name of the paper, such as ``pirank``.

    Returns:
        The figures; empty for a paper of which none can be drawn.
    """
    return [figure for figure in FIGURES.values() if figure.paper == paper]


def _load_inputs(data: Path | None, quick: bool) -> Inputs:
    """The inputs of a figure that needs data; of data that are divided into folds, the first fold.

    A folder may contain several known data sets: MSLR-WEB30K is preferred, then the first one. A
    folder without known data sets is loaded as a data set itself. If ``data`` is None, the data
    are simulated.
    """
    if data is None:
        name, parts = "simulated search log", synthetic.splits("small")
    else:
        folders = find(data, catalog.names())
        name = "MSLR-WEB30K" if "MSLR-WEB30K" in folders else next(iter(folders), data.name)
        folder = folders.get(name, data)
        fold = next(iter(_layout.folds(folder)), None)
        parts = load_splits(folder, fold)
        missing = [part for part in ("train", "vali", "test") if part not in parts]
        if missing:
            raise ValueError(f"{folder} has no {' and no '.join(missing)}: figures need all parts")
        name = name if fold is None else f"{name}, fold {fold}"
    if quick:  # only the first lists of each part
        parts = {
            key: part.select(np.arange(min(len(part), _QUICK_LISTS))) for key, part in parts.items()
        }
    return Inputs(quick, parts, name)


# ------------------------------------------------------------------ NeuralNDCG


def _vary_last_score(
    labels: Sequence[float],
    scores: Sequence[float],
    values: Sequence[float],
    curves: Mapping[str, str],
    note: str,
) -> _Chart:
    """Exact NDCG and ``1 - loss`` of one list, as the score of its last item varies.

    Args:
        labels: ``[n]``, of all items.
        scores: ``[n - 1]``, of all items but the last.
        values: ``[points]``, the scores of the last item.
        curves: the spec of a loss for each name of a line.
        note: the note below the chart.
    """
    score_rows = torch.tensor([[*scores, x] for x in values], dtype=torch.float64)
    label_rows = torch.tensor(labels, dtype=torch.float64).expand_as(score_rows)
    exact = metrics.get("ndcg")(score_rows, label_rows)
    series = [_Series("NDCG", list(values), exact.tolist(), dashed=True)]
    for name, spec in curves.items():
        relaxed = 1 - losses.get(spec, reduction="none")(score_rows, label_rows)
        series.append(_Series(name, list(values), relaxed.tolist()))
    return _Chart(tuple(series), "score x", "NDCG", notes=(note,))


@_figure("neuralndcg", 1, "NDCG against one score, with and without Sinkhorn scaling")
def _neuralndcg_1(inputs: Inputs) -> _Chart:
    values = np.linspace(-2, 6, 321).round(6).tolist()
    curves = {
        "NeuralNDCG (τ = 1)": "neural_ndcg",
        "NeuralNDCG (τ = 1), no Sinkhorn": "neural_ndcg(sinkhorn=false)",
    }
    note = "Labels [2, 1, 0, 0, 0], scores [4, 1, 0, 0, x], as the paper's caption says."
    return _vary_last_score([2, 1, 0, 0, 0], [4, 1, 0, 0], values, curves, note)


@_figure("neuralndcg", 2, "NDCG against one score, by temperature")
def _neuralndcg_2(inputs: Inputs) -> _Chart:
    values = np.linspace(0, 6, 301).round(6).tolist()
    curves = {
        f"NeuralNDCG (τ = {t:g})": f"neural_ndcg(temperature={t})" for t in (0.01, 0.1, 1.0, 10.0)
    }
    note = (
        "Labels [1, 2, 3, 4, 5], scores [1, 2, 3, 4, x], as the paper's caption says; the "
        "temperatures are ours."
    )
    return _vary_last_score([1, 2, 3, 4, 5], [1, 2, 3, 4], values, curves, note)


# ---------------------------------------------------------------------- PiRank


def _training_settings(inputs: Inputs, table: str, **options: Any) -> Settings:
    """The training settings of a paper's table, with 30 epochs and without early stopping.

    With ``--quick``, a small network is trained for 3 epochs. ``options`` override any setting.
    """
    values = dict(protocols()[table].settings) | {"epochs": 30, "patience": None, "device": "auto"}
    if inputs.quick:
        small = "mlp(hidden=[32], input_norm=true)"
        values |= {"epochs": 3, "model": small, "batch_size": 16, "list_size": 60}
    return Settings(**values | options)


def _override(settings: Settings, **options: Any) -> Settings:
    """The same settings with other values for some options."""
    return Settings(**settings.model_dump() | options)


def _provenance(inputs: Inputs, settings: Settings, rates: Sequence[float] = ()) -> tuple[str, ...]:
    """Notes on the data and the training of a figure.

    ``rates`` are the learning rates of a figure that compares several; otherwise, the note names
    that of the settings.
    """
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in inputs.data.items())
    learning_rates = " / ".join(f"{rate:g}" for rate in rates or (settings.learning_rate,))
    return (
        f"Data: {inputs.name} ({sizes} queries).",
        f"{settings.model}, {settings.optimizer} at {learning_rates}, {settings.epochs} epochs.",
    )


@_figure("pirank", 5, "relaxed and exact NDCG@10 in training, by temperature", _ANY_DATA)
def _pirank_5(inputs: Inputs) -> _Chart:
    series: list[_Series] = []
    # The loss leaves out lists without relevant items, so the exact metric does too.
    metric = "ndcg@10(empty=skip)"
    settings = _training_settings(inputs, "pirank_table1", transforms=(), metric=metric, metrics=())
    for temperature in (0.1, 1.0, 5.0, 10.0):
        spec = f"pirank_ndcg@10(temperature={temperature})"
        relaxed, exact = _train_and_evaluate(inputs, _override(settings, loss=spec))
        epochs = list(range(1, len(exact) + 1))
        name = f"τ = {temperature:g}"
        series.append(_Series(name, epochs, relaxed, group=name))
        series.append(_Series(f"{name}, NDCG@10", epochs, exact, dashed=True, group=name))
    return _Chart(
        tuple(series),
        "epoch",
        "validation NDCG@10, relaxed and exact",
        notes=(
            *_provenance(inputs, settings),
            "Full lines: 1 - the PiRank loss; dashed: the exact metric of the same scores. The "
            "paper counts training steps.",
        ),
    )


def _train_and_evaluate(inputs: Inputs, settings: Settings) -> tuple[list[float], list[float]]:
    """Train a network; returns the relaxed and the exact validation metric, ``[epochs]`` each."""
    train, vali = inputs.data["train"], inputs.data["vali"]
    # What ``fit`` puts in front of the network: it replaces missing values.
    transform = Pipeline.for_network(settings.transforms).fit(train.features, train.offsets)
    torch.manual_seed(settings.seed)
    network = models.get(settings.model).build(transform.n_outputs)
    loss = losses.get(settings.loss)
    offsets, labels = torch.tensor(vali.offsets), torch.tensor(vali.labels)
    features = transform.transform(torch.tensor(np.asarray(vali.features)))
    relaxed: list[float] = []

    def record_relaxed(_: dict[str, float]) -> None:
        device = next(network.parameters()).device
        network.eval()
        with torch.no_grad():
            scores = network(features.to(device)).cpu()
            relaxed.append(1 - float(loss(scores, labels, offsets=offsets)))
        network.train()

    result = fit_to_end(settings, train, vali, network=network, on_epoch=record_relaxed)
    return relaxed, [epoch[settings.metric] for epoch in result.history]


def _evaluate(model: FittedRanker, lists: Dataset, specs: Sequence[str]) -> Mapping[str, float]:
    """The mean of each metric over lists."""
    return EvaluatedLists.of(model.predict(lists.features, lists.offsets), lists, specs).mean


@_figure("pirank", 6, "gain in NDCG@k by training list size", _ANY_DATA)
def _pirank_6(inputs: Inputs) -> _Chart:
    sizes, cutoffs = (10, 20, 40, 100), (1, 3, 5, 10, 15)
    specs = [f"ndcg@{k}" for k in cutoffs]
    settings = _training_settings(inputs, "pirank_table1", loss="pirank_ndcg@10(temperature=5)")
    test_sets = {size: cut(inputs.data["test"], size) for size in sizes}
    ndcg = {}  # by list size in training and in the test, one value for each cutoff
    for train_size in sizes:
        size_settings = _override(settings, list_size=train_size)
        model = fit_to_end(size_settings, inputs.data["train"], inputs.data["vali"]).model
        for test_size, lists in test_sets.items():
            means = _evaluate(model, lists, specs)
            ndcg[train_size, test_size] = [means[spec] for spec in specs]
    series = []
    for test_size, train_size in itertools.product(sizes, sizes[1:]):
        pairs = zip(ndcg[train_size, test_size], ndcg[sizes[0], test_size], strict=True)
        gains = [100 * (value / base - 1) if base > 0 else np.nan for value, base in pairs]
        panel = f"tested on {test_size}"
        series.append(_Series(f"trained on {train_size}", cutoffs, gains, panel=panel))
    return _Chart(
        tuple(series),
        "cutoff k",
        "% better NDCG@k than trained on lists of 10",
        notes=(
            *_provenance(inputs, settings),
            "Lists are cut to that many documents drawn at random, in training anew each epoch.",
        ),
    )


@_figure("pirank", 7, "wall time by training list size and depth")
def _pirank_7(inputs: Inputs) -> _Chart:
    # Cubes of 5, 10, 13 and 15: at depth 3, each level merges n^(1/3) children.
    lengths = (125, 1000) if inputs.quick else (125, 1000, 2197, 3375)
    steps = 2 if inputs.quick else 10
    timed_losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "d = 1, eq. 12 as written (n × n)": _dense_pirank_loss,
        "d = 1": losses.get("pirank_ndcg@1(temperature=5)"),
        "d = 3": losses.get("pirank_ndcg@1(temperature=5, depth=3)"),
    }
    series = []
    for name, loss in timed_losses.items():
        seconds = [_time_training(loss, length, steps) for length in lengths]
        series.append(_Series(name, lengths, seconds))
    return _Chart(
        tuple(series),
        "training list size",
        "seconds for 100 steps of 16 queries",
        log_x=True,
        log_y=True,
        notes=(
            f"Measured over {steps} steps on {torch.get_num_threads()} threads: network "
            "(25 features, hidden layers 256, 128 and 64), loss, gradient and update; k = 1, "
            "list lengths are cubes.",
            "Depth 1 costs O(n log n) here, as the row sums of NeuralSort need no n × n matrix; "
            "the first line is the formula as the paper writes it, which is what its depth 3 is "
            "compared with.",
        ),
    )


def _dense_pirank_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """PiRank's NDCG@1 loss at τ = 5, with the n × n matrix of score differences in eq. 12.

    Args:
        scores: ``[b, n]``.
        labels: ``[b, n]``.
    """
    length = scores.shape[-1]
    row_sums = (scores[..., :, None] - scores[..., None, :]).abs().sum(-1)
    # The first row of the relaxed permutation: NDCG@1 needs no other.
    first_rank = (((length - 1) * scores - row_sums) / 5).softmax(-1)
    gains = 2**labels - 1
    return (1 - (first_rank * gains).sum(-1) / gains.max(-1).values).mean()


def _time_training(loss: Callable[[Tensor, Tensor], Tensor], length: int, steps: int) -> float:
    """The seconds of 100 training steps on 16 lists of a length, extrapolated from ``steps``."""
    generator = torch.Generator().manual_seed(0)
    network = models.get("mlp(hidden=[256, 128, 64])").build(25)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5)
    features = torch.randn(16, length, 25, generator=generator)
    labels = torch.randint(0, 5, (16, length), generator=generator).float()

    def train_step() -> None:
        optimizer.zero_grad()
        loss(network(features), labels).backward()
        optimizer.step()

    train_step()  # a warm-up, which is not timed
    started = time.perf_counter()
    for _ in range(steps):
        train_step()
    return 100 * (time.perf_counter() - started) / steps


# ---------------------------------------------------------------- LambdaLoss@K


@_figure("lambdaloss_at_k", 1, "learning rates", _ANY_DATA)
def _lambdaloss_1(inputs: Inputs) -> _Chart:
    rates = (0.01, 0.1, 1.0, 10.0)
    loss_specs = {
        "Softmax": "softmax",
        "Gumbel": "gumbel_approx_ndcg(samples=8)",
        "LambdaLoss": "lambdaloss",
        "LambdaLoss@5": "lambdaloss@5",
    }
    settings = _training_settings(inputs, "lambdaloss_at_k_table1")
    series, failures = [], []
    for name, loss in loss_specs.items():
        values = []
        for rate in rates:
            rate_settings = _override(settings, loss=loss, learning_rate=rate)
            try:
                model = fit_to_end(rate_settings, inputs.data["train"], inputs.data["vali"]).model
            except ValueError as error:  # such as training that diverged
                failures.append(f"{name} at learning rate {rate:g} has no value: {error}")
                values.append(float("nan"))
                continue
            values.append(100 * _evaluate(model, inputs.data["test"], ["ndcg@5"])["ndcg@5"])
        series.append(_Series(name, rates, values))
    return _Chart(
        tuple(series),
        "learning rate",
        "test NDCG@5 × 100",
        log_x=True,
        notes=(
            *_provenance(inputs, settings, rates),
            "The paper does not name its four methods; these are the best baselines and both "
            "forms of LambdaLoss.",
            *failures,
        ),
    )
