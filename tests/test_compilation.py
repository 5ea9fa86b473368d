"""Compiled code is cached where it can be, and the cache is neither required nor relied on."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("numba")

SOURCE = """
from rankgrad._compilation import compile_cached

@compile_cached
def add(x):
    return x + 1
"""


def load(path: Path) -> ModuleType:
    """Import a file as a new process would: nothing is compiled yet."""
    spec = importlib.util.spec_from_file_location("cached_module", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_parser_compiles_where_nothing_can_be_written():
    code = (
        f"import sys; sys.path[:0] = {sys.path}\n"
        "from numba.core.caching import CacheImpl; CacheImpl._locator_classes = []\n"
        "import numpy as np\n"
        "from rankgrad.data import _letor_kernel\n"
        "assert _letor_kernel.count_lines(np.array([10, 65, 10], np.uint8), 3) == 2\n"
        "assert not _letor_kernel.parse.stats.cache_path\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", ["empty", "cut", "flipped"])
def test_a_damaged_cache_is_compiled_again(tmp_path, kind, damage):
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    assert load(path).add(1) == 2
    (cached,) = (tmp_path / "__pycache__").glob(f"*.{kind}")
    content = bytearray(cached.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    flipped = bytes(content)
    cached.write_bytes({"empty": b"", "cut": flipped[:-7], "flipped": flipped}[damage])
    with pytest.warns(UserWarning, match=r"cache of compiled code in .* is damaged .* again"):
        assert load(path).add(1) == 2
    with warnings.catch_warnings():  # the next process finds a sound one
        warnings.simplefilter("error")
        again = load(path).add
        assert again(1) == 2
    assert again.stats.cache_hits


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    from rankgrad import _compilation

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    monkeypatch.setattr(_compilation._CheckedFiles, "_save_data", full)
    monkeypatch.setattr(_compilation._CheckedFiles, "_save_index", full)
    assert load(path).add(1) == 2
