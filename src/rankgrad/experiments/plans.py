"""Plans: what is compared, on which data, and where each run lies."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rankgrad.data import layout, store
from rankgrad.data.dataset import Dataset
from rankgrad.metrics import metrics
from rankgrad.training import Settings

RUNS, TUNING = "runs", "tuning"
SPLITS = ("train", "vali", "test")

#: How a run says how far it is, in a few words.
Tell = Callable[[str], None]

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*")
_LONGEST = 80  # characters of a folder's name


class Contender(Protocol):
    """What can be compared: it says what it is, is tuned, trained and gives scores.

    The methods are called in worker processes, so it must be something that can be sent to them.
    """

    @property
    def name(self) -> str:
        """What tables show."""
        ...

    def facts(self, shared: Settings) -> dict[str, Any]:
        """All that its runs depend on besides fold, seed and tuned values, as JSON has it."""
        ...

    def labels(self, shared: Settings) -> dict[str, Any]:
        """Its ``loss`` and ``model``, as tables and reports name them."""
        ...

    def is_tuned(self, plan: Plan) -> bool:
        """Whether values are searched for before it is trained."""
        ...

    def tune(self, plan: Plan, data: Mapping[str, Dataset], journal: Path, tell: Tell) -> None:
        """Search for values on validation data, or go on with the search that ``journal`` has."""
        ...

    def score(self, task: Task, data: Mapping[str, Dataset], tell: Tell) -> Scored:
        """Train, or go on with the run at ``task.path``, and score the test lists."""
        ...


@dataclass(frozen=True)
class Scored:
    """The scores of the test items, or None where training was interrupted."""

    scores: Any | None


@dataclass(frozen=True)
class Candidate:
    """A way to train: options over the settings that all candidates share.

    Args:
        name: what tables show.
        settings: options of :class:`rankgrad.training.Settings`; all but ``seed``, which the plan
            says.

    >>> from rankgrad.experiments.compare import Candidate
    >>> Candidate.of("lambdaloss@5", learning_rate=0.01)
    Candidate(name='lambdaloss@5', settings={'loss': 'lambdaloss@5', 'learning_rate': 0.01})
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, loss: str, model: str | None = None, *, name: str | None = None, **settings: Any
    ) -> Candidate:
        """A candidate named after its loss, and its model if that is given."""
        options = {"loss": loss} if model is None else {"loss": loss, "model": model}
        default = loss if model is None else f"{loss} × {model}"
        return cls(name or default, options | settings)

    def training(self, shared: Settings, **options: Any) -> Settings:
        """The settings of one of its runs."""
        try:
            return Settings(**{**shared.model_dump(), **self.settings, **options})
        except ValueError as error:
            raise ValueError(f"candidate {self.name!r}: {error}") from None

    def facts(self, shared: Settings) -> dict[str, Any]:
        """The settings of all its runs."""
        values = self.training(shared).model_dump(mode="json")
        # The seed is the run's, the logged metrics follow those of the comparison, and graphs
        # compute the same up to rounding.
        return {k: v for k, v in values.items() if k not in ("seed", "metrics", "graphs")}

    def labels(self, shared: Settings) -> dict[str, Any]:
        """Its loss and model."""
        settings = self.training(shared)
        return {"loss": settings.loss, "model": settings.model}

    def is_tuned(self, plan: Plan) -> bool:
        """Whether the plan has a budget for it."""
        return plan.tune is not None

    def tune(self, plan: Plan, data: Mapping[str, Dataset], journal: Path, tell: Tell) -> None:
        """Search learning rate and the loss's own options; see :mod:`.tuning`."""
        from rankgrad.experiments.tuning import tune_losses

        tune_losses(self, plan, data, journal, tell)

    def score(self, task: Task, data: Mapping[str, Dataset], tell: Tell) -> Scored:
        """Train with the settings of the task, or go on with its run, and score the test lists."""
        from rankgrad.training import RunFolder, fit

        settings = self.training(task.plan.settings, seed=task.seed, **task.values)
        begun = (task.path / "run.json").exists()
        if begun:  # metrics that are only logged may be others now
            logged = RunFolder.open(task.path).settings.metrics
            settings = Settings(**{**settings.model_dump(), "metrics": logged})
        tell("training")
        done = fit(
            settings,
            data["train"],
            data["vali"],
            folder=task.path,
            resume=begun,
            on_epoch=lambda line: tell(f"epoch {line['epoch']}/{settings.epochs}"),
        )
        if done.stopped == "interrupted":
            return Scored(None)
        test = data["test"]
        return Scored(done.model.predict(test.features, test.offsets))


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Args:
        data: a folder of splits, or of folds of splits.
        candidates: what is compared, in the order of the table.
        folds: of the data; ``(None,)`` where there are none. See :func:`folds_of`.
        seeds: each candidate is trained with each of them on each fold.
        metrics: of the test lists.
        settings: shared by all candidates; ``settings.metric`` chooses the best epoch, and the
            best values where there is tuning.
        tune: how many trials on validation data each candidate has on each fold; None for none.

    >>> from rankgrad.experiments.compare import Candidate, Plan
    >>> plan = Plan("MQ2008", [Candidate.of("mse"), Candidate.of("ranknet")], folds=(1, 2))
    >>> [str(task.path) for task in plan.tasks(Path("out"))][:2]
    ['out/runs/mse/fold1-seed0', 'out/runs/ranknet/fold1-seed0']
    """

    data: str | os.PathLike[str]
    candidates: tuple[Contender, ...]
    folds: tuple[int | None, ...] = (None,)
    seeds: tuple[int, ...] = (0,)
    metrics: tuple[str, ...] = ("ndcg@5", "ndcg@10", "ap", "rr")
    settings: Settings = field(default_factory=Settings)
    tune: int | None = None

    def __post_init__(self) -> None:
        for name in ("candidates", "folds", "seeds", "metrics"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not getattr(self, name):
                raise ValueError(f"there are no {name} to compare")
        specs = dict.fromkeys(str(metrics.get(spec)) for spec in self.metrics)
        object.__setattr__(self, "metrics", tuple(specs))
        for what, given in (("fold", self.folds), ("seed", self.seeds)):
            for one in given:
                if given.count(one) > 1:
                    raise ValueError(f"{what} {one} is given twice")
        if self.tune is not None and self.tune < 1:
            raise ValueError(f"tune is how many trials there are, at least 1; found {self.tune}")
        self._check_names()
        for candidate in self.candidates:
            if "seed" in getattr(candidate, "settings", {}):
                raise ValueError(f"candidate {candidate.name!r} has a seed: the plan has the seeds")
            if candidate.facts(self.settings).get("devices", 1) != 1:
                raise ValueError(
                    f"candidate {candidate.name!r} is to train on several devices: in a "
                    "comparison each run has one, and runs go side by side"
                )

    def _check_names(self) -> None:
        taken: dict[str, str] = {}
        for candidate in self.candidates:
            place = folder_name(candidate.name).casefold()
            if place in taken:
                also = taken[place]
                if also == candidate.name:
                    raise ValueError(f"{also!r} is there twice: leave one of them out")
                raise ValueError(
                    f"candidates {candidate.name!r} and {also!r} would both be in the folder "
                    f"{place}: name one anew"
                )
            taken[place] = candidate.name

    def candidate(self, name: str) -> Contender:
        """The candidate of this name, in whatever case it is given."""
        for candidate in self.candidates:
            if candidate.name.casefold() == name.casefold():  # no two differ in case alone
                return candidate
        listed = ", ".join(candidate.name for candidate in self.candidates)
        raise ValueError(f"there is no ranker {name!r}. There are: {listed}")

    def tasks(self, folder: Path, only: Contender | None = None) -> list[Task]:
        """Every run, of one entry or of all, those on the same data beside each other."""
        return [
            Task(self, candidate, fold, seed, folder)
            for fold in self.folds
            for seed in self.seeds
            for candidate in (self.candidates if only is None else (only,))
        ]

    def notes(self) -> tuple[str, ...]:
        """What tables say of how the runs were made."""
        size = self.settings.list_size
        cut = "" if size is None else f"; training lists are cut to {size} items"
        lines = [
            "a cutoff beyond a list's end is its end, but precision@k divides by k",
            f"test lists are ranked in full, never cut{cut}",
        ]
        if self.tune is not None:
            lines.append(
                f"values tuned on validation data by {self.settings.metric}, {self.tune} trials "
                "for each ranker and fold"
            )
            return tuple(lines)
        names: dict[int, list[str]] = {}
        for candidate in self.candidates:
            count = getattr(candidate, "combinations", 1)
            if count > 1:
                names.setdefault(count, []).append(candidate.name)
        networks = sum(map(len, names.values())) < len(self.candidates)
        others = (
            "; the losses as they are given, without a search (--tune gives all the same number "
            "of trials)"
        )
        return (
            *lines,
            *(
                f"{', '.join(some)}: the best of {count} combinations of values by "
                f"{self.settings.metric} on validation data, fold by fold"
                + (others if networks else "")
                for count, some in names.items()
            ),
        )

    def facts(self) -> dict[str, Any]:
        """The plan as JSON has it."""
        return {
            "data": os.fspath(self.data),
            "folds": list(self.folds),
            "seeds": list(self.seeds),
            "metrics": list(self.metrics),
            "tune": self.tune,
            "candidates": {c.name: c.facts(self.settings) for c in self.candidates},
        }


@dataclass(frozen=True)
class Task:
    """One run of a plan: a candidate on a fold with a seed."""

    plan: Plan
    candidate: Contender
    fold: int | None
    seed: int
    folder: Path  # of the comparison
    values: Mapping[str, Any] = field(default_factory=dict)  # that tuning chose

    @property
    def key(self) -> tuple[str, int | None, int]:
        """Which run it is."""
        return self.candidate.name, self.fold, self.seed

    @property
    def path(self) -> Path:
        """Its run folder."""
        part = f"seed{self.seed}" if self.fold is None else f"fold{self.fold}-seed{self.seed}"
        return self.folder / RUNS / folder_name(self.candidate.name) / part

    @property
    def journal(self) -> Path:
        """Where the search for the values of this candidate on this fold is written down."""
        part = "all" if self.fold is None else f"fold{self.fold}"
        return self.folder / TUNING / folder_name(self.candidate.name) / f"{part}.json"

    def __str__(self) -> str:
        fold = "" if self.fold is None else f" fold {self.fold}"
        return f"{self.candidate.name}{fold} seed {self.seed}"


def folder_name(name: str) -> str:
    """A name for a folder, the same for the same candidate whatever else is compared.

    >>> from rankgrad.experiments.plans import folder_name
    >>> folder_name("lambdaloss@5"), folder_name("a/b")
    ('lambdaloss-at-5', 'a-b-6d959c')
    """
    if not name.strip():
        raise ValueError("a candidate needs a name")
    plain = name.replace("@", "-at-")
    if _SAFE.fullmatch(plain) and len(plain) <= _LONGEST:
        return plain
    mark = hashlib.blake2b(name.encode(), digest_size=3).hexdigest()
    safe = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", plain).strip("-.")[:_LONGEST]
    return f"{safe or 'candidate'}-{mark}"


def folds_of(data: str | os.PathLike[str]) -> tuple[int | None, ...]:
    """The folds that a data folder has; ``(None,)`` where it has splits alone."""
    path = Path(data)
    layout.check_exists(path)
    return tuple(layout.folds(path)) or (None,)


def check_splits(data: str | os.PathLike[str], folds: Iterable[int | None]) -> None:
    """An error if no fold has all the splits. Where some have, the others are gaps."""
    path = Path(data)
    layout.check_exists(path)
    if path.is_file() or store.is_store(path):
        raise ValueError(
            f"{path} is one set of lists: to compare, give a folder with train, vali and test in it"
        )
    problems = []
    for fold in folds:
        try:
            missing = [split for split in SPLITS if split not in layout.splits(path, fold)]
        except ValueError as error:
            problems.append(str(error))
            continue
        if not missing:
            return
        problems.append(missing_splits(path, fold, missing))
    raise ValueError(problems[0])


def missing_splits(path: Path, fold: int | None, missing: Iterable[str]) -> str:
    """What to say of data that lack a split."""
    where = path if fold is None else f"fold {fold} of {path}"
    return (
        f"{where} has no {' and no '.join(missing)} split: to compare, train, vali and test are "
        "needed"
    )
