"""Ctrl-C in the first moments of a command: exit code 130, one line, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("module", ["typer.models", "torch.types"])
def test_while_importing(module: str, tmp_path: Path):
    path = tmp_path / "data.txt"
    path.write_text("1 qid:1 1:1\n")
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "rankgrad", "evaluate", str(path), str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # a line for each module, once it is imported
            if line.rstrip().endswith(f" {module}"):
                process.send_signal(signal.SIGINT)
                break
        rest = [line for line in process.stderr if not line.startswith("import time:")]
    assert process.returncode == 130, "".join(rest)
    assert len(rest) == 1, "".join(rest)
    assert rest[0].startswith("rankgrad: interrupted")
