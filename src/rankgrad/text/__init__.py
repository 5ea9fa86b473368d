"""Text: collections, topics, the first stage, and rankers that read text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankgrad.text.cached import cached_backward, cached_scores
from rankgrad.text.distillation import MixedLoss, labels_from_run, teacher_labels
from rankgrad.text.scorers import CausalScorer, EncoderScorer, Prompt

if TYPE_CHECKING:
    from rankgrad.text.ranker import TextRanker

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


def __getattr__(name: str) -> Any:
    if name != "TextRanker":
        raise AttributeError(f"module 'rankgrad.text' has no attribute {name!r}")
    from rankgrad.text.ranker import TextRanker  # loads the training package, too

    return TextRanker
