"""``rankgrad compare`` for text rankers.

With a collection of documents, it trains the runs that are missing. Without one, it compares the
runs that a folder holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankgrad.cli import _text_arguments
from rankgrad.cli._printing import show_notes
from rankgrad.cli.text_train import settings_of, train_all
from rankgrad.specs import split
from rankgrad.text._text_settings import TextSettings

if TYPE_CHECKING:
    from rankgrad.results.comparison import Comparison

__all__ = ["compare", "is_text"]

_Options = Mapping[str, Any]

#: Options of the comparison itself; all others must be settings of a text ranker.
_NOT_SETTINGS = (
    *("settings", "losses", "models", "metric", "validation_metric", "folds", "seeds"),
    *("collection", "topics", "qrels", "interpolate"),
)


def is_text(data: Path, collection: str | None) -> bool:
    """Whether a comparison is of text rankers."""
    from rankgrad.experiments._text_comparison import is_text_folder

    return collection is not None or is_text_folder(data)


def compare(data: Path, output: Path | None, options: _Options) -> Comparison:
    """Train the runs that are missing, where there is a collection, and compare all runs.

    Args:
        data: the candidates as a TREC run, or a folder of text runs.
        output: the folder of all runs.
        options: the other options by name; None for those that the user has not passed, except
            ``seeds``, which always has a value.
    """
    from rankgrad.experiments import _text_comparison

    metrics = options["metric"] or ()
    if options["collection"] is None:
        passed = [name for name, value in options.items() if value is not None]
        # --seeds has a default, so it does not tell whether the user has passed it.
        rejected = [name for name in passed if name not in ("metric", "seeds")]
        if rejected or output not in (None, data):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in rejected) or "-o"
            raise ValueError(
                f"{data} holds text runs, which are compared as they are: leave out {flags}. To "
                "train, give the candidates as a TREC run, and --collection"
            )
        return _text_comparison.load(data, metrics)
    if output is None:
        raise ValueError("-o is missing: the folder of all runs")
    _train(data, output, options)
    return _text_comparison.load(output, metrics)


def _train(data: Path, output: Path, options: _Options) -> None:
    """Train every loss, fold and seed that the output folder does not have yet."""
    from rankgrad.experiments._cross_validation import CrossValidation

    passed = {name: value for name, value in options.items() if value is not None}
    overrides = {name: value for name, value in passed.items() if name not in _NOT_SETTINGS}
    for name in overrides:
        if name not in TextSettings.model_fields:
            raise ValueError(f"--{name.replace('_', '-')} is not for text: leave it out")
    if options["models"] is not None:
        overrides["model"] = options["models"]
    metrics = options["metric"] or []
    validation_metric = options["validation_metric"] or (metrics[0] if metrics else None)
    overrides |= {"metric": validation_metric, "metrics": tuple(metrics) or None}
    settings = settings_of(overrides, options["settings"])
    plan = CrossValidation(
        settings=settings,
        losses=tuple(split(options["losses"])) if options["losses"] else (settings.loss,),
        seeds=options["seeds"],
        chosen_folds=options["folds"],
        interpolate=bool(options["interpolate"]),
    )
    if plan.chosen_folds is not None:
        folds = ", ".join(map(str, plan.chosen_folds))
        show_notes([f"--folds: of {plan.folds} folds only {folds} is trained and tested"])
    texts = (options[name] for name in ("collection", "topics", "qrels"))
    train_all(plan, _text_arguments.read_candidates(data, *texts), output, quiet=False)
