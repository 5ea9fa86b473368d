"""The examples of CONTRIBUTING.md run, each in its own process: they register what they make."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
EXAMPLES = [
    code for code in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "import" in code
]


@pytest.mark.parametrize("code", EXAMPLES, ids=["metric", "relaxation"])
def test_the_examples_run(code):
    code += "\nfrom rankgrad.losses.relaxed import grid_losses\nprint(len(grid_losses()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > len(default_grid())


def default_grid():
    from rankgrad.losses.relaxed import grid_losses

    return grid_losses()
