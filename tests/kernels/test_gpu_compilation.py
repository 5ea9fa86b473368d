"""Every GPU kernel compiles for sm_90, which needs no GPU. Interpreted kernels check no types."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("numba")  # where fused losses are asked what they are, on CPUs

from rankgrad.kernels import gpu

LAUNCHED = re.compile(r"^@cached_launch\n@triton\.jit[^\n]*\ndef (\w+)\(", re.MULTILINE)
HERE = Path(__file__).parent


def launched_kernels():
    """The module and name of each kernel that losses and metrics launch."""
    for source in Path(gpu.__path__[0]).glob("*.py"):
        for name in LAUNCHED.findall(source.read_text()):
            yield source.stem, name


def test_every_kernel_compiles():
    done = subprocess.run(
        [sys.executable, HERE / "compile_for_gpu.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert [line for line in lines if len(line) > 2] == []
    assert set(launched_kernels()) - {tuple(line) for line in lines} == set()
