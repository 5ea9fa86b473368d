"""export: write a ranker in another format, after a check that the file gives the same scores.

``rankgrad export`` calls it.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from rankgrad import _files
from rankgrad._validation import check_choice
from rankgrad.data._dataset import Dataset, names_of_features
from rankgrad.export._engines import ZERO_FILL, to_linear, to_solr, to_xgboost_json
from rankgrad.export._onnx_format import onnx_scores, to_onnx
from rankgrad.export._program import to_program
from rankgrad.export._readers import Predict, read_linear, read_solr, read_xgboost_json
from rankgrad.export._samples import sample_of, sample_without_data
from rankgrad.training import FittedRanker

Format = Literal["onnx", "solr", "xgboost-json", "linear", "torch"]
FORMATS: tuple[Format, ...] = get_args(Format)
TOLERANCE = 1e-5  # absolute for scores up to 1, relative for larger ones

_SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt2": "torch"}


def export(
    ranker: FittedRanker,
    path: str | os.PathLike[str],
    format: Format | None = None,
    *,
    data: Dataset | None = None,
    name: str = "rankgrad",
    non_negative: bool = False,
    overwrite: bool = False,
) -> float:
    """Write a ranker for another program to run.

    Before the file is written, its content scores some lists: in onnxruntime, in PyTorch, or in a
    reader of the engine's format. If the scores differ from the ranker's, nothing is written.

    Args:
        ranker: ``RunFolder.open(path).best()`` of a run folder, or ``model_`` of a ``Ranker``.
        path: the file.
        format: ``onnx``; ``solr``; ``xgboost-json`` and ``linear`` for the LTR plugins of
            OpenSearch and Elasticsearch; ``torch`` for a program of ``torch.export``. By default
            recognized by the file's name: ``.onnx`` or ``.pt2``.
        data: lists to compare scores on; by default random ones around the values that transforms
            or trees have learned.
        name: the name of the model in Solr.
        non_negative: with ``xgboost-json``, add a constant so that no score is below 0.
        overwrite: replace a file that exists.

    Returns:
        The largest difference between the file's scores and the ranker's: absolute for scores up
        to 1, relative for larger ones.

    Raises:
        ValueError: the format cannot express the ranker, or the scores differ.
        FileExistsError: the file exists.
        ImportError: a package is missing; the message has the install line.

    >>> import tempfile
    >>> from rankgrad.training import Settings
    >>> features = np.random.default_rng(0).random((6, 2), dtype=np.float32)
    >>> ranker = FittedRanker.new(Settings(model="mlp(hidden=[])", transforms=[]), features)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(ranker, f"{folder}/model.json", "linear") < 1e-4
    True
    """
    file = Path(path)
    format = format_of(file, format)
    if not overwrite and file.exists() and not _files.is_written_in_place(file):
        raise FileExistsError(
            f"{file} exists: name another file, or replace it with --overwrite (overwrite=True)"
        )
    if non_negative and format != "xgboost-json":
        raise ValueError(
            "--non-negative (non_negative=True) adds a constant to the scores of trees in the "
            f"format xgboost-json; the format {format} has no such option: leave it out"
        )
    content = _file_content(ranker, format, name, non_negative)
    features, mask = sample_without_data(ranker) if data is None else sample_of(data)
    offsets = np.concatenate([[0], np.cumsum(mask.sum(1))])
    expected = ranker.predict(features[mask], offsets)  # raises if the data have other features
    scores = _scores_of_file(content, format, ranker, features, mask)
    shifted = format == "linear" or non_negative  # scores are the ranker's plus a constant
    difference = _check_scores(scores[mask], expected, features[mask], shifted)
    lowest = float(scores[mask].min(initial=0.0))
    if non_negative and lowest < 0:
        raise ValueError(f"the exported ranker scores {lowest:.7g}, below 0: nothing was written")
    _files.write(file, content)
    return difference


def format_of(path: Path, format: Format | None) -> Format:
    """``format`` if it is given, else the format by the name of a file."""
    if format is not None:
        check_choice("format", format, FORMATS)
        return format
    format = _SUFFIXES.get(path.suffix)
    if format is None:
        raise ValueError(
            f"the name {path.name} does not say the format: give one of {', '.join(FORMATS)}, or a "
            "name that ends in .onnx or .pt2"
        )
    return format


def _file_content(ranker: FittedRanker, format: Format, name: str, non_negative: bool) -> bytes:
    """The content of the file; arguments as in :func:`export`."""
    if format == "onnx":
        return to_onnx(ranker)
    if format == "torch":
        return to_program(ranker)
    if format == "solr":
        return to_solr(ranker, name).encode()
    text = to_linear(ranker) if format == "linear" else to_xgboost_json(ranker, non_negative)
    return text.encode()


def _check_scores(
    scores: np.ndarray, expected: np.ndarray, features: np.ndarray, shifted: bool
) -> float:
    """The largest difference of scores, as :func:`export` returns it; raise if above TOLERANCE.

    Args:
        scores: the scores of the file, ``[N]``.
        expected: the scores of the ranker, ``[N]``.
        features: the features of the items, ``[N, n_features]``.
        shifted: whether the file's scores may be the ranker's plus one constant.
    """
    expected, exported = expected.astype(np.float64), scores.astype(np.float64)
    if shifted:
        exported = exported - (exported - expected).mean()
    # The file's scores are rounded with their constant, so the scale includes it.
    scale = np.maximum(1, np.maximum(np.abs(expected), np.abs(scores)))
    with np.errstate(invalid="ignore"):  # infinite scores give NaN
        differences = np.abs(exported - expected) / scale
    is_wrong = ~(differences <= TOLERANCE)  # also where a difference is NaN
    if is_wrong.any():
        worst = int(np.argmax(np.nan_to_num(differences, nan=np.inf)))
        cause = _MISSING_CAUSE if np.isnan(features).any(1)[is_wrong].all() else _SCALE_CAUSE
        raise ValueError(
            f"the exported ranker scores {exported[worst]:.7g} where this one scores "
            f"{expected[worst]:.7g}, so nothing was written: {cause}"
        )
    return float(differences.max(initial=0.0))


# Probable causes of a difference, for the error of _check_scores
_SCALE_CAUSE = (
    "the features may be of a scale that float32 has no digits for, such as times in milliseconds"
)
_MISSING_CAUSE = (
    "these items have missing values, for which engines send 0, and the ranker was not trained "
    f"so. Train with --transform '{ZERO_FILL}', or write 0 into the data"
)


_JSON_READERS: dict[Format, Callable[[Any, dict[str, int]], Predict]] = {
    "solr": read_solr,
    "xgboost-json": read_xgboost_json,
    "linear": read_linear,
}


def _scores_of_file(
    content: bytes, format: Format, ranker: FittedRanker, features: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """The scores ``[lists, items]`` that the content of a file gives to padded lists.

    Args:
        content: the content of the file.
        format: the format of the file.
        ranker: the ranker, for the names of its features.
        features: ``[lists, items, n_features]``.
        mask: ``[lists, items]``.
    """
    if format == "onnx":
        return onnx_scores(content, features, mask)
    if format == "torch":
        module = torch.export.load(io.BytesIO(content)).module()
        with torch.no_grad():
            scores: np.ndarray = module(torch.from_numpy(features), torch.from_numpy(mask)).numpy()
        return scores
    columns = {name: column for column, name in enumerate(names_of_features(ranker))}
    padded = np.zeros(mask.shape)
    predict = _JSON_READERS[format](json.loads(content), columns)
    padded[mask] = predict(features[mask])
    return padded
