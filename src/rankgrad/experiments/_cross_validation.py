"""Cross-validation of text rankers, beside the first stage that gave their candidates.

``rankgrad text train`` and ``rankgrad compare`` call :func:`cross_validate`. Each loss, fold and
seed is a run folder ``FOLDER/runs/LOSS/fold1-seed0``, which ``rankgrad report`` reads. A second
call with the same arguments leaves finished runs as they are and resumes the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from rankgrad import _files
from rankgrad.experiments.plans import RUNS, folder_name
from rankgrad.text._candidates import Candidates, Split, folds
from rankgrad.text._interpolation import choose_weight, interpolate
from rankgrad.text._text_ranker import TextRanker
from rankgrad.text._text_run import TextRun, metadata, save_evaluation
from rankgrad.text._text_settings import TextSettings
from rankgrad.text._tokens import PairInputs
from rankgrad.text._training import Callbacks, TextData, fit
from rankgrad.training import Settings, _evaluations
from rankgrad.training._fitting import isolated
from rankgrad.training._processes import accelerator
from rankgrad.training.run import RUN

FIRST_STAGE = "first stage"
ALONE = "test-alone"  # the evaluation without interpolation with the first stage


@dataclass(frozen=True)
class CrossValidation:
    """What is trained: every loss on every fold with every seed.

    Args:
        settings: of all runs, except loss and seed, which are those below.
        losses: the losses; each is an entry of the comparison.
        seeds: the seeds.
        folds: the number of folds that the queries are split into.
        chosen_folds: the folds to run, from 1; None for all.
        interpolate: mix the scores with those of the first stage, by a weight that is chosen on
            validation data.
    """

    settings: TextSettings
    losses: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    folds: int = 5
    chosen_folds: tuple[int, ...] | None = None
    interpolate: bool = False

    def __post_init__(self) -> None:
        for fold in self.chosen_folds or ():
            if not 1 <= fold <= self.folds:
                raise ValueError(f"fold must be from 1 to {self.folds}, found {fold}")

    def runs(self) -> list[OneRun]:
        """Every run; runs on the same fold are next to each other."""
        run_folds = self.chosen_folds or tuple(range(1, self.folds + 1))
        shared = self.settings.model_dump()
        return [
            OneRun(TextSettings(**shared | {"loss": loss, "seed": seed}), fold, self.interpolate)
            for fold, seed, loss in itertools.product(run_folds, self.seeds, self.losses)
        ]


@dataclass(frozen=True)
class OneRun:
    """One training: a loss on a fold with a seed."""

    settings: TextSettings
    fold: int
    interpolate: bool

    @property
    def labels(self) -> dict[str, Any]:
        """How reports name it."""
        loss = self.settings.loss
        return {
            "candidate": f"{loss} + {FIRST_STAGE}" if self.interpolate else loss,
            "loss": loss,
            "model": self.settings.model,
            "fold": self.fold,
            "seed": self.settings.seed,
        }

    def path(self, folder: Path) -> Path:
        """Its run folder."""
        run = f"fold{self.fold}-seed{self.settings.seed}"
        return folder / RUNS / folder_name(self.settings.loss) / run


#: Gives the callbacks of a run. Called with the run, its index and the number of all runs.
Watch = Callable[[OneRun, int, int], Callbacks]


def cross_validate(
    plan: CrossValidation, candidates: Candidates, folder: Path, watch: Watch | None = None
) -> bool:
    """Make every run that the folder does not have yet, and evaluate it on its test fold.

    Args:
        plan: what to train.
        candidates: of all queries, with judgments.
        folder: of the runs; it is created if it does not exist.
        watch: gives the callbacks of each run.

    Returns:
        False if it was interrupted.
    """
    trainings = _Trainings(candidates, folds(len(candidates), plan.folds), folder)
    folder.mkdir(parents=True, exist_ok=True)
    runs = plan.runs()
    for index, run in enumerate(runs):
        parts = trainings.parts(run)
        finished = "test" in _evaluations.names(run.path(folder))
        if finished:
            _check_same(run, parts, folder)
        save_first_stage(run, parts["test"], folder)
        if finished:
            continue
        callbacks = Callbacks() if watch is None else watch(run, index, len(runs))
        if not trainings.perform(run, parts, callbacks):
            return False
    return True


@dataclass
class _Trainings:
    """What all runs share: the candidates, their folds and tokens, and the folder.

    ``inputs`` are the tokens of all pairs of query and document, made by the first run.
    """

    candidates: Candidates
    splits: Sequence[Split]
    folder: Path
    inputs: PairInputs | None = None

    def parts(self, run: OneRun) -> dict[str, Candidates]:
        """The candidates that a run is trained, validated and tested on."""
        split = self.splits[run.fold - 1]
        names = ("train", "vali", "test")
        return {name: self.candidates.select(getattr(split, name)) for name in names}

    def perform(self, run: OneRun, parts: Mapping[str, Candidates], callbacks: Callbacks) -> bool:
        """Make or resume a run, and evaluate it; return False if it was interrupted."""
        settings, path = run.settings, run.path(self.folder)
        device = torch.device(accelerator(Settings(device=settings.device)))
        with isolated(device, custom=True):
            torch.manual_seed(settings.seed)  # a new head has random weights
            # Load the model before the folder is made, so that an error leaves no empty folder.
            ranker = TextRanker.from_pretrained(settings.model, settings.reading).to(device)
            if (path / RUN).exists():
                run_folder = TextRun.open(path)
                run_folder.check(settings, parts)
            else:
                run_folder = TextRun.create(path, settings, parts, run.labels)
            with run_folder.locked():
                scores = self._train_and_score(run, ranker, run_folder, callbacks)
                if scores is not None:
                    _evaluate(run, scores, parts, run_folder)
                return scores is not None

    def _train_and_score(
        self, run: OneRun, ranker: TextRanker, run_folder: TextRun, callbacks: Callbacks
    ) -> dict[str, NDArray[Any]] | None:
        """Train, and score the items of ``vali`` and ``test``, ``[items]`` each.

        None if training was interrupted.
        """
        settings, split = run.settings, self.splits[run.fold - 1]
        if self.inputs is None:  # all runs have the same tokenizer
            self.inputs = ranker.tokenize(*self.candidates.pairs())
        data = TextData(self.candidates, self.inputs, split.train, split.vali)
        result = fit(ranker, data, settings, run=run_folder, callbacks=callbacks)
        if result.stopped == "interrupted":
            return None
        options: Any = {"batch_size": 4 * settings.mini_batch_size, "precision": settings.precision}
        return {
            name: result.ranker.score(
                self.inputs, self.candidates.items(getattr(split, name)), **options
            )
            for name in ("vali", "test")
        }


def _evaluate(
    run: OneRun,
    scores: Mapping[str, NDArray[Any]],
    parts: Mapping[str, Candidates],
    run_folder: TextRun,
) -> None:
    """Evaluate the scores of a run; the test evaluation is saved last: it marks a finished run.

    ``scores`` are those of the ranker alone, ``[items]`` for ``vali`` and for ``test``.
    """
    save = partial(save_evaluation, run_folder.path)
    metrics, labels = run.settings.logged, run.labels
    final = dict(scores)
    run_folder.clear_weight()
    if run.interpolate:
        weight = choose_weight(scores["vali"], parts["vali"], run.settings.metric)
        run_folder.save_weight(weight)
        for name, alone in scores.items():
            final[name] = interpolate(alone, parts[name].first_stage, parts[name].offsets, weight)
        save(ALONE, parts["test"], scores["test"], metrics, labels)
    for name in ("vali", "test"):
        save(name, parts[name], final[name], metrics, labels)


def save_first_stage(run: OneRun, test: Candidates, folder: Path) -> None:
    """Save the first stage as an entry of its own, to compare with.

    If the folder has it already, metrics that it was not evaluated with are added.

    Raises:
        ValueError: the folder has the first stage on other test data.
    """
    path = folder / RUNS / folder_name(FIRST_STAGE) / f"fold{run.fold}"
    metrics = run.settings.logged
    if "test" in _evaluations.names(path):
        saved = _evaluations.EvaluatedLists.load(path)
        if saved.checksum != test.checksum():
            raise ValueError(
                f"the test data are not those {path} was made with: go on with the same, or in "
                "another folder"
            )
        if set(metrics) <= set(saved.metrics):
            return
        metrics = tuple(dict.fromkeys([*metrics, *saved.metrics]))
    labels = {"candidate": FIRST_STAGE, "loss": "", "model": "", "fold": run.fold, "seed": 0}
    path.mkdir(parents=True, exist_ok=True)
    _files.write_json(path / RUN, metadata({"test": test}, labels))
    for part in (ALONE, "test"):  # rankers may have both: the first stage is compared in both
        save_evaluation(path, part, test, test.first_stage, metrics, labels)


def _check_same(run: OneRun, parts: Mapping[str, Candidates], folder: Path) -> None:
    """Raise if a finished run was made with other settings or data."""
    saved = TextRun.open(run.path(folder))
    saved.check(run.settings, parts)
    if run.interpolate != (saved.weight is not None):
        word = "without" if run.interpolate else "with"
        raise ValueError(
            f"{saved.path} was made {word} interpolation: go on {word} it, or in another folder"
        )
