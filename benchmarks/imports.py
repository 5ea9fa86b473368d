"""What imports of rankgrad cost beyond PyTorch, and which packages they load.

    python benchmarks/imports.py [--source OTHER/src]

Each statement runs in processes of its own. Printed are seconds of CPU time, the least of several,
without those of importing PyTorch; and the packages that are loaded beside PyTorch's own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

STATEMENTS = (
    "import rankgrad",
    "from rankgrad import losses, metrics",
    "from rankgrad import Ranker",
    "from rankgrad import report",
    "import rankgrad.cli",
)
PROGRAM = """
import json, sys, time
sys.path.insert(0, {source!r})
{torch}
before, start = set(sys.modules), time.process_time()
{statement}
seconds = time.process_time() - start
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(json.dumps([seconds, sorted(loaded - set(sys.stdlib_module_names))]))
"""


def measure(statement: str, source: str, repeats: int) -> tuple[float, list[str]]:
    """CPU seconds of a statement and the packages it loads, PyTorch being there already."""
    light = statement in ("import rankgrad", "import rankgrad.cli")
    program = PROGRAM.format(
        source=source, torch="" if light else "import torch", statement=statement
    )
    runs = [
        json.loads(subprocess.check_output([sys.executable, "-c", program], text=True))
        for _ in range(repeats)
    ]
    hidden = {"rankgrad", "torch", "cython_runtime"}
    names = [name for name in runs[0][1] if name not in hidden and not name.startswith("_")]
    return min(seconds for seconds, _ in runs), names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[1] / "src"
    parser.add_argument("--source", default=str(default), help="the folder that has rankgrad")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for statement in STATEMENTS:
        seconds, names = measure(statement, options.source, options.repeats)
        print(f"{statement:<40} {seconds:6.3f} s  {' '.join(names)}")


if __name__ == "__main__":
    main()
