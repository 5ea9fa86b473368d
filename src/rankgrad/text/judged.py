"""Exact metrics of reranked candidates against all judgments, retrieved or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rankgrad.metrics import metrics as known_metrics

def evaluate(scores, labels, offsets, judged, metrics):
    raise NotImplementedError
