"""Tuning: a search for values on validation data, the same number of trials for each candidate.

A loss's search space is its learning rate and those of its own options that are scales: each is
drawn log-uniformly from a tenth to ten times the value that the candidate has (δ of SmoothI, which
lies between 0 and 0.5, uniformly). What defines the problem (gain, threshold, cutoff) or the
numerics (iterations, samples) stays as it is, and so does an option that is a schedule. The first
trial is the candidate as it was given, so tuning never chooses worse on the validation data.

The search is Optuna's TPE. Each finished trial is written down at once, and the next depends on
nothing but those before it and the seed, so a search that was killed goes on as if it had not been.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict

from rankgrad import files, schemas
from rankgrad.data.dataset import Dataset
from rankgrad.losses import losses
from rankgrad.metrics import metrics
from rankgrad.specs import Spec
from rankgrad.training import Settings, fit

if TYPE_CHECKING:
    from rankgrad.experiments.plans import Candidate, Plan, Tell

#: Options of losses that are scales.
SCALES = ("temperature", "alpha", "sigma", "strength", "epsilon", "scale", "mu", "margin")
_TIMES = 10.0
_DIGITS = 4  # significant ones of a value that is tried, so that it can be written down


@dataclass(frozen=True)
class Range:
    """The values that are tried for an option."""

    low: float
    high: float
    log: bool = True
    whole: bool = False


Trial = dict[str, Any]  # parameters, value, reason


class TrialFacts(TypedDict):
    """A trial as it is written down: what was tried, and what came of it."""

    parameters: NotRequired[dict[str, schemas.Scalar]]
    option: NotRequired[dict[str, Any]]
    value: float | None
    reason: str | None


class TrialLog(TypedDict):
    """What is read of a trial log."""

    trials: list[TrialFacts]
    chosen: dict[str, Any] | None


Objective = Callable[[Mapping[str, Any]], float]


def space_of(settings: Settings) -> dict[str, Range]:
    """What is searched for a loss.

    >>> from rankgrad.experiments.tuning import space_of
    >>> space_of(Settings(loss="smoothi_ndcg@5(alpha=2.0)", learning_rate=0.01))["alpha"]
    Range(low=0.2, high=20.0, log=True, whole=False)
    >>> list(space_of(Settings(loss="smoothi_ndcg@5"))), list(space_of(Settings(loss="mse")))
    (['learning_rate', 'alpha', 'delta'], ['learning_rate'])
    """
    space = {"learning_rate": _around(settings.learning_rate)}
    for name, value in _scales(settings.loss).items():
        space[name] = Range(0.01, 0.45, log=False) if name == "delta" else _around(value)
    return space


def first_of(settings: Settings) -> dict[str, float]:
    """The values of the first trial: those that the candidate has."""
    return {"learning_rate": settings.learning_rate, **_scales(settings.loss)}


def options_of(settings: Settings, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for the values of a trial.

    >>> from rankgrad.experiments.tuning import options_of
    >>> options_of(Settings(loss="ranknet"), {"learning_rate": 0.02, "sigma": 0.5})
    {'learning_rate': 0.02, 'loss': 'ranknet(sigma=0.5)'}
    """
    spec = Spec.parse(settings.loss)
    own = {name: value for name, value in parameters.items() if name != "learning_rate"}
    loss = losses.get(Spec(spec.name, spec.k, {**spec.options, **own}))
    return {"learning_rate": parameters["learning_rate"], "loss": str(loss)}


def tune_losses(
    candidate: Candidate, plan: Plan, data: Mapping[str, Dataset], journal: Path, tell: Tell
) -> None:
    """Search learning rate and loss options of a candidate; the choice is in the journal."""
    assert plan.tune is not None
    settings = candidate.training(plan.settings, seed=plan.seeds[0])

    def objective(parameters: Mapping[str, Any]) -> float:
        options = options_of(settings, parameters)
        tried = Settings(
            **{**settings.model_dump(), **options, "metrics": (), "tensorboard": False}
        )
        done = fit(tried, data["train"], data["vali"])
        if done.stopped == "interrupted":
            raise KeyboardInterrupt
        assert done.best_value is not None
        return done.best_value

    best = search(
        space_of(settings),
        objective,
        plan.tune,
        journal,
        first=first_of(settings),
        metric=settings.metric,
        seed=plan.seeds[0],
        tell=tell,
    )
    finish(journal, options_of(settings, best))


def search(
    space: Mapping[str, Range],
    objective: Objective,
    trials: int,
    journal: Path,
    *,
    first: Mapping[str, Any],
    metric: str,
    seed: int,
    tell: Tell,
    points: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The best parameters of so many trials; those the journal has are not tried again.

    Args:
        space: what to search.
        objective: the validation metric of parameters; an error in it is a trial that failed.
        trials: how many.
        journal: where they are written down.
        first: the parameters of the first one.
        metric: what the objective gives, which says whether lower is better.
        seed: of the search.
        tell: is told how far it is.
        points: what to try in place of a search.
    """
    lower = metrics.get(metric).lower_is_better
    written = {name: asdict(one) for name, one in space.items()}
    done = _read(journal, written)
    while len(done) < trials:
        tell(f"trial {len(done) + 1}/{trials}")
        if points is not None:
            parameters = dict(points[len(done)])
        else:
            parameters = dict(first) if not done else _next(space, done, lower, seed)
        trial: Trial = {"parameters": parameters, "value": None, "reason": None}
        try:
            value = objective(parameters)
            trial["value"] = value if math.isfinite(value) else None
        except ValueError as error:  # such as training that diverged
            trial["reason"] = str(error)
        done.append(trial)
        _write(journal, {"metric": metric, "space": written, "trials": done, "chosen": None})
    known = [trial for trial in done if trial["value"] is not None]
    if not known:
        raise ValueError(f"all {len(done)} trials of tuning failed; the last: {done[-1]['reason']}")
    best = (min if lower else max)(known, key=lambda trial: trial["value"])
    return dict(best["parameters"])


def finish(journal: Path, chosen: Mapping[str, Any]) -> None:
    """Write down what was chosen in the end."""
    _write(journal, {**schemas.read_json(journal, TrialLog), "chosen": dict(chosen)})


def _scales(loss: str) -> dict[str, float]:
    """The options of a loss that are searched, with the values they have."""
    import inspect

    spec = Spec.parse(loss)
    options = inspect.signature(losses.factory(spec.name)).parameters
    found = {}
    for name in (*SCALES, "delta"):
        value = spec.options.get(name, options[name].default if name in options else None)
        if isinstance(value, float | int) and not isinstance(value, bool) and value > 0:
            found[name] = float(value)
    return found


def _around(value: float) -> Range:
    return Range(value / _TIMES, value * _TIMES)


def _next(
    space: Mapping[str, Range], done: list[Trial], lower: bool, seed: int
) -> dict[str, float | int]:
    """What Optuna tries after these trials."""
    optuna = _optuna()
    distributions = {name: _distribution(one) for name, one in space.items()}
    # A new seed for each trial: the sampler's own state is not kept when the process dies.
    sampler = optuna.samplers.TPESampler(seed=(seed * 1_000_003 + len(done)) % 2**32)
    study = optuna.create_study(direction="minimize" if lower else "maximize", sampler=sampler)
    states = optuna.trial.TrialState
    for trial in done:
        failed = trial["value"] is None
        study.add_trial(
            optuna.trial.create_trial(
                params=trial["parameters"],
                distributions=distributions,
                value=None if failed else trial["value"],
                state=states.FAIL if failed else states.COMPLETE,
            )
        )
    asked = study.ask(distributions).params
    return {
        name: value if space[name].whole else float(f"{value:.{_DIGITS}g}")
        for name, value in asked.items()
    }


def _distribution(one: Range) -> Any:
    distributions = _optuna().distributions
    if one.whole:
        return distributions.IntDistribution(int(one.low), int(one.high), log=one.log)
    # Rounding may step over the ends.
    slack = 10.0 ** (1 - _DIGITS)
    low, high = one.low * (1 - slack), one.high * (1 + slack)
    return distributions.FloatDistribution(low, high, log=one.log)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ImportError("tuning needs Optuna: pip install 'rankgrad[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _read(journal: Path, space: Mapping[str, Any]) -> list[Trial]:
    if not journal.exists():
        return []
    facts = schemas.read_json(journal, TrialLog)
    if facts.get("space") != space:
        raise ValueError(
            f"{journal} is of another search space: compare in another folder, or remove it"
        )
    trials: list[Trial] = facts["trials"]
    if any("parameters" not in trial for trial in trials):
        raise ValueError(files.damaged(journal, "a trial has no parameters"))
    return trials


def _write(journal: Path, facts: Mapping[str, Any]) -> None:
    journal.parent.mkdir(parents=True, exist_ok=True)
    files.write(journal, json.dumps(facts, indent=1) + "\n")
