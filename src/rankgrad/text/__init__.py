"""Text: collections, topics, the first stage, and rankers that read text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankgrad.extras import lazy_names

if TYPE_CHECKING:
    from rankgrad.text._cached import cached_backward, cached_scores
    from rankgrad.text._ranker import TextRanker
    from rankgrad.text._reading import Prompt
    from rankgrad.text._scorers import CausalScorer, EncoderScorer
    from rankgrad.text._teachers import MixedLoss, labels_from_run, teacher_labels

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

__getattr__ = lazy_names(
    __name__,
    {
        "_cached": ("cached_backward", "cached_scores"),
        "_teachers": ("MixedLoss", "labels_from_run", "teacher_labels"),
        "_ranker": ("TextRanker",),
        "_reading": ("Prompt",),
        "_scorers": ("CausalScorer", "EncoderScorer"),
    },
    extra="text",
)


def __dir__() -> list[str]:
    return __all__
