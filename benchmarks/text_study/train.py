"""One worker: it trains task after task, and scores validation and test lists."""

from __future__ import annotations

import base64
import copy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plan import FOLDS, LOSSES, Task
from prepare import load_candidates, load_tokens
from torch import Tensor, nn

from rankgrad.text._candidates import Candidates, folds
from rankgrad.text._text_ranker import TextRanker
from rankgrad.text._text_settings import TextSettings
from rankgrad.text._tokens import PairInputs
from rankgrad.text._training import TextData, fit


class Worker:
    """Trains one task after another on one device; data and weights are loaded once.

    Args:
        study: what ``prepare`` wrote.
        changes: of the settings of every run, for a trial.
        queries: only the first ones, for a trial.
    """

    def __init__(self, study: Path, changes: Mapping[str, Any], queries: int | None) -> None:
        self.study, self.changes, self.queries = study, dict(changes), queries
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._data: dict[str, tuple[Candidates, PairInputs]] = {}
        self._rankers: dict[Any, TextRanker] = {}
        if self.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True

    def perform(self, task: Task) -> dict[str, Any]:
        """Train, and score validation and test lists with the best epoch."""
        began = time.perf_counter()
        settings = task.settings(str(self.study / "model"), self.changes)
        candidates, inputs = self._loaded(task.collection)
        split = folds(len(candidates), FOLDS)[task.fold - 1]
        ranker = self._ranker(settings)
        try:
            done = fit(
                ranker,
                TextData(candidates, inputs, split.train, split.vali),
                settings,
                loss=None if LOSSES[task.loss] else SentenceTransformersLambda(),
            )
        except ValueError as error:
            if "diverged" not in str(error):
                raise
            return {"diverged": str(error), "seconds": round(time.perf_counter() - began, 2)}
        scores = {
            part: ranker.score(
                inputs,
                candidates.items(getattr(split, part)),
                batch_size=4 * settings.mini_batch_size,
                precision=settings.precision,
            )
            for part in ("vali", "test")
        }
        return {
            "history": done.state.history,
            "best_epoch": done.state.best_epoch,
            "best_value": done.state.best_value,
            "seconds": round(time.perf_counter() - began, 2),
            "settings": settings.model_dump(mode="json", exclude={"model", "loss", "seed"}),
            **{part: encode(own) for part, own in scores.items()},
        }

    def _loaded(self, name: str) -> tuple[Candidates, PairInputs]:
        if name not in self._data:
            inputs = load_tokens(self.study, name).to(self.device)
            self._data[name] = (load_candidates(self.study, name, self.queries), inputs)
        return self._data[name]

    def _ranker(self, settings: TextSettings) -> TextRanker:
        """A fresh ranker; copying takes less time than loading."""
        if settings.reading not in self._rankers:
            loaded = TextRanker.from_pretrained(settings.model, settings.reading)
            self._rankers[settings.reading] = loaded.to(self.device)
        loaded = self._rankers[settings.reading]
        return copy.deepcopy(loaded, {id(loaded.tokenizer): loaded.tokenizer})


class SentenceTransformersLambda:
    """sentence-transformers' LambdaLoss as a function of scores: their class, with a model that
    gives the scores it is told. Lists whose labels all tie are left out, as it gives NaN there.
    """

    def __init__(self) -> None:
        from sentence_transformers.cross_encoder.losses import LambdaLoss

        self._model = _ScoresAsModel()
        self._loss = LambdaLoss(self._model, mini_batch_size=-1)

    def __call__(self, scores: Tensor, labels: Tensor, *, offsets: Tensor) -> Tensor:
        lengths = offsets.diff().tolist()
        both = zip(scores.split(lengths), labels.split(lengths), strict=True)
        lists = [(own, its) for own, its in both if bool((its != its[0]).any())]
        if not lists:
            return 0.0 * scores.sum()
        self._model.scores = torch.cat([own for own, _ in lists])
        inputs = [[""] * len(lists), [[""] * len(own) for own, _ in lists]]
        value: Tensor = self._loss(inputs, [its for _, its in lists])
        return value


class _ScoresAsModel(nn.Module):
    num_labels = 1
    scores: Tensor

    @property
    def device(self) -> torch.device:
        return self.scores.device

    def preprocess(self, pairs: list[Any], **options: Any) -> dict[str, Tensor]:
        return {}

    def forward(self, tokens: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"scores": self.scores}


def encode(scores: np.ndarray) -> str:
    """Float32 as text."""
    return base64.b64encode(np.asarray(scores, "<f4").tobytes()).decode()


def decode(text: str) -> np.ndarray:
    """What :func:`encode` was given."""
    return np.frombuffer(base64.b64decode(text), "<f4")
