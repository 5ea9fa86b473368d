"""The command line as a process: interrupts, limits on files, pipes."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankgrad.training import RunFolder

COMMAND = [sys.executable, "-m", "rankgrad"]


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        **options,
    )


def test_interrupted_training_goes_on(folder: Path, tmp_path: Path):
    run = tmp_path / "run"
    arguments = ["train", folder, "-o", run, "--model", "mlp(hidden=[8])", "--device", "cpu"]
    process = start(*arguments, "--epochs", 100000, "--patience", "none")
    until = time.monotonic() + 60
    while not (run / "last").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.count("--resume") == 1
    command = shlex.split(err.splitlines()[-1].split("to go on: ")[1])
    epochs = ["--epochs", "100000", "--patience", "none"]
    assert command == ["rankgrad", *map(str, arguments), *epochs, "--resume"]
    assert RunFolder.open(run).metadata["command"] == shlex.join(command[:-1])
    assert "Traceback" not in err
    assert len(RunFolder.open(run).history) >= 1


def limit() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_a_full_disk(folder: Path, tmp_path: Path):
    process = start("import", folder / "train.txt", "-o", tmp_path / "store", preexec_fn=limit)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert err.splitlines()[-1].startswith("rankgrad: ")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_reader_that_leaves(folder: Path):
    process = start("losses", "--json")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(timeout=60)
