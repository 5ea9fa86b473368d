"""``rankgrad evaluate``: exact metrics of a trained ranker, or of scores from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankgrad.cli.arguments import Data, Device, Fold, Json, Metrics, Split, check_stdin, load
from rankgrad.cli.predict import score
from rankgrad.cli.printing import show_json, show_notes, show_table

if TYPE_CHECKING:
    from rankgrad.data import Dataset
    from rankgrad.experiments.significance import Interval
    from rankgrad.metrics import Evaluation, Metric

Ranker = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|SCORES",
        help="A run folder of `rankgrad train`, or a file of scores: one a line, Parquet with a "
        "column 'score', or a TREC run; - is the standard input.",
        show_default=False,
    ),
]


def evaluate(
    ranker: Ranker,
    data: Data,
    split: Split = None,
    fold: Fold = None,
    metric: Metrics = None,
    device: Device = "auto",
    per_list: Annotated[
        bool, typer.Option("--per-list", help="With --json, also the values of each list.")
    ] = False,
    save: Annotated[
        bool,
        typer.Option(
            "--save",
            help="Also keep the values of each list in the run folder for `rankgrad report`, under "
            "the name of the split (test, for a file); what is there by that name is replaced.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Evaluate a trained ranker, or scores from anywhere, with exact metrics.

    \b
    Examples:
      rankgrad evaluate runs/neural MSLR-WEB30K --fold 1
      rankgrad evaluate runs/neural test.txt -m ndcg@10 -m 'ndcg@10(empty=1)'
      rankgrad evaluate lightgbm-scores.txt test.txt
      rankgrad evaluate bm25.run test.parquet --json
      zcat test.txt.gz | rankgrad evaluate scores.txt -
      rankgrad evaluate runs/neural MSLR-WEB30K --fold 1 --save
    """  # noqa: D301
    import numpy as np

    import rankgrad.metrics
    from rankgrad.data import scores as files
    from rankgrad.metrics.evaluate import DEFAULT

    check_stdin(ranker, data)
    if save and not (ranker / "run.json").is_file():
        raise ValueError(f"{ranker} is not a run folder: --save has nowhere to keep the values")
    metrics = [rankgrad.metrics.metrics.get(spec) for spec in metric or DEFAULT]
    if ranker.is_dir():
        dataset, scores = score(ranker, data, split, fold, device)
    else:
        dataset = load(data, split, fold)
        scores = files.read(ranker, dataset)
    result = rankgrad.metrics.evaluate(
        scores,
        np.array(dataset.labels),  # a store's arrays are read-only, which PyTorch warns of
        offsets=np.array(dataset.offsets),
        weights=None if dataset.weights is None else np.array(dataset.weights),
        metrics=metrics,
    )
    if save:
        _save(ranker, scores, dataset, metrics, split, fold)
    weighted = dataset.weights is not None
    if json:
        show_json(_facts(result, weighted, dataset.qids.tolist() if per_list else None))
    else:
        _show(result, weighted, title=f"{ranker} on {data}")
    show_notes(dataset.notes)


def _save(
    run: Path,
    scores: Any,
    data: Dataset,
    metrics: list[Metric],
    split: str | None,
    fold: int | None,
) -> None:
    from rankgrad.data import layout
    from rankgrad.training import RunFolder
    from rankgrad.training.evaluations import Evaluated

    settings = RunFolder.open(run).settings
    labels = {"loss": settings.loss, "model": settings.model, "seed": settings.seed}
    found = Evaluated.of(
        scores, data, map(str, metrics), labels if fold is None else {**labels, "fold": fold}
    )
    found.save(run, layout.split_name(split or "test"))


def _intervals(result: Evaluation) -> dict[str, Interval]:
    from rankgrad.experiments.significance import bootstrap_interval

    return {name: bootstrap_interval(values) for name, values in result.per_list.items()}


def _facts(result: Evaluation, weighted: bool, qids: list[str] | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "lists": result.lists,
        "mean": dict(result.mean),
        "interval95": _intervals(result),
        "without_relevant": dict(result.without_relevant),
        "conventions": {
            str(metric): {
                name: getattr(metric, name)
                for name in ("empty", "ties", "gain")
                if hasattr(metric, name)
            }
            for metric in result.metrics
        },
        "item_weights": weighted,
    }
    if qids is not None:
        values = {name: values.tolist() for name, values in result.per_list.items()}
        facts["per_list"] = {"qid": qids, **values}
    return facts


def _show(result: Evaluation, weighted: bool, title: str) -> None:
    rows = [
        (name, f"{result.mean[name]:.4f}", f"{low:.4f} to {high:.4f}")
        for name, (low, high) in _intervals(result).items()
    ]
    columns = ("metric", "mean", "95% interval")
    conventions = str(result).splitlines()[len(result.metrics) :]
    if weighted:
        conventions.append("items count by their weights in the data")
    show_table(columns, rows, title=title, under=conventions)
