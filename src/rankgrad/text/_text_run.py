"""TextRun: the run folder of a text ranker, with the layout of other rankers' run folders.

``rankgrad.text._training`` saves each epoch in it and resumes from it. ``rankgrad.experiments``
adds evaluations, and ``rankgrad.results`` reads them::

    settings.toml         everything the run depends on besides its data
    run.json              versions, checksums of the data, the command, labels of the run
    metrics.jsonl         one line per epoch
    best/                 the ranker of the best epoch, a Hugging Face folder
    last/                 the checkpoint that training resumes from
    interpolation.json    with interpolation, the weight of the first stage
    evaluations/NAME/     scores and metrics of the best epoch; NAME is vali, test or test-alone
    NAME.run              the same rankings as a TREC run

With interpolation, ``test-alone`` is the ranking of the test lists without the first stage.

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
from rankgrad.text._text_ranker import MANIFEST, TextRanker
from rankgrad.text._text_settings import TextSettings
from rankgrad.training._evaluations import EVALUATIONS, EvaluatedLists
from rankgrad.training._optimizers import load_state_tensors, state_tensors
from rankgrad.training.run import (
    BEST,
    LAST,
    RUN,
    STATE,
    EpochState,
    RunFolder,
    RunMetadata,
    TrainingFolder,
    parse_settings,
    read_state,
    refuse_differences,
    run_metadata,
)

INTERPOLATION = "interpolation.json"
_WEIGHTS, _OPTIMIZER = "model.safetensors", "optimizer.safetensors"
#: The conventions of the metrics, which evaluations record and reports show.
_CONVENTIONS = (
    "relevant documents that were not retrieved count",
    "queries without candidates count 0; those without relevant documents as a metric's option "
    "empty says, by default 0",
    "equal scores: by document id, descending",
)
_PACKAGES = ("rankgrad", "torch", "numpy", "transformers", "safetensors")


class _Interpolation(TypedDict):
    """The key of ``interpolation.json`` that is read."""

    weight: float


class TextRun(TrainingFolder[TextSettings]):
    """A run folder; :meth:`create` makes a new one, :meth:`open` opens an existing one."""

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
            data: the candidates of each part of the data: train, vali and test.
            labels: what the run is in an experiment: its loss, model, fold and seed, and as
                ``candidate`` the name of its entry in the comparison.

        Raises:
            FileExistsError: the path exists.
        """
        RunFolder.write_new(Path(path), settings, lambda: metadata(data, labels))
        return cls(Path(path), settings)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TextRun:
        """Open a run folder that exists.

        Raises:
            FileNotFoundError: the path does not exist, or is not the run folder of a text ranker.
            ValueError: the settings are not those of a text ranker, or a file is damaged.
        """
        path = Path(path)
        if not is_text_run(path):
            problem = "is not the run folder of a text ranker" if path.exists() else "is not there"
            raise FileNotFoundError(f"{path} {problem}")
        return cls(path, parse_settings(path, TextSettings))

    def check(self, settings: TextSettings, data: Mapping[str, Candidates]) -> None:
        """Raise ``ValueError``, naming the difference, if settings or data are not this run's."""
        refuse_differences(self.path, settings.differences(self.settings))
        saved_data = _schemas.read_json(self.path / RUN, RunMetadata)["data"]
        for name, candidates in data.items():
            if saved_data.get(name) != _data_metadata(candidates):
                raise ValueError(f"the {name} data are not those {self.path} was started with")

    def restore(
        self, ranker: TextRanker, optimizer: torch.optim.Optimizer
    ) -> tuple[EpochState, dict[str, Tensor]]:
        """Load the checkpoint, if there is one, into ranker and optimizer. Needs the lock.

        ``metrics.jsonl`` is cut back to the checkpoint.

        Returns:
            The state of training, and the weights of the best epoch by parameter name, on the
            ranker's device; a new state and no weights if no epoch was saved.

        Raises:
            ValueError: a file is damaged.
        """
        last, saved = self.path / LAST, self.saved_state()
        if saved is None:
            return EpochState(), {}
        state = read_state(EpochState, saved, last / STATE)
        if state.epoch != len(state.history):
            raise _files.damaged(last / STATE, "epoch and history differ")
        ranker.load_state_dict(_files.read_tensors(last / _WEIGHTS, saved))
        load_state_tensors(optimizer, _files.read_tensors(last / _OPTIMIZER, saved))
        self.write_history(state.history)
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
        """Save a finished epoch; if it ``improved`` on all earlier ones, its ranker as the best.

        ``last/`` is written last: if the process is killed before, the epoch is trained again.
        """
        if improved:
            ranker.save(self.path / BEST)
        self.write_history(state.history)
        with _files.atomic_folder(self.path / LAST) as unfinished:
            _files.write_tensors(unfinished / _WEIGHTS, ranker.state_dict())
            _files.write_tensors(unfinished / _OPTIMIZER, state_tensors(optimizer))
            _files.write_json(unfinished / STATE, asdict(state), [_WEIGHTS, _OPTIMIZER])

    def best(self) -> TextRanker:
        """The ranker of the best epoch so far; ``FileNotFoundError`` if no epoch is finished."""
        folder = self.path / BEST
        if not _files.readable_path(folder).is_dir():
            raise FileNotFoundError(f"{self.path} has no ranker: training has finished no epoch")
        return _files.read_folder(folder, MANIFEST, TextRanker.from_pretrained)

    @property
    def weight(self) -> float | None:
        """The weight of the first stage, from 0 to 1; None without interpolation."""
        path = self.path / INTERPOLATION
        return float(_schemas.read_json(path, _Interpolation)["weight"]) if path.exists() else None

    def clear_weight(self) -> None:
        """Remove the weight, and the evaluation without the first stage, of an unfinished run.

        The run may be resumed without interpolation.
        """
        (self.path / INTERPOLATION).unlink(missing_ok=True)
        (self.path / "test-alone.run").unlink(missing_ok=True)
        shutil.rmtree(self.path / EVALUATIONS / "test-alone", ignore_errors=True)

    def save_weight(self, weight: float) -> None:
        """Save the weight of the first stage, which was chosen by the validation metric."""
        contents = {"weight": weight, "metric": self.settings.metric}
        _files.write_json(self.path / INTERPOLATION, contents)


def is_text_run(path: Path) -> bool:
    """Whether a folder is the run folder of a text ranker."""
    file = path / RUN
    return file.is_file() and _schemas.read_json(file, dict[str, Any]).get("ranker") == "text"


def metadata(
    data: Mapping[str, Candidates], labels: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The contents of ``run.json``; the arguments are those of :meth:`TextRun.create`."""
    return run_metadata({}, packages=_PACKAGES) | {
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
    """Evaluate scores, and write them as an evaluation and as a TREC run.

    Args:
        path: the run folder.
        part: the name of the evaluation, such as ``"test"``.
        candidates: the lists.
        scores: the scores of their items, ``[N]``.
        metrics: specs of the metrics.
        labels: as in :meth:`TextRun.create`.
    """
    evaluation = candidates.evaluate(scores, metrics).values
    lists = EvaluatedLists.of_evaluation(evaluation, scores, candidates, labels, _CONVENTIONS)
    lists.save(path, part)
    tag = str(labels.get("candidate", "rankgrad")).replace(" ", "")
    write_run(path / f"{part}.run", candidates.run(scores), tag=tag, overwrite=True)


def _data_metadata(candidates: Candidates) -> dict[str, Any]:
    """The entry of a part of the data in ``run.json``."""
    return {
        "lists": len(candidates),
        "items": len(candidates.docids),
        "checksum": candidates.checksum(),
    }
