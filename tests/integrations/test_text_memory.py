"""The benchmark of long lists of documents runs, on a tiny model."""

import json
import runpy
from pathlib import Path

from rankgrad import kernels

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "text_memory.py"


def test_the_benchmark_of_long_lists(tmp_path, monkeypatch):
    out = tmp_path / "found.json"
    given = ["text_memory.py", "--device", "cpu", "--tiny", "--seconds", "0", "--out", str(out)]
    monkeypatch.setattr("sys.argv", given)
    with kernels.using("eager"):  # nothing to compile
        runpy.run_path(str(BENCHMARK), run_name="__main__")
    found = json.loads(out.read_text())
    measured = [(row["method"], row["documents"]) for row in found["rows"] if "steps" in row]
    both = ("cached", "sentence-transformers")
    assert measured == [("plain", 4), *((name, n) for n in (4, 16, 50) for name in both)]
    assert found["ratios"]["documents"] == 50
    assert [row["longest_list"] for row in found["rows"][-2:]] == [64, 64]
