"""Functions that compiled code calls are compiled as part of it, once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("numba")

from numba.core.codegen import JITCodeLibrary

from rankgrad import _linking, _precompiled

CALLEE = """
from rankgrad._compilation import compile_cached

@compile_cached
def change(x):
    return {change}
"""
CALLER = """
from callee_module import change
from rankgrad._compilation import compile_cached

@compile_cached
def change_each(values):
    for i in range(values.size):
        values[i] = change(values[i])
"""


@pytest.fixture(autouse=True)
def without_bytecode(monkeypatch):
    """Bytecode of a file that changes within a second would be that of the former one."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import two files as a new process would: nothing is compiled yet."""
    _precompiled._digest.cache_clear()
    for name in ("callee_module", "caller_module"):
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


def write(folder: Path, change: str) -> None:
    (folder / "callee_module.py").write_text(CALLEE.format(change=change))
    caller = folder / "caller_module.py"
    if not caller.exists():
        caller.write_text(CALLER)


@pytest.mark.parametrize("available", [True, False])
def test_a_function_is_called_from_python_and_from_compiled_code(tmp_path, monkeypatch, available):
    monkeypatch.setattr(_linking, "AVAILABLE", _linking.AVAILABLE and available)
    write(tmp_path, "2.0 * x")
    module = load(tmp_path, monkeypatch)
    values = np.array([1.0, 2.0])
    module.change_each(values)
    assert values.tolist() == [2.0, 4.0]
    assert module.change(4.0) == 8.0


def test_machine_code_is_made_of_what_python_calls(tmp_path, monkeypatch):
    if not _linking.AVAILABLE:
        pytest.skip("this version of Numba compiles functions one by one")
    made: list[str] = []
    emit = JITCodeLibrary._finalize_specific

    def emitted(library: JITCodeLibrary) -> None:
        made.append(library.name)
        emit(library)

    monkeypatch.setattr(JITCodeLibrary, "_finalize_specific", emitted)
    write(tmp_path, "3.0 * x")
    load(tmp_path, monkeypatch).change_each(np.array([1.0]))
    assert made == ["change_each"]


def test_a_change_of_a_function_that_is_called_is_compiled(tmp_path, monkeypatch):
    for factor, hits in ((2.0, 0), (2.0, 1), (5.0, 0)):
        write(tmp_path, f"{factor} * x")
        module = load(tmp_path, monkeypatch)
        values = np.array([1.0])
        module.change_each(values)
        assert values.tolist() == [factor]
        assert sum(module.change_each.stats.cache_hits.values()) == hits
