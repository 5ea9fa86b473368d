"""``rankgrad predict``: writes the scores of a trained ranker to a file.

Other commands load rankers with :func:`load_ranker` and :func:`open_ranker`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import rankgrad
from rankgrad.cli._arguments import Data, Fold, Run, load
from rankgrad.cli._printing import show_notes

__all__ = ["load_ranker", "open_ranker", "predict"]


def predict(
    run: Run,
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("-"),
    format: Literal["plain", "parquet", "trec"] | None = None,
    split: str | None = None,
    fold: Fold = None,
    tag: str = "rankgrad",
    device: str = "auto",
    overwrite: bool = False,
) -> None:
    """Score data with a trained ranker, from its best epoch.

    Plain scores are one per line, in the order of the rows of the data. The data need no labels: a
    LETOR row may begin with its qid. Documents are called by their ids, which LETOR files have in
    comments (#docid = X).

    Options:
        output: The file to write; - is the standard output.
        format: What to write. [default: by the file's name: .parquet, .run]
        tag: The name of the run in a TREC run file.

    \b
    Examples:
      rankgrad predict runs/neural test.txt -o scores.txt
      rankgrad predict runs/neural web30k --fold 1 -o scores.parquet
      rankgrad predict runs/neural test.txt --tag neural -o neural.run
    """  # noqa: D301
    from rankgrad.data import _scores

    dataset, model = open_ranker(run, data, split, fold, device, labeled=False, ids="auto")
    scores = model.predict(dataset.features, dataset.offsets)
    _scores.write(output, scores, dataset, format=format, tag=tag, overwrite=overwrite)
    show_notes(dataset.notes)
    if dataset.ids is None and (format or _scores.format_of(output)) != "plain":
        show_notes(["the data have no document ids: positions in the lists are written for them"])


def open_ranker(
    run: Path, data: Path, split: str | None, fold: int | None, device: str, **options: Any
) -> tuple[rankgrad.data.Dataset, rankgrad.training.FittedRanker]:
    """Load a trained ranker, and read data with its features; warn if most of them are absent.

    Further options are those of :func:`rankgrad.data.load`.
    """
    from rankgrad.data import _streams
    from rankgrad.data._dataset import FeaturesError
    from rankgrad.training._absent_features import describe_absent
    from rankgrad.training._processes import accelerator

    settings = rankgrad.training.Settings(device=device)  # type: ignore[arg-type]  # pydantic checks the value
    model = load_ranker(run).to(accelerator(settings))
    try:
        dataset = load(data, split, fold, model, **options)
    except FeaturesError as error:
        raise ValueError(
            f"the ranker in {run} was trained on {model.n_features} features, and {data} has "
            f"others: give it data with the same ones, or train one on data like these. {error}"
        ) from None
    absent = describe_absent(model, dataset)
    if absent is not None:
        warnings.warn(f"{_streams.display_name(data)}: {absent}", stacklevel=2)
    return dataset, model


def load_ranker(run: Path) -> rankgrad.training.FittedRanker:
    """Load the ranker of a run folder, of a saved model, or of a saved estimator."""
    from rankgrad.training.run import BEST

    if rankgrad.training.RunFolder.is_run(run):
        return rankgrad.training.RunFolder.open(run).best()
    best = run / BEST
    return rankgrad.training.FittedRanker.load(best if best.is_dir() else run)
