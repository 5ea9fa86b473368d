"""Choosing: a row of a table that is the best of several ways to train, by validation data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankgrad import files, schemas
from rankgrad.data.dataset import Dataset
from rankgrad.experiments.plans import Candidate, Plan, Scored, Task, Tell
from rankgrad.experiments.tuning import TrialLog
from rankgrad.metrics import metrics
from rankgrad.training import Settings, fit


@dataclass(frozen=True)
class Choosing:
    """A contender that tries every one of its options once per fold, and is the best of them.

    Options are tried with the first seed on validation data; the runs of all seeds take the one
    that was chosen. What was tried is written down in the journal, and not tried again.

    Args:
        name: what tables show.
        options: of :class:`rankgrad.training.Settings`, the loss among them.

    >>> row = Choosing("Approx", ({"loss": "approx_ndcg"}, {"loss": "approx_ap"}))
    >>> row.labels(Settings())["loss"]
    'Approx'
    """

    name: str
    options: tuple[Mapping[str, Any], ...]

    def facts(self, shared: Settings) -> dict[str, Any]:
        """The settings of all that is tried."""
        return {"options": [Candidate(self.name, one).facts(shared) for one in self.options]}

    def labels(self, shared: Settings) -> dict[str, Any]:
        """Its name, as the loss may be another on another fold, and its model."""
        first = Candidate(self.name, self.options[0]).labels(shared)
        return first if len(self.options) == 1 else {**first, "loss": self.name}

    def is_tuned(self, plan: Plan) -> bool:
        """Whether there is something to choose from."""
        return len(self.options) > 1

    def tune(self, plan: Plan, data: Mapping[str, Dataset], journal: Path, tell: Tell) -> None:
        """Try what the journal does not have, and write down the best."""
        trials: list[dict[str, Any]] = []
        if journal.exists():
            trials = schemas.read_json(journal, TrialLog)["trials"]
            if any("option" not in trial for trial in trials):
                raise ValueError(files.damaged(journal, "a trial has no option"))
        for option in self.options[len(trials) :]:
            tell(f"trying {len(trials) + 1}/{len(self.options)}")
            trials.append({"option": dict(option), **self._try(option, plan, data)})
            self._write(journal, plan, trials, None)
        known = [trial for trial in trials if trial["value"] is not None]
        if not known:
            raise ValueError(f"all {len(trials)} options failed; the last: {trials[-1]['reason']}")
        lower = metrics.get(self._metric(plan)).lower_is_better
        best = (min if lower else max)(known, key=lambda trial: trial["value"])
        self._write(journal, plan, trials, best["option"])

    def _try(
        self, option: Mapping[str, Any], plan: Plan, data: Mapping[str, Dataset]
    ) -> dict[str, Any]:
        candidate = Candidate(self.name, option)
        settings = candidate.training(plan.settings, seed=plan.seeds[0], metrics=())
        try:
            done = fit(settings, data["train"], data["vali"])
        except ValueError as error:  # such as training that diverged
            return {"value": None, "reason": str(error)}
        if done.stopped == "interrupted":
            raise KeyboardInterrupt
        value = done.best_value
        finite = value is not None and math.isfinite(value)
        return {"value": value if finite else None, "reason": None if finite else "not finite"}

    def _metric(self, plan: Plan) -> str:
        return Candidate(self.name, self.options[0]).training(plan.settings).metric

    def _write(self, journal: Path, plan: Plan, trials: list[dict[str, Any]], chosen: Any) -> None:
        journal.parent.mkdir(parents=True, exist_ok=True)
        facts = {"metric": self._metric(plan), "trials": trials, "chosen": chosen}
        files.write(journal, json.dumps(facts, indent=1) + "\n")

    def score(self, task: Task, data: Mapping[str, Dataset], tell: Tell) -> Scored:
        """Train with what was chosen, and score the test lists."""
        option = task.values if self.is_tuned(task.plan) else self.options[0]
        return Candidate(self.name, dict(option)).score(replace(task, values={}), data, tell)
