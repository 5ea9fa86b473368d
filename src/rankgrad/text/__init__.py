"""Text: collections, topics, the first stage, and rankers that read text."""

from rankgrad.text.cached import cached_backward, cached_scores
from rankgrad.text.distillation import labels_from_run, teacher_labels
from rankgrad.text.scorers import CausalScorer, EncoderScorer, Prompt

__all__ = [
    "CausalScorer",
    "EncoderScorer",
    "Prompt",
    "cached_backward",
    "cached_scores",
    "labels_from_run",
    "teacher_labels",
]
