"""The papers' figures drawn again, as a self-contained page with the numbers beside it."""

from __future__ import annotations

import csv
import html
import io
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
from rankgrad.extras import requires
from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.models import models
from rankgrad.papers._splits import cut, find
from rankgrad.papers.protocol import protocols
from rankgrad.training import FittedRanker, Settings, fit
from rankgrad.training._evaluations import EvaluatedLists

__all__ = ["FIGURES", "Inputs", "of_paper", "write"]


@dataclass(frozen=True)
class _Series:
    """A line of a figure; ``dashed`` ones are exact where the others are relaxed."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    panel: str = ""
    dashed: bool = False
    group: str = ""  # lines of a group have the same color


@dataclass(frozen=True)
class _Chart:
    """What a figure shows, in numbers and words."""

    series: tuple[_Series, ...]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    notes: tuple[str, ...] = ()

    def to_csv(self) -> str:
        """A line for each point."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("panel", "series", self.x, self.y))
        for one in self.series:
            for x, y in zip(one.x, one.y, strict=True):
                writer.writerow((one.panel, one.name, repr(float(x)), repr(float(y))))
        return out.getvalue()

    def to_html(self, title: str) -> str:
        """A self-contained page."""
        with requires("report"):
            import plotly.graph_objects as go
            from plotly.subplots import make_subplots

        panels = list(dict.fromkeys(one.panel for one in self.series))
        drawn = make_subplots(1, len(panels), subplot_titles=panels, shared_yaxes=True)
        groups = list(dict.fromkeys(one.group or one.name for one in self.series))
        for one in self.series:
            at = groups.index(one.group or one.name)
            line = {"color": _COLORS[at % len(_COLORS)], "dash": "dash" if one.dashed else None}
            drawn.add_trace(
                go.Scatter(
                    x=list(one.x),
                    y=list(one.y),
                    name=one.name,
                    legendgroup=one.name,
                    showlegend=one.panel == panels[0],
                    line=line,
                    mode="lines" if len(one.x) > _MANY else "lines+markers",
                ),
                row=1,
                col=panels.index(one.panel) + 1,
            )
        drawn.update_xaxes(title_text=self.x, type="log" if self.log_x else "linear")
        drawn.update_yaxes(type="log" if self.log_y else "linear")
        drawn.update_yaxes(title_text=self.y, col=1)
        drawn.update_layout(title=title, template="plotly_white", height=560)
        page: str = drawn.to_html(include_plotlyjs=True, full_html=True)
        words = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        # The library has these words too, further on.
        page = page.replace("<html>", '<html lang="en">', 1)
        page = page.replace("<head>", f"<head><title>{html.escape(title)}</title>{_STYLE}", 1)
        before, after = page.rsplit("</body>", 1)
        return f"{before}{words}</body>{after}"


@dataclass(frozen=True)
class Inputs:
    """What a figure may use: data with train, vali and test, and whether to be quick."""

    quick: bool = False
    data: Mapping[str, Dataset] = field(default_factory=dict)
    name: str = ""


_Make = Callable[[Inputs], _Chart]


@dataclass(frozen=True)
class _Figure:
    """A figure of a paper."""

    name: str
    paper: str
    title: str
    needs: str
    make: _Make


FIGURES: dict[str, _Figure] = {}
_PAPERS = {"neuralndcg": "NeuralNDCG", "pirank": "PiRank", "lambdaloss_at_k": "LambdaLoss@K"}
# Colors for any kind of color vision (Okabe and Ito).
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLE = (
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<style>p { font-family: sans-serif; margin: 0 5em 0.5em; }</style>"
)
_MANY = 60  # points of a line from which on they are not marked
_ANY_DATA = "MSLR-WEB30K, or any set, or none: simulated"


def _figure(
    paper: str, number: int, title: str, needs: str = "nothing"
) -> Callable[[_Make], _Make]:
    """Register a function that makes the chart of a figure."""

    def register(make: _Make) -> _Make:
        name = f"{paper}_figure{number}"
        whole = f"{_PAPERS[paper]}, figure {number}: {title}"
        FIGURES[name] = _Figure(name, paper, whole, needs, make)
        return make

    return register


def write(
    figure: _Figure, folder: Path, *, data: Path | None = None, quick: bool = False
) -> dict[str, Path]:
    """Make a figure: a page, and its numbers as JSON and CSV.

    Args:
        figure: one of ``FIGURES``.
        folder: where to write.
        data: a data set, or a folder of data sets; None for simulated data.
        quick: whether to draw it from little data and training.

    Returns:
        The paths by kind: ``html``, ``json`` and ``csv``.

    Raises:
        ValueError: the data lack a part.
    """
    inputs = Inputs(quick) if figure.needs == "nothing" else _inputs(data, quick)
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
            vars(one) | {"y": [float(y) if np.isfinite(y) else None for y in one.y]}
            for one in chart.series
        ],
    }
    paths = {kind: folder / f"{figure.name}.{kind}" for kind in ("html", "json", "csv")}
    _files.write(paths["html"], chart.to_html(title))
    _files.write(paths["json"], json.dumps(metadata, indent=1) + "\n")
    _files.write(paths["csv"], chart.to_csv())
    return paths


def of_paper(paper: str) -> list[_Figure]:
    """The figures of a paper that are made.

    Args:
        paper: its name, such as ``pirank``.

    Returns:
        Those that are drawn here, possibly none.
    """
    return [figure for figure in FIGURES.values() if figure.paper == paper]


def _inputs(data: Path | None, quick: bool) -> Inputs:
    """WEB30K where it is found, else any set with all parts, else simulated data."""
    if data is None:
        return _limited(synthetic.splits("small"), "simulated search log", quick)
    found = find(data, catalog.names())
    name = "MSLR-WEB30K" if "MSLR-WEB30K" in found else next(iter(found), data.name)
    place = found.get(name, data)
    fold = next(iter(_layout.folds(place)), None)
    parts = load_splits(place, fold)
    missing = [part for part in ("train", "vali", "test") if part not in parts]
    if missing:
        raise ValueError(f"{place} has no {' and no '.join(missing)}: figures need all parts")
    return _limited(parts, name if fold is None else f"{name}, fold {fold}", quick)


def _limited(parts: Mapping[str, Dataset], name: str, quick: bool) -> Inputs:
    if quick:
        parts = {key: part.select(np.arange(min(len(part), 60))) for key, part in parts.items()}
    return Inputs(quick, parts, name)


# ------------------------------------------------------------------ NeuralNDCG


def _one_score(
    labels: Sequence[float],
    scores: Sequence[float],
    values: Sequence[float],
    curves: Mapping[str, str],
) -> list[_Series]:
    """Exact NDCG and ``1 - loss`` of each loss, as one more score after the others varies."""
    rows = torch.tensor([[*scores, x] for x in values], dtype=torch.float64)
    truth = torch.tensor(labels, dtype=torch.float64).expand_as(rows)
    exact = metrics.get("ndcg")(rows, truth)
    series = [_Series("NDCG", list(values), exact.tolist(), dashed=True)]
    for name, spec in curves.items():
        relaxed = 1 - losses.get(spec, reduction="none")(rows, truth)
        series.append(_Series(name, list(values), relaxed.tolist()))
    return series


@_figure("neuralndcg", 1, "NDCG against one score, with and without Sinkhorn scaling")
def _neuralndcg_1(inputs: Inputs) -> _Chart:
    values = np.linspace(-2, 6, 321).round(6).tolist()
    curves = {
        "NeuralNDCG (τ = 1)": "neural_ndcg",
        "NeuralNDCG (τ = 1), no Sinkhorn": "neural_ndcg(sinkhorn=false)",
    }
    series = _one_score([2, 1, 0, 0, 0], [4, 1, 0, 0], values, curves)
    note = "Labels [2, 1, 0, 0, 0], scores [4, 1, 0, 0, x], as the paper's caption says."
    return _Chart(tuple(series), "score x", "NDCG", notes=(note,))


@_figure("neuralndcg", 2, "NDCG against one score, by temperature")
def _neuralndcg_2(inputs: Inputs) -> _Chart:
    values = np.linspace(0, 6, 301).round(6).tolist()
    curves = {
        f"NeuralNDCG (τ = {t:g})": f"neural_ndcg(temperature={t})" for t in (0.01, 0.1, 1.0, 10.0)
    }
    series = _one_score([1, 2, 3, 4, 5], [1, 2, 3, 4], values, curves)
    note = (
        "Labels [1, 2, 3, 4, 5], scores [1, 2, 3, 4, x], as the paper's caption says; the "
        "temperatures are ours."
    )
    return _Chart(tuple(series), "score x", "NDCG", notes=(note,))


# ---------------------------------------------------------------------- PiRank


def _training(inputs: Inputs, table: str, **options: Any) -> Settings:
    """The settings of a paper's table, made small for ``--quick`` and for simulated data."""
    values = dict(protocols()[table].settings) | {"epochs": 30, "patience": None, "device": "auto"}
    if inputs.quick:
        small = "mlp(hidden=[32], input_norm=true)"
        values |= {"epochs": 3, "model": small, "batch_size": 16, "list_size": 60}
    return Settings(**values | options)


def _provenance(inputs: Inputs, settings: Settings) -> tuple[str, ...]:
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in inputs.data.items())
    return (
        f"Data: {inputs.name} ({sizes} queries).",
        f"{settings.model}, {settings.optimizer} at {settings.learning_rate:g}, "
        f"{settings.epochs} epochs.",
    )


@_figure("pirank", 5, "relaxed and exact NDCG@10 in training, by temperature", _ANY_DATA)
def _pirank_5(inputs: Inputs) -> _Chart:
    series: list[_Series] = []
    # The loss leaves out lists without relevant items, so the exact metric does too.
    exactly = "ndcg@10(empty=skip)"
    settings = _training(inputs, "pirank_table1", transforms=(), metric=exactly, metrics=())
    for temperature in (0.1, 1.0, 5.0, 10.0):
        spec = f"pirank_ndcg@10(temperature={temperature})"
        relaxed, exact = _train_and_relax(inputs, _replace_loss(settings, spec))
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


def _train_and_relax(inputs: Inputs, settings: Settings) -> tuple[list[float], list[float]]:
    """Relaxed and exact validation metric after each epoch of training."""
    train, vali = inputs.data["train"], inputs.data["vali"]
    torch.manual_seed(settings.seed)
    network = models.get(settings.model).build(train.n_features)
    loss = losses.get(settings.loss)
    offsets, labels = torch.tensor(vali.offsets), torch.tensor(vali.labels)
    features = torch.tensor(np.asarray(vali.features))
    relaxed: list[float] = []

    def record(_: dict[str, float]) -> None:
        device = next(network.parameters()).device
        network.eval()
        with torch.no_grad():
            scores = network(features.to(device)).cpu()
            relaxed.append(1 - float(loss(scores, labels, offsets=offsets)))
        network.train()

    done = fit(settings, train, vali, network=network, on_epoch=record)
    return relaxed, [line[settings.metric] for line in done.history]


def _replace_loss(settings: Settings, loss: str, **options: Any) -> Settings:
    """The same settings with another loss and options."""
    return Settings(**settings.model_dump() | {"loss": loss} | options)


def _evaluate(model: FittedRanker, lists: Dataset, specs: Sequence[str]) -> Mapping[str, float]:
    scores = model.predict(lists.features, lists.offsets)
    return EvaluatedLists.of(scores, lists, specs).mean


@_figure("pirank", 6, "gain in NDCG@k by training list size", _ANY_DATA)
def _pirank_6(inputs: Inputs) -> _Chart:
    sizes, cutoffs = (10, 20, 40, 100), (1, 3, 5, 10, 15)
    specs = [f"ndcg@{k}" for k in cutoffs]
    settings = _training(inputs, "pirank_table1", loss="pirank_ndcg@10(temperature=5)")
    tests = {size: cut(inputs.data["test"], size) for size in sizes}
    values = {}
    for trained in sizes:
        trained_settings = _replace_loss(settings, settings.loss, list_size=trained)
        model = fit(trained_settings, inputs.data["train"], inputs.data["vali"]).model
        for tested, lists in tests.items():
            found = _evaluate(model, lists, specs)
            values[trained, tested] = [found[spec] for spec in specs]
    series = [
        _Series(
            f"trained on {trained}",
            cutoffs,
            [
                100 * (one / base - 1) if base > 0 else 0.0
                for one, base in zip(values[trained, tested], values[10, tested], strict=True)
            ],
            panel=f"tested on {tested}",
        )
        for tested in sizes
        for trained in sizes[1:]
    ]
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
    lengths = (125, 1000) if inputs.quick else (125, 1000, 2197, 3375)
    steps = 2 if inputs.quick else 10
    timed_losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "d = 1, eq. 12 as written (n × n)": _as_written,
        "d = 1": losses.get("pirank_ndcg@1(temperature=5)"),
        "d = 3": losses.get("pirank_ndcg@1(temperature=5, depth=3)"),
    }
    series = []
    for name, loss in timed_losses.items():
        seconds = [_timed(loss, length, steps) for length in lengths]
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
            "lists as long as cubes.",
            "Depth 1 costs O(n log n) here, as the row sums of NeuralSort need no n × n matrix; "
            "the first line is the formula as the paper writes it, which is what its depth 3 is "
            "compared with.",
        ),
    )


def _as_written(scores: Tensor, labels: Tensor) -> Tensor:
    """PiRank's NDCG@1 loss by the n × n matrix of eq. 12."""
    length = scores.shape[-1]
    sums = (scores[..., :, None] - scores[..., None, :]).abs().sum(-1)
    top = (((length - 1) * scores - sums) / 5).softmax(-1)
    gains = 2**labels - 1
    return (1 - (top * gains).sum(-1) / gains.max(-1).values).mean()


def _timed(loss: Callable[[Tensor, Tensor], Tensor], length: int, steps: int) -> float:
    generator = torch.Generator().manual_seed(0)
    network = models.get("mlp(hidden=[256, 128, 64])").build(25)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5)
    features = torch.randn(16, length, 25, generator=generator)
    labels = torch.randint(0, 5, (16, length), generator=generator).float()
    began = time.perf_counter()
    for step in range(steps + 1):
        if step == 1:  # the first one is to warm up
            began = time.perf_counter()
        optimizer.zero_grad()
        loss(network(features), labels).backward()
        optimizer.step()
    return 100 * (time.perf_counter() - began) / steps


# ---------------------------------------------------------------- LambdaLoss@K


@_figure("lambdaloss_at_k", 1, "learning rates", _ANY_DATA)
def _lambdaloss_1(inputs: Inputs) -> _Chart:
    rates = (0.01, 0.1, 1.0, 10.0)
    rows = {
        "Softmax": "softmax",
        "Gumbel": "gumbel_approx_ndcg(samples=8)",
        "LambdaLoss": "lambdaloss",
        "LambdaLoss@5": "lambdaloss@5",
    }
    settings = _training(inputs, "lambdaloss_at_k_table1")
    test, series = inputs.data["test"], []
    for name, loss in rows.items():
        values = []
        for rate in rates:
            rate_settings = _replace_loss(settings, loss, learning_rate=rate)
            try:
                model = fit(rate_settings, inputs.data["train"], inputs.data["vali"]).model
            except ValueError:  # training that diverged
                values.append(float("nan"))
                continue
            values.append(100 * _evaluate(model, test, ["ndcg@5"])["ndcg@5"])
        series.append(_Series(name, rates, values))
    return _Chart(
        tuple(series),
        "learning rate",
        "test NDCG@5 × 100",
        log_x=True,
        notes=(
            *_provenance(inputs, settings),
            "The paper does not name its four methods; these are the best baselines and both "
            "forms of LambdaLoss.",
        ),
    )
