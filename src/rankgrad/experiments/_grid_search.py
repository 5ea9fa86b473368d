"""Grid-search entries: the best of several ways to train, chosen on validation data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankgrad.experiments.plans import NetworkEntry, Plan, ProgressCallback, Splits, Task
from rankgrad.experiments.tuning import Grid, finish, search, train_and_validate
from rankgrad.training import Settings


@dataclass(frozen=True)
class GridSearchEntry:
    """An entry that tries every one of its options once per fold, and is the best of them.

    Options are tried with the first seed on validation data; the runs of all seeds take the best
    one. The trial log holds what was tried, so that it is not tried again.

    Args:
        name: what tables show.
        options: of :class:`rankgrad.training.Settings`, the loss among them.

    >>> row = GridSearchEntry("Approx", ({"loss": "approx_ndcg"}, {"loss": "approx_ap"}))
    >>> row.labels(Settings())["loss"]
    'Approx'
    """

    name: str
    options: tuple[Mapping[str, Any], ...]

    def metadata(self, shared: Settings) -> dict[str, Any]:
        """The settings of all that is tried."""
        return {"options": [self._entry(one).metadata(shared) for one in self.options]}

    def labels(self, shared: Settings) -> dict[str, Any]:
        """Its name in place of the loss, which may differ by fold, and its model."""
        first = self._entry(self.options[0]).labels(shared)
        return first if len(self.options) == 1 else {**first, "loss": self.name}

    def is_tuned(self, plan: Plan) -> bool:
        """Whether there is something to choose from."""
        return len(self.options) > 1

    def tune(self, task: Task, data: Splits, on_progress: ProgressCallback) -> None:
        """Try the options that the trial log does not have, and choose the best."""
        settings, seed = task.plan.settings, task.plan.seeds[0]

        def objective(option: Mapping[str, Any]) -> float:
            tried = self._entry(option).training(settings, seed=seed, metrics=())
            return train_and_validate(tried, data)

        metric = self._entry(self.options[0]).training(settings).metric
        best = search(Grid(self.options), objective, metric, task.trial_log, on_progress)
        finish(task.trial_log, best)

    def _entry(self, option: Mapping[str, Any]) -> NetworkEntry:
        return NetworkEntry(self.name, dict(option))

    def score(self, task: Task, data: Splits, on_progress: ProgressCallback) -> Any:
        """Train with what was chosen, and score the test lists."""
        option = task.values if self.is_tuned(task.plan) else self.options[0]
        return self._entry(option).score(replace(task, values={}), data, on_progress)
