"""``rankgrad train --devices 2`` as processes: Ctrl-C to the first, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankgrad.training import RunFolder

EPOCHS = 100000

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="finds processes in /proc"
)


@pytest.fixture
def training(folder: Path, tmp_path: Path):
    """A training in two processes that has saved its first epoch, and its run folder."""
    run = tmp_path / "run"
    options = ["--model", "mlp(hidden=[8])", "--device", "cpu", "--devices", "2"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rankgrad", "train", str(folder), "-o", str(run), *options),
            *("--epochs", str(EPOCHS), "--patience", "none"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    until = time.monotonic() + 120
    while not (run / "last").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    yield process, run
    process.kill()
    process.wait()


def children_of(pid: int) -> list[int]:
    """The processes that train, in the order they were started."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            fields = (each / "stat").read_text().rpartition(")")[2].split()
            command = (each / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and b"spawn_main" in command:
            found.append(int(each.name))
    return sorted(found)


@pytest.mark.slow
def test_an_interrupt_of_the_first_process_alone_stops_and_saves_all(training):
    process, run = training
    # A terminal interrupts the whole group, of which the others are no part.
    assert os.getpgid(process.pid) not in map(os.getpgid, children_of(process.pid))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    said, hint = err.splitlines()  # no banners and no warnings of libraries beside these
    assert said.startswith("Stopped after epoch ")
    assert hint.startswith("rankgrad: interrupted and saved; to go on: ")
    assert 1 <= len(RunFolder.open(run).history) < EPOCHS


@pytest.mark.slow
def test_a_killed_process_is_said_in_one_sentence(training):
    process, _ = training
    first, second = children_of(process.pid)
    os.kill(second, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    (line,) = err.splitlines()
    assert line.startswith("rankgrad: process 2 of 2 was killed by signal 9")
    assert line.endswith("--resume goes on from its last epoch")
    assert not Path(f"/proc/{first}").exists()
