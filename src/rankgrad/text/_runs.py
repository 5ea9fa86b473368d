"""TextRun: the run folder of a text ranker, with the layout of other rankers' run folders.

``_training`` saves each epoch here and resumes from it. ``rankgrad.experiments`` adds evaluations,
and ``rankgrad.results`` reads them.

::

    settings.toml     everything the run depends on besides its data
    run.json          versions, checksums of the data, the command, the run's place in an experiment
    metrics.jsonl     one line per epoch
    best/             the ranker of the best epoch, a Hugging Face folder
    last/             the newest weights and everything else that training resumes from
    interpolation.json    the weight of the first stage, with interpolation
    evaluations/      scores and metrics of the best epoch, by part of the data
    test.run, vali.run    the rankings of the best epoch as TREC runs
    test-alone.run    with interpolation, the ranking of test lists without the first stage

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
    """The key of ``interpolation.json`` that is read."""

    weight: float


class TextRun(folders.TrainingFolder[TextSettings]):
    """A run folder on disk, where training saves each epoch and from which it resumes."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        settings: TextSettings,
        data: Mapping[str, Candidates],
        labels: Mapping[str, Any] | None = None,
    ) -> TextRun:
        """Make a new run folder.

        Args:
            path: a path that does not exist.
            settings: the settings of the run.
            data: candidates by part of the data: train, vali, test.
            labels: the run's place in an experiment: its entry (``candidate``), loss, model, fold
                and seed.

        Raises:
            FileExistsError: the path exists.
        """
        folders.RunFolder.write_new(Path(path), settings, lambda: metadata(data, labels))
        return cls(Path(path), settings)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TextRun:
        """Open a run folder that exists.

        Raises:
            FileNotFoundError: the path does not exist, or is not the run folder of a text ranker.
            ValueError: the settings are not those of a text ranker.
        """
        path = Path(path)
        if not is_text_run(path):
            problem = "is not the run folder of a text ranker" if path.exists() else "is not there"
            raise FileNotFoundError(f"{path} {problem}")
        return cls(path, folders.parse_settings(path, TextSettings))

    def check(self, settings: TextSettings, data: Mapping[str, Candidates]) -> None:
        """Raise an error that names the difference if settings or data differ from this run's."""
        folders.refuse_differences(self.path, settings.differences(self.settings))
        saved_data = _schemas.read_json(self.path / folders.RUN, folders.RunMetadata)["data"]
        for name, candidates in data.items():
            if saved_data.get(name) != _data_metadata(candidates):
                raise ValueError(f"the {name} data are not those {self.path} was started with")

    def restore(
        self, ranker: TextRanker, optimizer: torch.optim.Optimizer
    ) -> tuple[EpochState, dict[str, Tensor]]:
        """Load the last saved epoch, if there is one, into ranker and optimizer.

        Returns:
            The state of training and the weights of the best epoch by name; a new state and no
            weights if no epoch was saved.
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
        self._write_history(state)
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
        self._write_history(state)
        with _files.atomic_folder(self.path / folders.LAST) as unfinished:
            _files.write_tensors(unfinished / _WEIGHTS, ranker.state_dict())
            _files.write_tensors(unfinished / _OPTIMIZER, state_tensors(optimizer))
            _files.write_json(unfinished / folders.STATE, asdict(state), [_WEIGHTS, _OPTIMIZER])

    def _write_history(self, state: EpochState) -> None:
        """Write ``metrics.jsonl``."""
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
        """Remove what an unfinished run with interpolation saved.

        That is the weight, and the evaluation of the ranker without the first stage.
        """
        (self.path / INTERPOLATION).unlink(missing_ok=True)
        (self.path / "test-alone.run").unlink(missing_ok=True)
        shutil.rmtree(self.path / EVALUATIONS / "test-alone", ignore_errors=True)

    def save_weight(self, weight: float) -> None:
        """Save the weight of the first stage that validation chose."""
        contents = {"weight": weight, "metric": self.settings.metric}
        _files.write_json(self.path / INTERPOLATION, contents)


def is_text_run(path: Path) -> bool:
    """Whether a folder is the run folder of a text ranker."""
    file = path / folders.RUN
    return file.is_file() and _schemas.read_json(file, dict[str, Any]).get("ranker") == "text"


def metadata(
    data: Mapping[str, Candidates], labels: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The contents of ``run.json`` for a run on these data; ``labels`` as in ``TextRun.create``."""
    return folders.run_metadata({}, packages=_PACKAGES) | {
        "ranker": "text",
        "data": {name: _data_metadata(candidates) for name, candidates in data.items()},
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
    """Write the scores of a run on a part of the data, as an evaluation and as a TREC run.

    Args:
        path: the run folder.
        part: the name of the part, such as ``"test"``.
        candidates: the lists of the part.
        scores: the scores of the candidates, ``[N]``.
        metrics: specs of the metrics.
        labels: the run's place in an experiment.
    """
    evaluation = candidates.evaluate(scores, metrics).values
    lists = EvaluatedLists.of_evaluation(evaluation, scores, candidates, labels, _CONVENTIONS)
    lists.save(path, part)
    tag = str(labels.get("candidate", "rankgrad")).replace(" ", "")
    write_run(path / f"{part}.run", candidates.run(scores), tag=tag, overwrite=True)


def _data_metadata(candidates: Candidates) -> dict[str, Any]:
    """The entry of ``run.json`` for a part of the data."""
    return {
        "lists": len(candidates),
        "items": len(candidates.docids),
        "checksum": candidates.checksum(),
    }
