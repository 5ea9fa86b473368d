"""``rankgrad --help`` answers at once: nothing heavy is imported for it."""

from __future__ import annotations

import os
import subprocess
import sys

HEAVY = ("torch", "numpy", "numba", "sklearn", "pyarrow", "lightning_fabric", "scipy")


def test_help_imports_nothing_heavy():
    code = f"""
import sys
from typer.testing import CliRunner
from rankgrad.cli import app
assert CliRunner().invoke(app, ["--help"]).exit_code == 0
assert CliRunner().invoke(app, ["train", "--help"]).exit_code == 0
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    assert done.stdout.strip() == "[]"
