"""Real data beside the project, for the tests that use it."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

_SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks a real data set by name, or skips the test where it is not there."""
    unpacked = tmp_path_factory.mktemp("real")

    def folder(name: str) -> Path:
        archive = _SHARED / f"{name}.tar.xz"
        if not archive.is_file():
            pytest.skip(f"{name} is not beside the project")
        if not (unpacked / name).exists():
            with tarfile.open(archive) as tar:
                tar.extractall(unpacked, filter="data")
        return unpacked / name

    return folder
