"""Tuning: a search for values on validation data, the same number of trials for each entry.

A loss's search space is its learning rate and those of its own options that are scales: each is
drawn log-uniformly from a tenth to ten times the value that the entry has (δ of SmoothI, which
lies between 0 and 0.5, uniformly). What defines the problem (gain, threshold, cutoff) or the
numerics (iterations, samples) is not searched, and neither is an option that is a schedule. The
first trial is the entry with its own values, so tuning never chooses worse on the validation data.

The search is Optuna's TPE. Each finished trial is saved at once. The next one depends only on the
trials before it and the seed, so a search that was killed resumes with the same trials.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict

from rankgrad import _files, _schemas
from rankgrad.extras import load
from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.specs import Spec
from rankgrad.training import Settings, fit

if TYPE_CHECKING:
    from rankgrad.experiments.plans import NetworkEntry, ProgressCallback, Splits, Task

__all__ = [
    "Grid",
    "Range",
    "Space",
    "TrialLog",
    "finish",
    "search",
    "train_and_validate",
    "tune_loss",
]

#: Options of losses that are scales.
_SCALES = ("temperature", "alpha", "sigma", "strength", "epsilon", "scale", "mu", "margin")
_TIMES = 10.0
_DIGITS = 4  # significant digits of a value that is tried, so that logs and commands can state it


@dataclass(frozen=True)
class Range:
    """The values that are tried for an option."""

    low: float
    high: float
    log: bool = True
    integer: bool = False


_Trial = dict[str, Any]  # parameters, value, reason


class _TrialRecord(TypedDict):
    """A trial in the trial log: its parameters and its result."""

    parameters: NotRequired[dict[str, Any]]
    value: float | None
    reason: str | None


class TrialLog(TypedDict):
    """What is read of a trial log."""

    trials: list[_TrialRecord]
    chosen: dict[str, Any] | None


_Objective = Callable[[Mapping[str, Any]], float]


def _space_of(settings: Settings) -> dict[str, Range]:
    """What is searched for a loss.

    >>> from rankgrad.experiments.tuning import _space_of
    >>> _space_of(Settings(loss="smoothi_ndcg@5(alpha=2.0)", learning_rate=0.01))["alpha"]
    Range(low=0.2, high=20.0, log=True, integer=False)
    >>> list(_space_of(Settings(loss="smoothi_ndcg@5"))), list(_space_of(Settings(loss="mse")))
    (['learning_rate', 'alpha', 'delta'], ['learning_rate'])
    """
    space = {"learning_rate": _around(settings.learning_rate)}
    for name, value in _scales(settings.loss).items():
        space[name] = Range(0.01, 0.45, log=False) if name == "delta" else _around(value)
    return space


def _options_of(settings: Settings, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for the values of a trial.

    >>> from rankgrad.experiments.tuning import _options_of
    >>> _options_of(Settings(loss="ranknet"), {"learning_rate": 0.02, "sigma": 0.5})
    {'learning_rate': 0.02, 'loss': 'ranknet(sigma=0.5)'}
    """
    spec = Spec.parse(settings.loss)
    loss_options = {name: value for name, value in parameters.items() if name != "learning_rate"}
    loss = losses.get(Spec(spec.name, spec.k, {**spec.options, **loss_options}))
    return {"learning_rate": parameters["learning_rate"], "loss": str(loss)}


@dataclass(frozen=True)
class Space:
    """A space that Optuna searches.

    Args:
        ranges: of each parameter.
        first: the parameters of the first trial.
        trials: how many.
        seed: of the search.
    """

    ranges: Mapping[str, Range]
    first: Mapping[str, Any]
    trials: int
    seed: int

    def propose(self, done: list[_Trial], lower: bool) -> dict[str, Any]:
        """The parameters to try after these trials: those that Optuna asks for, but at first."""
        if not done:
            return dict(self.first)
        optuna = load("optuna", "tune")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        distributions = {
            name: _distribution(optuna.distributions, each) for name, each in self.ranges.items()
        }
        # A new seed for each trial: the sampler's own state is lost when the process dies.
        sampler = optuna.samplers.TPESampler(seed=(self.seed * 1_000_003 + len(done)) % 2**32)
        study = optuna.create_study(direction="minimize" if lower else "maximize", sampler=sampler)
        states = optuna.trial.TrialState
        for trial in done:
            tried = optuna.trial.create_trial(
                params=trial["parameters"],
                distributions=distributions,
                value=trial["value"],
                state=states.FAIL if trial["value"] is None else states.COMPLETE,
            )
            study.add_trial(tried)
        return {
            name: value if self.ranges[name].integer else float(f"{value:.{_DIGITS}g}")
            for name, value in study.ask(distributions).params.items()
        }

    def to_json(self) -> Any:
        """The ranges, which a trial log holds; ``whole`` there is :attr:`Range.integer`."""
        return {
            name: {"low": one.low, "high": one.high, "log": one.log, "whole": one.integer}
            for name, one in self.ranges.items()
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
        """Nothing: trials have the points."""
        return None


def tune_loss(entry: NetworkEntry, task: Task, data: Splits, on_progress: ProgressCallback) -> None:
    """Search learning rate and loss options of an entry; the choice is in the trial log.

    Args:
        entry: whose options are searched.
        task: one of its runs on the fold.
        data: of the fold: train and vali.
        on_progress: called with each trial.
    """
    trials, seed = task.plan.tune, task.plan.seeds[0]
    assert trials is not None
    settings = entry.training(task.plan.settings, seed=seed, metrics=(), tensorboard=False)

    def objective(parameters: Mapping[str, Any]) -> float:
        tried = Settings(**{**settings.model_dump(), **_options_of(settings, parameters)})
        return train_and_validate(tried, data)

    first = {"learning_rate": settings.learning_rate, **_scales(settings.loss)}
    space = Space(_space_of(settings), first, trials, seed)
    best = search(space, objective, settings.metric, task.trial_log, on_progress)
    finish(task.trial_log, _options_of(settings, best))


def train_and_validate(settings: Settings, data: Splits) -> float:
    """Train, and give the best value of the validation metric; NaN without one.

    Args:
        settings: of the training.
        data: of a fold: train and vali.

    Returns:
        The best value, or NaN.

    Raises:
        KeyboardInterrupt: training was interrupted.
    """
    done = fit(settings, data["train"], data["vali"])
    if done.stopped == "interrupted":
        raise KeyboardInterrupt
    return math.nan if done.best_value is None else done.best_value


def search(
    space: Space | Grid,
    objective: _Objective,
    metric: str,
    trial_log: Path,
    on_progress: ProgressCallback,
) -> dict[str, Any]:
    """The best parameters of some trials; those in the trial log are not tried again.

    Args:
        space: what to try.
        objective: the validation metric of parameters; an error in it is a trial that failed.
        metric: what the objective gives, which says whether lower is better.
        trial_log: where trials are written.
        on_progress: called with the number of the trial.

    Returns:
        The parameters of the best trial.

    Raises:
        ValueError: all trials failed, or the trial log is of another search.
    """
    lower = metrics.get(metric).lower_is_better
    done = _read(trial_log, space.to_json())
    while len(done) < space.trials:
        on_progress(f"trial {len(done) + 1}/{space.trials}")
        parameters = space.propose(done, lower)
        trial: _Trial = {"parameters": parameters, "value": None, "reason": None}
        try:
            value = objective(parameters)
            trial["value"] = value if math.isfinite(value) else None
        except ValueError as error:  # such as training that diverged
            trial["reason"] = str(error)
        done.append(trial)
        log = {"metric": metric, "space": space.to_json(), "trials": done, "chosen": None}
        _write(trial_log, log)
    known = [trial for trial in done if trial["value"] is not None]
    if not known:
        raise ValueError(f"all {len(done)} trials of tuning failed; the last: {done[-1]['reason']}")
    best = (min if lower else max)(known, key=lambda trial: trial["value"])
    return dict(best["parameters"])


def finish(trial_log: Path, chosen: Mapping[str, Any]) -> None:
    """Save the final choice.

    Args:
        trial_log: that :func:`search` wrote.
        chosen: the values for the runs of the fold.
    """
    _write(trial_log, {**_schemas.read_json(trial_log, TrialLog), "chosen": dict(chosen)})


def _scales(loss: str) -> dict[str, float]:
    """The options of a loss that are searched, with the values they have."""
    import inspect

    spec = Spec.parse(loss)
    options = inspect.signature(losses.factory(spec.name)).parameters
    found = {}
    for name in (*_SCALES, "delta"):
        value = spec.options.get(name, options[name].default if name in options else None)
        if isinstance(value, float | int) and not isinstance(value, bool) and value > 0:
            found[name] = float(value)
    return found


def _around(value: float) -> Range:
    return Range(value / _TIMES, value * _TIMES)


def _distribution(distributions: Any, each: Range) -> Any:
    if each.integer:
        return distributions.IntDistribution(int(each.low), int(each.high), log=each.log)
    # Rounding may step over the ends.
    slack = 10.0 ** (1 - _DIGITS)
    low, high = each.low * (1 - slack), each.high * (1 + slack)
    return distributions.FloatDistribution(low, high, log=each.log)


def _read(trial_log: Path, space: Any) -> list[_Trial]:
    if not trial_log.exists():
        return []
    log = _schemas.read_json(trial_log, TrialLog)
    if log.get("space") != space:
        raise ValueError(
            f"{trial_log} is of another search space: compare in another folder, or remove it"
        )
    trials: list[_Trial] = log["trials"]
    if any("parameters" not in trial for trial in trials):
        raise _files.damaged(trial_log, "a trial has no parameters")
    return trials


def _write(trial_log: Path, log: Mapping[str, Any]) -> None:
    trial_log.parent.mkdir(parents=True, exist_ok=True)
    _files.write(trial_log, json.dumps(log, indent=1) + "\n")
