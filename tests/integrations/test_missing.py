"""Integrations whose package is not installed say how to install it."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "src" / "rankgrad" / "integrations"


@pytest.mark.parametrize("name", ["torchmetrics", "pyterrier"])
def test_the_install_line_is_printed(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    spec = importlib.util.spec_from_file_location(f"without_{name}", FOLDER / f"{name}.py")
    with pytest.raises(ImportError, match=rf'pip install "rankgrad\[{name}\]"'):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
