"""Grid-search entries: the best of several settings, chosen on validation data.

:mod:`rankgrad.papers.reproduce` makes one for each row of a paper's table, boosted trees excepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from rankgrad.experiments.plans import NetworkEntry, Plan, ProgressCallback, Splits, Task
from rankgrad.experiments.tuning import Grid, finish, search, train_and_validate
from rankgrad.training import Settings


@dataclass(frozen=True)
class GridSearchEntry:
    """An entry that tries each of its options on every fold, and takes the best of the fold.

    Options are tried with the first seed, and evaluated on validation data; the runs of all seeds
    use the best one. The trial log saves every trial, so a resumed search does not repeat it.

    Args:
        name: the name in tables.
        options: the points of the grid; each overrides some :class:`rankgrad.training.Settings`,
            among them the loss.

    >>> row = GridSearchEntry("Approx", ({"loss": "approx_ndcg"}, {"loss": "approx_ap"}))
    >>> row.labels(Settings())["loss"]
    'Approx'
    """

    name: str
    options: tuple[Mapping[str, Any], ...]
    note: ClassVar[str] = ""

    def check(self, shared: Settings) -> None:
        """Raise if an option has settings that its model does not take."""
        for option in self.options:
            self._entry(option).check(shared)

    def metadata(self, shared: Settings) -> dict[str, Any]:
        """The settings of every option."""
        return {"options": [self._entry(option).metadata(shared) for option in self.options]}

    def labels(self, shared: Settings) -> dict[str, Any]:
        """Its loss and model; with several options, its own name in place of the loss.

        The best option, and so the loss, may differ from fold to fold.
        """
        first = self._entry(self.options[0]).labels(shared)
        return first if len(self.options) == 1 else {**first, "loss": self.name}

    def is_tuned(self, plan: Plan) -> bool:
        """Whether it has several options to choose from."""
        return len(self.options) > 1

    @property
    def combinations(self) -> int:
        """How many options are tried."""
        return len(self.options)

    def tune(self, task: Task, data: Splits, on_progress: ProgressCallback) -> None:
        """Try the options that the trial log does not have, and choose the best."""
        shared, seed = task.plan.settings, task.plan.seeds[0]

        def objective(option: Mapping[str, Any]) -> float:
            entry = self._entry(option)
            settings = entry.training(shared, seed=seed, metrics=(), tensorboard=False)
            return train_and_validate(settings, data)

        metric = self._entry(self.options[0]).training(shared).metric
        best = search(Grid(self.options), objective, metric, task.trial_log, on_progress)
        finish(task.trial_log, best)

    def score(self, task: Task, data: Splits, on_progress: ProgressCallback) -> Any:
        """Train with the chosen option; return the scores of test items, None if interrupted."""
        option = task.values if self.is_tuned(task.plan) else self.options[0]
        # The option is part of the entry, so the task has no further values to override it.
        return self._entry(option).score(replace(task, values={}), data, on_progress)

    def _entry(self, option: Mapping[str, Any]) -> NetworkEntry:
        """The entry of a single option, which is not tuned further."""
        return NetworkEntry(self.name, dict(option))
