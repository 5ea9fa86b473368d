"""Text: collections, topics, the first stage, and rankers that read text."""

from rankgrad.text.cached import cached_backward, cached_scores
from rankgrad.text.scorers import CausalScorer, EncoderScorer, Prompt

__all__ = ["CausalScorer", "EncoderScorer", "Prompt", "cached_backward", "cached_scores"]
