"""Rankers for use outside of rankgrad: ONNX, search engines, and students that engines can score.

- ``_exporting`` writes a ranker in one of the formats, and checks the scores of the file first;
- ``_onnx_format`` builds an ONNX graph (``_onnx_graph``) from ``_onnx_transforms``,
  ``_onnx_networks`` and ``_parsed_trees``; ``rankgrad.serving`` runs it, too;
- ``_engines`` writes the JSON of Solr, OpenSearch and Elasticsearch; ``_readers`` scores with it;
- ``_program`` writes programs of ``torch.export``;
- ``_distillation`` trains a student for a ranker that an engine cannot score.
"""

from rankgrad.export._distillation import Distilled, QualityLoss, distill, student_settings
from rankgrad.export._engines import engine_notes, to_linear, to_solr, to_xgboost_json
from rankgrad.export._exporting import FORMATS, export
from rankgrad.export._onnx_format import to_onnx
from rankgrad.export._program import to_program

__all__ = [
    "FORMATS",
    "Distilled",
    "QualityLoss",
    "distill",
    "engine_notes",
    "export",
    "student_settings",
    "to_linear",
    "to_onnx",
    "to_program",
    "to_solr",
    "to_xgboost_json",
]
