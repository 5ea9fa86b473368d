import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from losses import averaged

from rankgrad import losses

TESTS = Path(__file__).resolve().parents[1]


def test_gradients_of_two_processes_are_those_of_one_with_all_lists(tmp_path):
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    started = [
        subprocess.Popen(
            [sys.executable, averaged.__file__, str(tmp_path), str(rank), "2"],
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for spec, parts, weighted in averaged.cases():
        alone = averaged.gradient(averaged.network(), losses.get(spec), 0, 8, weighted)
        case = f"{spec} {parts} {weighted}"
        one, other = first[f"{case} mean"], second[f"{case} mean"]
        assert one["gradient"] == other["gradient"]
        assert one["gradient"][0] == pytest.approx(alone["gradient"][0], rel=1e-12)
        assert (one["loss"] + other["loss"]) / 2 == pytest.approx(alone["loss"], rel=1e-12)
        # Each with the mean over its own lists gives something else.
        assert first[f"{case} own mean"]["gradient"][0] != pytest.approx(alone["gradient"][0])
