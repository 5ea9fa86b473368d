"""Tuning: a search for hyperparameters on validation data, with equally many trials per entry.

The search space of a loss is the learning rate and those options of the loss that are scales. Each
is drawn log-uniformly from a tenth to ten times the entry's value (δ of SmoothI, which lies between
0 and 0.5, uniformly). Options that define the problem (gain, threshold, cutoff) or the numerics
(iterations, samples) are not searched, nor are options that are schedules. The first trial has the
entry's own values, so tuning never chooses worse ones on the validation data.

The search is Optuna's TPE. Each finished trial is saved at once in the trial log. The next trial
depends only on the trials before it and the seed, so a search that was killed resumes with the same
trials. The entries' ``tune`` methods call this module, in worker processes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad.extras import load
from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.specs import Spec
from rankgrad.training import Settings
from rankgrad.training._fitting import fit_to_end

if TYPE_CHECKING:
    from rankgrad.experiments.plans import NetworkEntry, ProgressCallback, Splits, Task

__all__ = [
    "Grid",
    "Range",
    "Space",
    "TrialLog",
    "finish",
    "has_values",
    "search",
    "train_and_validate",
    "tune_loss",
]

#: Options of losses that are scales.
_SCALES = ("temperature", "alpha", "sigma", "strength", "epsilon", "scale", "mu", "margin")
_FACTOR = 10.0  # by which the ends of a range differ from the entry's value
_DIGITS = 4  # significant digits of a value that is tried, so that logs and commands can state it


@dataclass(frozen=True)
class Range:
    """The interval of a hyperparameter.

    Attributes:
        low: the lower end.
        high: the upper end.
        log: whether it is searched on a logarithmic scale.
        integer: whether values are integers.
    """

    low: float
    high: float
    log: bool = True
    integer: bool = False


_Trial = dict[str, Any]  # a _TrialRecord


class _TrialRecord(TypedDict):
    """A trial in the trial log; ``reason`` says why it has no value."""

    parameters: dict[str, Any]
    value: float | None
    reason: str | None


class TrialLog(TypedDict):
    """The keys of a trial log that are read; ``chosen`` is None until the search is finished."""

    trials: list[_TrialRecord]
    chosen: dict[str, Any] | None


_Objective = Callable[[Mapping[str, Any]], float]


@dataclass(frozen=True)
class Space:
    """A space that Optuna searches.

    Args:
        ranges: by parameter.
        first: the parameters of the first trial.
        trials: the number of trials.
        seed: of the search.
    """

    ranges: Mapping[str, Range]
    first: Mapping[str, Any]
    trials: int
    seed: int

    def propose(self, done: list[_Trial], lower: bool) -> dict[str, Any]:
        """The parameters of the next trial: ``first``, then what Optuna proposes.

        Args:
            done: the trials so far.
            lower: whether lower values are better.
        """
        if not done:
            return dict(self.first)
        optuna = load("optuna", "tune")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        distributions = {
            name: _distribution(optuna.distributions, interval)
            for name, interval in self.ranges.items()
        }
        # A new seed for each trial, since the sampler's state is lost when the process dies.
        sampler = optuna.samplers.TPESampler(seed=(self.seed * 1_000_003 + len(done)) % 2**32)
        study = optuna.create_study(direction="minimize" if lower else "maximize", sampler=sampler)
        states = optuna.trial.TrialState
        for trial in done:
            study.add_trial(
                optuna.trial.create_trial(
                    params=trial["parameters"],
                    distributions=distributions,
                    value=trial["value"],
                    state=states.FAIL if trial["value"] is None else states.COMPLETE,
                )
            )
        proposed = study.ask(distributions).params
        return {name: _rounded(value, self.ranges[name]) for name, value in proposed.items()}

    def to_json(self) -> Any:
        """The ranges as the trial log has them; ``whole`` there is :attr:`Range.integer`."""
        return {
            name: {"low": r.low, "high": r.high, "log": r.log, "whole": r.integer}
            for name, r in self.ranges.items()
        }


@dataclass(frozen=True)
class Grid:
    """Points that are tried one after the other."""

    points: Sequence[Mapping[str, Any]]

    @property
    def trials(self) -> int:
        """One for each point."""
        return len(self.points)

    def propose(self, done: list[_Trial], lower: bool) -> dict[str, Any]:
        """The next point."""
        return dict(self.points[len(done)])

    def to_json(self) -> Any:
        """None: the points are in the trials."""
        return None


def tune_loss(entry: NetworkEntry, task: Task, data: Splits, on_progress: ProgressCallback) -> None:
    """Search learning rate and loss options of an entry; save the choice in the trial log.

    Args:
        entry: to tune.
        task: one of its runs on the fold.
        data: the splits train and vali of the fold.
        on_progress: called before each trial, with a text such as ``trial 3/20``.
    """
    trials, seed = task.plan.tune, task.plan.seeds[0]
    assert trials is not None
    settings = entry.training(task.plan.settings, seed=seed, metrics=(), tensorboard=False)

    def objective(parameters: Mapping[str, Any]) -> float:
        trial = Settings(**{**settings.model_dump(), **_options_of(settings, parameters)})
        return train_and_validate(trial, data)

    first = {"learning_rate": settings.learning_rate, **_scales(settings.loss)}
    space = Space(_space_of(settings), first, trials, seed)
    best = search(space, objective, settings.metric, task.trial_log, on_progress)
    finish(task.trial_log, _options_of(settings, best))


def train_and_validate(settings: Settings, data: Splits) -> float:
    """Train, and give the best value of the validation metric.

    Args:
        settings: of the training.
        data: the splits train and vali of a fold.

    Returns:
        The best value; NaN if training never had one.

    Raises:
        KeyboardInterrupt: training was interrupted.
    """
    result = fit_to_end(settings, data["train"], data["vali"])
    return math.nan if result.best_value is None else result.best_value


def search(
    space: Space | Grid,
    objective: _Objective,
    metric: str,
    trial_log: Path,
    on_progress: ProgressCallback,
) -> dict[str, Any]:
    """Search for the best parameters, after the trials that the trial log has already.

    Args:
        space: the space, or the grid, to search.
        objective: gives the validation metric for parameters; a ValueError makes the trial fail.
        metric: the spec of the metric that the objective computes (some are better if lower).
        trial_log: the file that each trial is saved in.
        on_progress: called before each trial, with a text such as ``trial 3/20``.

    Returns:
        The parameters of the best trial.

    Raises:
        ValueError: all trials failed, or the trial log is that of another search.
    """
    lower = metrics.get(metric).lower_is_better
    trials = _read(trial_log, space.to_json())
    while len(trials) < space.trials:
        on_progress(f"trial {len(trials) + 1}/{space.trials}")
        parameters = space.propose(trials, lower)
        trial: _Trial = {"parameters": parameters, "value": None, "reason": None}
        try:
            value = objective(parameters)
            if not math.isfinite(value):
                raise ValueError(f"the validation {metric} is {value}")
            trial["value"] = value
        except ValueError as error:  # such as training that diverged
            trial["reason"] = str(error)
        trials.append(trial)
        log = {"metric": metric, "space": space.to_json(), "trials": trials, "chosen": None}
        _write(trial_log, log)
    successful = [trial for trial in trials if trial["value"] is not None]
    if not successful:
        reason = trials[-1]["reason"]
        raise ValueError(f"all {len(trials)} trials of tuning failed; the last: {reason}")
    best = (min if lower else max)(successful, key=lambda trial: trial["value"])
    return dict(best["parameters"])


def finish(trial_log: Path, chosen: Mapping[str, Any]) -> None:
    """Save the values that a search has chosen, which marks it finished.

    Args:
        trial_log: the file that :func:`search` wrote.
        chosen: the values for the runs of the fold.
    """
    _write(trial_log, {**_schemas.read_json(trial_log, TrialLog), "chosen": dict(chosen)})


def _space_of(settings: Settings) -> dict[str, Range]:
    """The search space of a loss: the range of each hyperparameter.

    >>> from rankgrad.experiments.tuning import _space_of
    >>> _space_of(Settings(loss="smoothi_ndcg@5(alpha=2.0)", learning_rate=0.01))["alpha"]
    Range(low=0.2, high=20.0, log=True, integer=False)
    >>> list(_space_of(Settings(loss="smoothi_ndcg@5"))), list(_space_of(Settings(loss="mse")))
    (['learning_rate', 'alpha', 'delta'], ['learning_rate'])
    """
    space = {"learning_rate": _around(settings.learning_rate)}
    for name, value in _scales(settings.loss).items():
        if name == "delta":  # with the entry's own value in the range, since it is tried first
            space[name] = Range(min(0.01, value), max(0.45, value), log=False)
        else:
            space[name] = _around(value)
    return space


def _options_of(settings: Settings, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a trial changes: its learning rate, and its loss as a spec.

    >>> from rankgrad.experiments.tuning import _options_of
    >>> _options_of(Settings(loss="ranknet"), {"learning_rate": 0.02, "sigma": 0.5})
    {'learning_rate': 0.02, 'loss': 'ranknet(sigma=0.5)'}
    """
    spec = Spec.parse(settings.loss)
    loss_options = {name: value for name, value in parameters.items() if name != "learning_rate"}
    loss = losses.get(Spec(spec.name, spec.k, {**spec.options, **loss_options}))
    return {"learning_rate": parameters["learning_rate"], "loss": str(loss)}


def _scales(loss: str) -> dict[str, float]:
    """The options of a loss that are searched, with the values of its spec or their defaults."""
    import inspect

    spec = Spec.parse(loss)
    options = inspect.signature(losses.factory(spec.name)).parameters
    scales = {}
    for name in (*_SCALES, "delta"):
        value = spec.options.get(name, options[name].default if name in options else None)
        if isinstance(value, float | int) and not isinstance(value, bool) and value > 0:
            scales[name] = float(value)
    return scales


def _around(value: float) -> Range:
    """The range from a tenth to ten times a value."""
    return Range(value / _FACTOR, value * _FACTOR)


def _rounded(value: float, interval: Range) -> float:
    """A value rounded to ``_DIGITS`` significant digits, but never to one outside its range.

    >>> from rankgrad.experiments.tuning import Range, _rounded
    >>> _rounded(0.123456, Range(0.1, 1.0)), _rounded(1.0006, Range(0.1, 1.0))
    (0.1235, 1.0)
    """
    if interval.integer:
        return value
    return min(max(float(f"{value:.{_DIGITS}g}"), interval.low), interval.high)


def _distribution(distributions: Any, interval: Range) -> Any:
    """A range for Optuna; ``distributions`` is the module ``optuna.distributions``."""
    if interval.integer:
        return distributions.IntDistribution(
            int(interval.low), int(interval.high), log=interval.log
        )
    # Values in the trial logs of earlier versions may lie just outside the range, by their rounding
    # to _DIGITS, and Optuna would refuse these trials.
    slack = 10.0 ** (1 - _DIGITS)
    low, high = interval.low * (1 - slack), interval.high * (1 + slack)
    return distributions.FloatDistribution(low, high, log=interval.log)


def _read(trial_log: Path, space: Any) -> list[_Trial]:
    """The trials in a trial log; none if there is no log. Raises if its space is another.

    A search that failed in all trials starts over: the next command may have other settings.
    """
    if not trial_log.exists():
        return []
    log = _schemas.read_json(trial_log, TrialLog)
    if log.get("space") != space:
        raise ValueError(
            f"{trial_log} is of another search space: compare in another folder, or remove it"
        )
    return list(log["trials"]) if has_values(log) else []


def has_values(log: TrialLog) -> bool:
    """Whether some trial of a log did not fail."""
    return any(trial["value"] is not None for trial in log["trials"])


def _write(trial_log: Path, log: Mapping[str, Any]) -> None:
    trial_log.parent.mkdir(parents=True, exist_ok=True)
    _files.write(trial_log, json.dumps(log, indent=1) + "\n")
