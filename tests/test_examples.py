"""The examples run and learn, and what the pages show of them is what is in them."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"plain_loop": "plain_loop.md", "lightning_module": "lightning.md"}


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_plain_loop():
    before, after = load("plain_loop").train(epochs=4)
    assert after > before + 0.05


@pytest.mark.filterwarnings("ignore")  # Lightning warns of few workers and of other packages
def test_lightning():
    pytest.importorskip("pytorch_lightning")
    pytest.importorskip("torchmetrics")
    before, after = load("lightning_module").train(epochs=2)
    assert after > before + 0.05


def plain(code):
    """Lines without their indentation and empty ones: pages show methods without their class."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


@pytest.mark.parametrize("name", PAGES)
def test_pages_show_the_examples(name):
    code = (ROOT / "examples" / f"{name}.py").read_text()
    page = (ROOT / "docs" / PAGES[name]).read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        assert plain(block) in plain(code)
