"""``rankgrad compare`` for text: trains what is missing, or takes the runs that are there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rankgrad.cli._printing import show_notes

if TYPE_CHECKING:
    from rankgrad.results.comparison import Comparison

__all__ = ["Texts", "compare", "is_text"]

#: Options of a comparison that are not those of a text ranker's training.
_SHARED = ("settings", "losses", "models", "metric", "validation_metric", "folds", "seeds")


class Texts(NamedTuple):
    """Where the texts and judgments of a TREC run are."""

    collection: str | None
    topics: str | None
    qrels: Path | None
    interpolate: bool


def is_text(data: Path, collection: str | None) -> bool:
    """Whether a comparison is of text rankers."""
    if collection is not None:
        return True
    if not data.is_dir():
        return False
    from rankgrad.experiments._text_comparison import is_text_folder

    return is_text_folder(data)


def compare(data: Path, output: Path | None, texts: Texts, asked: Mapping[str, Any]) -> Comparison:
    """Train what is asked for, if anything is, and put the runs together.

    Args:
        data: the candidates as a TREC run, or a folder of text runs.
        output: of all runs.
        texts: where the texts are.
        asked: the options of the comparison by name; None where they were not given.
    """
    from rankgrad.experiments import _text_comparison

    metrics = asked["metric"] or ()
    if texts.collection is None:
        passed = [name for name, value in asked.items() if value is not None]
        passed = [name for name in passed if name not in ("metric", "seeds")]
        if passed or output not in (None, data):
            what = ", ".join(f"--{name.replace('_', '-')}" for name in passed) or "-o"
            raise ValueError(
                f"{data} holds text runs, which are compared as they are: leave out {what}. To "
                "train, give the candidates as a TREC run, and --collection"
            )
        return _text_comparison.load(data, metrics)
    if output is None:
        raise ValueError("-o is missing: the folder of all runs")
    _train(data, output, texts, asked)
    return _text_comparison.load(output, metrics)


def _train(data: Path, output: Path, texts: Texts, asked: Mapping[str, Any]) -> None:
    from rankgrad.cli import _text_arguments
    from rankgrad.cli.text_train import settings_of, train_all
    from rankgrad.experiments._text import CrossValidation
    from rankgrad.specs import split
    from rankgrad.text._text_settings import TextSettings

    passed = {
        name: value
        for name, value in asked.items()
        if value is not None and name not in _SHARED and name != "metrics"
    }
    for name in passed:
        if name not in TextSettings.model_fields:
            raise ValueError(f"--{name.replace('_', '-')} is not for text")
    if asked["models"] is not None:
        passed["model"] = asked["models"]
    metrics = asked["metric"] or []
    chosen = asked["validation_metric"] or (metrics[0] if metrics else None)
    passed |= {"metric": chosen, "metrics": tuple(metrics) or None}
    settings = settings_of(passed, asked["settings"])
    plan = CrossValidation(
        settings=settings,
        losses=tuple(split(asked["losses"])) if asked["losses"] else (settings.loss,),
        seeds=asked["seeds"],
        chosen=asked["folds"],
        interpolate=texts.interpolate,
    )
    if plan.chosen is not None:
        folds = ", ".join(map(str, plan.chosen))
        show_notes([f"--folds: of {plan.folds} folds only {folds} is trained and tested"])
    assert texts.collection is not None
    candidates = _text_arguments.read(data, texts.collection, texts.topics, texts.qrels)
    train_all(plan, candidates, output, quiet=False)
