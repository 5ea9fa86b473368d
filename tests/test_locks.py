"""One process at a time holds a folder, and none for longer than it lives."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys

import pytest

from rankgrad import _locks

HOLD = """
import sys, time
sys.path.insert(0, {source!r})
from pathlib import Path
from rankgrad import _locks
with _locks.hold(Path({path!r}), "training"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_holder_is_named_and_one_that_is_killed_holds_nothing(tmp_path):
    path = tmp_path / "run.lock"
    source = os.path.dirname(os.path.dirname(_locks.__file__))
    program = HOLD.format(source=source, path=str(path))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"held\n"
            named = rf"is training in .* \(process {other.pid} on {socket.gethostname()} since 20"
            for attempt in (
                _locks.hold(path, "training").__enter__,
                lambda: _locks.check(path, "training"),
            ):
                with pytest.raises(_locks.LockedError, match=named):
                    attempt()
        finally:
            other.kill()
    assert path.exists()  # what it left is in nobody's way
    with (
        _locks.hold(path, "training"),
        pytest.raises(_locks.LockedError, match=f"{os.getpid()} on"),
    ):
        _locks.check(path, "training")
    assert not path.exists()
    _locks.check(path, "training")


def test_a_file_that_its_holder_removes_is_made_again(tmp_path, monkeypatch):
    path, take = tmp_path / "lock", _locks._try_lock

    def late(file, where, **options):
        monkeypatch.setattr(_locks, "_try_lock", take)
        path.unlink()  # the holder before lets go between our opening of the file and our lock
        return take(file, where, **options)

    monkeypatch.setattr(_locks, "_try_lock", late)
    with _locks.hold(path, "training"), pytest.raises(_locks.LockedError):
        _locks.check(path, "training")


def test_others_together_keep_one_alone_out(tmp_path):
    path = tmp_path / "lock"
    with (
        _locks.shared(path),
        _locks.shared(path),
        pytest.raises(_locks.LockedError, match="is comparing in"),
    ):
        _locks.check(path, "comparing")
    with _locks.hold(path, "comparing"):
        pass


def test_a_file_system_without_locks_is_said_and_stops_nobody(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    said = pytest.warns(UserWarning, match=r"has no locks .*No locks available.*: take care")
    with said, _locks.hold(tmp_path / "lock", "training"):
        pass
