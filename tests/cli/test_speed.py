"""``rankgrad --help`` answers at once: nothing heavy is imported for it."""

from __future__ import annotations

import os
import subprocess
import sys

HEAVY = ("torch", "numpy", "numba", "sklearn", "pyarrow", "lightning_fabric", "scipy")
EXTRAS = (
    *("huggingface_hub", "mlflow", "pyterrier", "pytorch_lightning", "tensorboard"),
    *("torchmetrics", "wandb", "lightgbm", "xgboost", "transformers"),
)


def imported(code, names):
    """Which of some packages a program imports."""
    code = f"import sys\n{code}\nprint([name for name in {names!r} if name in sys.modules])"
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    return done.stdout.strip()


def test_help_imports_nothing_heavy():
    code = """
from typer.testing import CliRunner
from rankgrad.cli import app
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
assert CliRunner().invoke(app, ["train", "--help"]).exit_code == 0
assert CliRunner().invoke(app, ["text", "train", "--help"]).exit_code == 0
assert CliRunner().invoke(app, ["explain", "--help"]).exit_code == 0
"""
    assert imported(code, HEAVY) == "[]"


def test_extras_are_not_imported_until_they_are_used():
    code = """
import numpy as np
from rankgrad import Ranker, evaluate, explanations, losses
import rankgrad.report
from rankgrad.training._loggers import loggers
loggers.get("wandb"), loggers.get("mlflow")
X = np.random.default_rng(0).normal(size=(20, 2))
Ranker(epochs=1, device="cpu").fit(X, X[:, 0] > 0, group=[10, 10])
"""
    assert imported(code, EXTRAS) == "[]"
