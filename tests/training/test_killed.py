import os
import random
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_killed_at_any_moment_and_resumed_the_result_is_the_same_to_the_last_bit(tmp_path):
    seed = str(random.randrange(10**6))
    paths = [str(TESTS), str(TESTS.parent / "src")]
    done = subprocess.run(
        [sys.executable, str(TESTS / "training" / "killed.py"), str(tmp_path), seed],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-3000:]}"
    assert int(done.stdout) >= 5
