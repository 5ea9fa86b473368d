"""Runs tests in several processes at once, where pytest-xdist is not installed.

``python tests/sharded.py --processes 8 --limit 150 tests/contract -k ndcg``

Tests of one parameter stay together, so that a kernel is compiled once. The last line printed is
the result of all processes together. This file is also the pytest plugin that picks a share.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUTCOMES = ("passed", "failed", "error", "skipped")
WRONG = ("failed", "error", "not run", "processes broken")


def pytest_addoption(parser):
    parser.addoption("--share", metavar="I/N", help="run the I-th of N parts, from 0")
    parser.addoption("--counts", metavar="FILE", help="write how many passed, failed, ... as JSON")


def pytest_collection_modifyitems(config, items):
    mine, of = map(int, config.getoption("--share").split("/"))
    groups = {}
    for item in items:
        groups.setdefault(_group(item), len(groups))
    items[:] = [item for item in items if groups[_group(item)] % of == mine]


def pytest_terminal_summary(terminalreporter, config):
    first = config.getoption("--share").startswith("0/")
    counts, ended = {}, set()
    for name in OUTCOMES:
        # What is said of whole files is said by every share.
        reports = terminalreporter.stats.get(name, ())
        ended.update(report.nodeid for report in reports if hasattr(report, "when"))
        counts[name] = sum(first or hasattr(report, "when") for report in reports)
    counts["not run"] = terminalreporter._session.testscollected - len(ended)
    Path(config.getoption("--counts")).write_text(json.dumps(counts))


def _group(item):
    """The parameters of a test, or the test itself where it has none."""
    spec = getattr(item, "callspec", None)
    return spec.id if spec else item.nodeid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--limit", type=float, help="stop after so many seconds")
    options, arguments = parser.parse_known_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        parts = [_start(i, options.processes, arguments, folder) for i in range(options.processes)]
        _end(parts, started, options.limit)
        total = collections.Counter()
        for i, share in enumerate(parts):
            total.update(_report(Path(folder, str(i)), share.returncode))
    words = ", ".join(f"{number} {name}" for name, number in total.items() if number)
    print(f"{words or 'nothing run'} in {time.monotonic() - started:.0f} s on {_device()}")
    return 0 if total["passed"] and not any(total[name] for name in WRONG) else 1


def _start(share: int, of: int, arguments: list[str], folder: str) -> subprocess.Popen[bytes]:
    files = Path(folder, str(share))
    files.mkdir()
    here = str(Path(__file__).parent)
    before = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([here, before] if before else [here])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "sharded", f"--share={share}/{of}"]
    # Many small tests: threads would only be in each other's way.
    return subprocess.Popen(
        [*command, f"--counts={files / 'counts'}", "-p", "no:cacheprovider", *arguments],
        stdout=(files / "output").open("wb"),
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )


def _end(parts: list[subprocess.Popen[bytes]], started: float, limit: float | None) -> None:
    """Wait for all; past the limit, interrupt them, so that they still say how far they came."""
    for share in parts:
        left = None if limit is None else max(0.0, started + limit - time.monotonic())
        with contextlib.suppress(subprocess.TimeoutExpired):
            share.wait(left)
    for share in parts:
        if share.poll() is None:
            share.send_signal(signal.SIGINT)
    until = time.monotonic() + 20
    for share in parts:
        with contextlib.suppress(subprocess.TimeoutExpired):
            share.wait(max(0.0, until - time.monotonic()))
        if share.poll() is None:
            share.kill()
            share.wait()


def _report(files: Path, code: int) -> dict[str, int]:
    """Print what a share said, unless all was well, and give its counts."""
    if code not in (0, 5):  # 5: there were fewer tests than parts
        print((files / "output").read_text(errors="replace"))
    counts = files / "counts"
    return json.loads(counts.read_text()) if counts.exists() else {"processes broken": 1}


def _device() -> str:
    import torch

    device = os.environ.get("RANKGRAD_TEST_DEVICE", "cpu")
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return f"{name}, PyTorch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
