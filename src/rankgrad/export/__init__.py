"""Rankers for use outside of Python: ONNX, search engines, and students that engines can score."""

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
