"""``rankgrad export``: writes a trained ranker in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rankgrad.cli._arguments import Fold, Run, load
from rankgrad.cli._printing import show_json, show_notes
from rankgrad.cli.predict import load_ranker


def export(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o")],
    format: Literal["onnx", "solr", "xgboost-json", "linear", "torch"] | None = None,
    data: Path | None = None,
    split: str | None = None,
    fold: Fold = None,
    name: str = "rankgrad",
    non_negative: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Write a trained ranker for another program: ONNX, or the format of a search engine.

    The file takes raw features: transforms are part of it. It is written only if it gives the same
    scores as the ranker, to 1e-5. A ranker that a format cannot express is refused; `rankgrad
    distill` trains a student that can be exported.

    Options:
        output: The file to write.
        format: onnx: for Vespa, Triton and onnxruntime. solr: for Solr's model store. xgboost-json
            and linear: for the LTR plugins of OpenSearch and Elasticsearch. torch: a program of
            torch.export. [default: by the file's name: .onnx, .pt2]
        data: Data to compare scores on. [default: made of what the ranker has learned]
        name: The name of the model, for Solr.
        non_negative: xgboost-json: add a constant to all scores so that none is below 0; Lucene,
            which engines are built on, refuses negative scores.

    \b
    Examples:
      rankgrad export runs/first -o model.onnx
      rankgrad export runs/first -o model.onnx --data MQ2008 --fold 1
      rankgrad export runs/mlp --format solr --name my_ranker -o model.json
      rankgrad export runs/trees --format xgboost-json --non-negative -o trees.json
      rankgrad export runs/first -o model.pt2
    """  # noqa: D301
    from rankgrad.data._dataset import names_of_features
    from rankgrad.export import engine_notes
    from rankgrad.export import export as write
    from rankgrad.export._exporting import format_of

    if data is None and (split is not None or fold is not None):
        raise ValueError("--split and --fold are of the data to compare on: give --data")
    ranker = load_ranker(run)
    difference = write(
        ranker,
        output,
        format,
        data=None if data is None else load(data, split, fold, ranker, labeled=False),
        name=name,
        non_negative=non_negative,
        overwrite=overwrite,
    )
    names = names_of_features(ranker)
    file_format = format_of(output, format)
    notes = engine_notes(ranker, file_format)
    if json:
        show_json(
            {
                "file": str(output),
                "format": file_format,
                "model": ranker.settings.model,
                "per_item": ranker.per_item,
                "feature_names": names,
                "largest_difference": difference,
                "notes": notes,
            }
        )
        return
    listed = ", ".join(names[:3]) + (f", ... {names[-1]}" if len(names) > 3 else "")
    print(f"{output}: {file_format} of {ranker.settings.model}")
    print(f"{len(names)} raw features in the order of training: {listed}")
    plus = " plus a constant" if non_negative or format == "linear" else ""
    print(f"its scores are those of {run}{plus}, to {difference:.1e}")
    show_notes(notes)
