"""Ranking of text: test collections, BM25 retrieval, and cross-encoders trained on ranking losses.

The modules, in the order in which ``rankgrad text`` uses them:

- ``_collections`` reads documents and topics, with one module per format: ``_sgml`` (TREC),
  ``_smart``, ``_classic`` (Cranfield and CISI), ``_packages`` (ir_datasets and datasets);
- ``_first_stage`` retrieves candidates by BM25, and ``_candidates`` holds them in flat layout;
- ``_tokens`` tokenizes pairs of query and document, and ``_text_ranker`` scores them with a
  Hugging Face network, in the way that ``_reading`` describes;
- ``_training`` trains the ranker by ``_text_settings`` and saves it in a run folder
  (``_text_run``), with the gradient caching of ``_cached`` and, if there is a teacher, the labels
  of ``_teachers``;
- ``_interpolation`` mixes the ranker's scores with those of the first stage;
- ``_evaluation`` computes metrics of runs as trec_eval does.

``_scorers`` has scorers for users who write their own training loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankgrad.extras import lazy_names

if TYPE_CHECKING:
    from rankgrad.text._cached import cached_backward, cached_scores
    from rankgrad.text._reading import Prompt
    from rankgrad.text._scorers import CausalScorer, EncoderScorer
    from rankgrad.text._teachers import MixedLoss, labels_from_run, teacher_labels
    from rankgrad.text._text_ranker import TextRanker

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
        "_text_ranker": ("TextRanker",),
        "_reading": ("Prompt",),
        "_scorers": ("CausalScorer", "EncoderScorer"),
    },
    extra="text",
)


def __dir__() -> list[str]:
    return __all__
