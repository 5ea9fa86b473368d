"""The evaluation of a ranker on a data set, list by list, saved in its run folder.

::

    evaluations/NAME/             NAME is the part of the data, such as test
        evaluation.json           metrics, means, conventions, labels of the run, data checksum
        values.npy    [B, M]      the metrics of each list; NaN where one leaves the list out
        qids.npy      [B]
        offsets.npy   [B + 1]
        labels.npy    [N]
        scores.npy    [N]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from rankgrad import files, schemas
from rankgrad.data.dataset import Dataset
from rankgrad.metrics import evaluate
from rankgrad.quoting import quote

EVALUATIONS, METADATA = "evaluations", "evaluation.json"
_FORMAT, _VERSION = "rankgrad evaluation", 1
#: The kind of type and the number of dimensions of each array.
_KINDS = {
    "values": ("f", 2), "qids": ("U", 1), "offsets": ("i", 1), "labels": ("f", 1),
    "scores": ("f", 1),
}  # fmt: skip


class _Metadata(TypedDict):
    """What ``evaluation.json`` holds beside its format."""

    metrics: list[str]
    mean: dict[str, float | None]
    conventions: list[str]
    checksum: str
    labels: dict[str, schemas.Scalar]


@dataclass(frozen=True)
class Evaluated:
    """The values of some metrics on every list of a data set, with the scores they come from.

    ``labels_of_run`` says what the run is in an experiment: its loss, model, fold and seed.
    ``checksum`` is the data's, so that runs on other data are recognized.
    """

    metrics: tuple[str, ...]
    mean: Mapping[str, float]
    values: NDArray[np.float64]
    qids: NDArray[Any]
    offsets: NDArray[np.int64]
    labels: NDArray[np.float32]
    scores: NDArray[np.float32]
    conventions: tuple[str, ...]
    checksum: str
    labels_of_run: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        scores: Any,
        data: Dataset,
        metrics: Iterable[str],
        labels_of_run: Mapping[str, Any] | None = None,
    ) -> Evaluated:
        """Evaluate scores of the items of a data set.

        >>> lists = Dataset(np.eye(2), [1, 0], [0, 2], ["a"])
        >>> Evaluated.of([0.1, 0.2], lists, ["rr"]).mean
        {'rr': 0.5}
        """
        array = np.asarray(scores, np.float32)
        found = evaluate(
            array,
            np.array(data.labels),
            offsets=np.array(data.offsets),
            weights=None if data.weights is None else np.array(data.weights),
            metrics=list(metrics),
        )
        names = tuple(str(metric) for metric in found.metrics)
        columns = [found.per_list[name].double().numpy() for name in names]
        return cls(
            metrics=names,
            mean=dict(found.mean),
            values=np.stack(columns, 1),
            qids=np.array(data.qids),
            offsets=np.array(data.offsets, np.int64),
            labels=np.array(data.labels, np.float32),
            scores=array,
            conventions=found.conventions,
            checksum=data.checksum(),
            labels_of_run=dict(labels_of_run or {}),
        )

    def save(self, run: str | os.PathLike[str], name: str = "test") -> None:
        """Write it into a run folder, in place of an evaluation of the same name."""
        metadata = {
            "format": _FORMAT,
            "version": _VERSION,
            "metrics": self.metrics,
            "mean": {k: None if np.isnan(v) else v for k, v in self.mean.items()},
            "conventions": self.conventions,
            "checksum": self.checksum,
            "labels": dict(self.labels_of_run),
        }
        arrays = {array: getattr(self, array) for array in _KINDS}
        schemas.write_arrays(Path(run) / EVALUATIONS / name, METADATA, metadata, arrays)

    @classmethod
    def load(cls, run: str | os.PathLike[str], name: str = "test") -> Evaluated:
        """Read what :meth:`save` wrote."""
        place = Path(run) / EVALUATIONS / name
        if not files.readable_path(place).is_dir():
            raise FileNotFoundError(f"{run} has no evaluation {name!r}")
        return files.read_folder(place, METADATA, cls._load)

    @classmethod
    def _load(cls, place: Path) -> Evaluated:
        metadata = schemas.read_json(place / METADATA, dict[str, Any])
        if metadata.get("format") != _FORMAT:
            raise ValueError(files.damaged(place / METADATA, "it is no evaluation"))
        if metadata.get("version") != _VERSION:
            raise ValueError(
                f"{place} was written by another version of rankgrad (format "
                f"{quote(metadata.get('version'))}, this one reads {_VERSION}): evaluate the run "
                "again"
            )
        schemas.check(place / METADATA, metadata, _Metadata)
        arrays = {
            array: schemas.read_array(place / f"{array}.npy", metadata, *kind)
            for array, kind in _KINDS.items()
        }
        lists, metrics = arrays["values"].shape
        if len(arrays["qids"]) != lists or len(arrays["offsets"]) != lists + 1:
            raise ValueError(files.damaged(place, "its arrays are of unequal lengths"))
        items, ends = len(arrays["labels"]), arrays["offsets"]
        if metrics != len(metadata["metrics"]) or len(arrays["scores"]) != items:
            raise ValueError(files.damaged(place, "its arrays are of unequal lengths"))
        if set(metadata["mean"]) != set(metadata["metrics"]):
            raise ValueError(files.damaged(place / METADATA, "it has means of other metrics"))
        if ends[0] != 0 or ends[-1] != items or (ends[1:] < ends[:-1]).any():
            raise ValueError(files.damaged(place / "offsets.npy", "it is not of these lists"))
        return cls(
            metrics=tuple(metadata["metrics"]),
            mean={k: float("nan") if v is None else v for k, v in metadata["mean"].items()},
            conventions=tuple(metadata["conventions"]),
            checksum=metadata["checksum"],
            labels_of_run=metadata["labels"],
            **arrays,
        )

    def of_metric(self, metric: str) -> NDArray[np.float64]:
        """The values of one metric, list by list."""
        if metric not in self.metrics:
            raise KeyError(f"{metric!r} was not evaluated; there are: {', '.join(self.metrics)}")
        return self.values[:, self.metrics.index(metric)]


def names(run: str | os.PathLike[str]) -> list[str]:
    """The evaluations that a run folder has."""
    folder = Path(run) / EVALUATIONS
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
