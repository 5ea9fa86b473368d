"""Rankers that read text: scorers, and losses over long lists of documents."""

from rankgrad.text.cached import cached_backward, cached_scores
from rankgrad.text.scorers import CausalScorer, EncoderScorer, Prompt

__all__ = ["CausalScorer", "EncoderScorer", "Prompt", "cached_backward", "cached_scores"]
