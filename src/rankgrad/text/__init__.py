"""Text: collections, topics, the first stage, and rankers that read text."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankgrad.text.cached import cached_backward, cached_scores
    from rankgrad.text.distillation import MixedLoss, labels_from_run, teacher_labels
    from rankgrad.text.ranker import TextRanker
    from rankgrad.text.reading import Prompt
    from rankgrad.text.scorers import CausalScorer, EncoderScorer

__all__ = [
    "CausalScorer",
    "EncoderScorer",
    "MixedLoss",
    "Prompt",
    "TextRanker",
    "cached_backward",
    "cached_scores",
    "labels_from_run",
    "teacher_labels",
]

_MODULES = {
    "CausalScorer": "scorers",
    "EncoderScorer": "scorers",
    "MixedLoss": "distillation",
    "Prompt": "reading",
    "TextRanker": "ranker",
    "cached_backward": "cached",
    "cached_scores": "cached",
    "labels_from_run": "distillation",
    "teacher_labels": "distillation",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rankgrad.text' has no attribute {name!r}")
    return getattr(import_module(f"rankgrad.text.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
