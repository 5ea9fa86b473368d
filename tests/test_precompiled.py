"""Compiled code that comes with the package is used where it fits, and nowhere else."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

from rankgrad import _linking, _precompiled

pytestmark = pytest.mark.skipif(
    _precompiled.host_level() is None or not _linking.AVAILABLE,
    reason="there is no compiled code for this CPU or this version of Numba",
)
SOURCE = """
from rankgrad._compilation import compile_cached

@compile_cached
def change(x):
    return {change}
"""


@pytest.fixture(autouse=True)
def without_bytecode(monkeypatch):
    """Bytecode of a file that changes within a second would be that of the former one."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A module, an archive of its compiled code, and an empty cache."""
    monkeypatch.setattr(_precompiled, "FOLDER", tmp_path)
    (tmp_path / "module.py").write_text(SOURCE.format(change="2 * x"))
    entry, level = load(tmp_path), _precompiled.host_level()
    assert level is not None and entry(2) == 4
    with zipfile.ZipFile(_precompiled.archive_path(level), "w") as archive:
        for arguments in entry.signatures:
            name = _precompiled.member_name(entry.py_func, arguments, level)
            archive.writestr(name, _linking.machine_code(entry, arguments, level))
    clear_cache(tmp_path)
    return tmp_path


def load(folder: Path) -> Any:
    """Import the module as a new process would: nothing is compiled yet."""
    _precompiled._digest.cache_clear()
    spec = importlib.util.spec_from_file_location("precompiled_module", folder / "module.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.change


def clear_cache(folder: Path) -> list[Path]:
    found = list((folder / "__pycache__").glob("*.nb*"))
    for path in found:
        path.unlink()
    return found


def test_code_of_the_package_is_used(folder):
    change = load(folder)
    assert change(3) == 6
    assert change.stats.cache_hits
    assert not clear_cache(folder)  # and is not copied to the cache
    assert change(0.5) == 1  # other types are compiled
    assert clear_cache(folder)


@pytest.mark.parametrize("other", ["sources", "numba", "llvmlite", "python", "bounds"])
def test_code_made_of_or_by_something_else_is_not_used(folder, monkeypatch, other):
    if other == "sources":
        (folder / "another.py").write_text("")
    elif other == "python":
        path = _precompiled.archive_path(_precompiled.host_level())
        monkeypatch.setattr(_precompiled.sys, "abiflags", "t", raising=False)
        path.rename(_precompiled.archive_path(_precompiled.host_level()))
    elif other == "bounds":
        monkeypatch.setattr(_precompiled._config, "BOUNDSCHECK", 1)
    else:
        monkeypatch.setattr(getattr(_precompiled, other), "__version__", "0.0")
    change = load(folder)
    assert change(3) == 6
    assert not change.stats.cache_hits


@pytest.mark.parametrize("level", ["x86-64-v3", None])
def test_another_level_of_cpus_has_code_of_its_own(folder, monkeypatch, level):
    monkeypatch.setattr(_precompiled, "host_level", lambda: level)
    change = load(folder)
    assert change(3) == 6
    assert bool(change.stats.cache_hits) == _precompiled.archive_path(str(level)).exists()


def test_a_changed_function_is_compiled(folder):
    (folder / "module.py").write_text(SOURCE.format(change="5 * x"))
    assert load(folder)(3) == 15


def test_a_damaged_archive_is_warned_of(folder):
    path = _precompiled.archive_path(_precompiled.host_level())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match=r"compiled code in .* is damaged .*: install rankgrad"):
        assert load(folder)(3) == 6


def test_the_kernels_are_in_the_package():
    import torch

    from rankgrad.losses import losses

    if not _precompiled.archive_path(_precompiled.host_level()).exists():
        pytest.skip("no archive: `make kernels` writes it")
    scores = torch.zeros(4, requires_grad=True)
    losses.get("neural_ndcg")(scores, torch.tensor([1.0, 0, 2, 0])).backward()
    called = [(entry, each) for entry in _linking.entry_points for each in entry.signatures]
    kernels = [
        (e, types) for e, types in called if e.__module__ == "rankgrad.kernels.cpu._sinkhorn"
    ]
    assert kernels
    for entry, types in kernels:
        assert _precompiled.read(entry.py_func, types), f"{entry}: run `make kernels` again"
