"""TextRun: the run folder of a text ranker, laid out as those of other rankers.

::

    settings.toml     everything the run depends on besides its data
    run.json          versions, checksums of the data, the command, what the run is
    metrics.jsonl     one line per epoch
    best/             the ranker of the best epoch, a Hugging Face folder
    last/             the newest weights with all that training goes on from
    interpolation.json    the weight of the first stage, where there is one
    evaluations/      what the best epoch scored on parts of the data
    test.run, vali.run    the same as TREC runs

Every write is atomic, so the process may be killed at any moment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad.data.trec import write_run
from rankgrad.text._candidates import Candidates
from rankgrad.text._ranker import MANIFEST, TextRanker
from rankgrad.text._text_settings import TextSettings
from rankgrad.training import run as folders
from rankgrad.training._evaluations import EVALUATIONS, EvaluatedLists
from rankgrad.training._optimizers import load_state_tensors, state_tensors
from rankgrad.training.run import EpochState

INTERPOLATION = "interpolation.json"
_WEIGHTS, _OPTIMIZER = "model.safetensors", "optimizer.safetensors"
_CONVENTIONS = (
    "relevant documents that were not retrieved count",
    "queries without candidates or relevant documents count 0",
    "equal scores: by document id, descending",
)
_PACKAGES = ("rankgrad", "torch", "numpy", "transformers", "safetensors")


class _Interpolation(TypedDict):
    """What ``interpolation.json`` holds."""

    weight: float


class TextRun(folders.TrainingFolder[TextSettings]):
    """A run folder on disk, where training saves each epoch and finds it again."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        settings: TextSettings,
        data: Mapping[str, Candidates],
        labels: Mapping[str, Any] | None = None,
    ) -> TextRun:
        """A new run folder.

        Args:
            path: where nothing is yet.
            settings: of the run.
            data: candidates by their part: train, vali, test.
            labels: what the run is in an experiment: its candidate, loss, model, fold and seed.

        Raises:
            FileExistsError: something is there already.
        """
        folders.RunFolder.write_new(Path(path), settings, lambda: metadata(data, labels))
        return cls(Path(path), settings)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TextRun:
        """A run folder that is there.

        Raises:
            FileNotFoundError: it is not there, or not a run folder.
            ValueError: its settings are not those of a text ranker.
        """
        path = Path(path)
        if not is_text_run(path):
            what = "is not the run folder of a text ranker" if path.exists() else "is not there"
            raise FileNotFoundError(f"{path} {what}")
        return cls(path, folders.parse_settings(path, TextSettings))

    def check(self, settings: TextSettings, data: Mapping[str, Candidates]) -> None:
        """An error that says what differs, if these are not the settings and data of this run."""
        folders.refuse_differences(self.path, settings.differences(self.settings))
        then = _schemas.read_json(self.path / folders.RUN, folders.RunMetadata)["data"]
        for name, candidates in data.items():
            if then.get(name) != _data(candidates):
                raise ValueError(f"the {name} data are not those {self.path} was started with")

    def restore(
        self, ranker: TextRanker, optimizer: torch.optim.Optimizer
    ) -> tuple[EpochState, dict[str, Tensor]]:
        """Load the last saved epoch into ranker and optimizer, if there is one.

        Returns:
            The state of training, and the weights of the best epoch.
        """
        self.recover()
        last = self.path / folders.LAST
        if not last.exists():
            _files.write(self.path / folders.METRICS, "")
            return EpochState(), {}
        saved = _files.read_json(last / folders.STATE)
        state = folders.read_state(EpochState, saved, last / folders.STATE)
        if state.epoch != len(state.history):
            raise _files.damaged(last / folders.STATE, "epoch and history differ")
        ranker.load_state_dict(_files.read_tensors(last / _WEIGHTS, saved))
        load_state_tensors(optimizer, _files.read_tensors(last / _OPTIMIZER, saved))
        self._log(state)
        best = self.best().state_dict()
        return state, {name: value.to(ranker.device) for name, value in best.items()}

    def save(
        self,
        ranker: TextRanker,
        optimizer: torch.optim.Optimizer,
        state: EpochState,
        *,
        improved: bool,
    ) -> None:
        """Save a finished epoch; ``last/`` is written last and records which epoch is complete."""
        if improved:
            ranker.save(self.path / folders.BEST)
        self._log(state)
        with _files.atomic_folder(self.path / folders.LAST) as unfinished:
            _files.write_tensors(unfinished / _WEIGHTS, ranker.state_dict())
            _files.write_tensors(unfinished / _OPTIMIZER, state_tensors(optimizer))
            _files.write_json(unfinished / folders.STATE, asdict(state), [_WEIGHTS, _OPTIMIZER])

    def _log(self, state: EpochState) -> None:
        lines = "".join(map(folders.history_line, state.history))
        _files.write(self.path / folders.METRICS, lines)

    def best(self) -> TextRanker:
        """The ranker of the best epoch so far."""
        folder = self.path / folders.BEST
        if not _files.readable_path(folder).is_dir():
            raise FileNotFoundError(f"{self.path} has no ranker: training has finished no epoch")
        return _files.read_folder(folder, MANIFEST, TextRanker.from_pretrained)

    @property
    def weight(self) -> float | None:
        """The weight of the first stage, or None without interpolation."""
        path = self.path / INTERPOLATION
        return float(_schemas.read_json(path, _Interpolation)["weight"]) if path.exists() else None

    def clear_weight(self) -> None:
        """Remove the weight that an unfinished run with interpolation saved."""
        (self.path / INTERPOLATION).unlink(missing_ok=True)
        (self.path / "test-alone.run").unlink(missing_ok=True)
        shutil.rmtree(self.path / EVALUATIONS / "test-alone", ignore_errors=True)

    def save_weight(self, weight: float) -> None:
        """Save the weight of the first stage that validation chose."""
        metadata = {"weight": weight, "metric": self.settings.metric}
        _files.write_json(self.path / INTERPOLATION, metadata)


def is_text_run(path: Path) -> bool:
    """Whether a folder is the run folder of a text ranker."""
    metadata = path / folders.RUN
    return (
        metadata.is_file() and _schemas.read_json(metadata, dict[str, Any]).get("ranker") == "text"
    )


def metadata(
    data: Mapping[str, Candidates], labels: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What ``run.json`` says of a run on these data."""
    return folders.run_metadata({}, packages=_PACKAGES) | {
        "ranker": "text",
        "data": {name: _data(candidates) for name, candidates in data.items()},
        "labels": dict(labels or {}),
    }


def save_evaluation(
    path: Path,
    part: str,
    candidates: Candidates,
    scores: NDArray[Any],
    metrics: tuple[str, ...],
    labels: Mapping[str, Any],
) -> None:
    """Write what a run scored on a part of the data, as an evaluation and as a TREC run."""
    evaluation = candidates.evaluate(scores, metrics).values
    EvaluatedLists.of_evaluation(evaluation, scores, candidates, labels, _CONVENTIONS).save(
        path, part
    )
    tag = str(labels.get("candidate", "rankgrad")).replace(" ", "")
    write_run(path / f"{part}.run", candidates.run(scores), tag=tag, overwrite=True)


def _data(candidates: Candidates) -> dict[str, Any]:
    return {
        "lists": len(candidates),
        "items": len(candidates.docids),
        "checksum": candidates.checksum(),
    }
