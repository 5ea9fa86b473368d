"""Training and prediction beside busy neighbors, against the same on idle cores.

    python benchmarks/threads.py --data MQ2008 --fold 1 --out runs/bench/threads.json

Each program runs on two cores, alone and beside two processes that compute all the time, by turns;
the table has the smallest time of each and their ratio. With two neighbors on two cores, a program
of one thread gets two thirds of a core: the least that is possible is 1.5. The goal is 2.5.

LightGBM trains beside it, for comparison. ``spinning`` is rankgrad as it would be with two threads
that spin, by ``OMP_WAIT_POLICY=active``; what takes more than ``--limit`` seconds is cut off there.
Cores that others use too are not idle: take the ratios of a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GOAL = 2.5
NEIGHBORS = 2
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10**6))"

TRAIN = """
import sys, time
from rankgrad.data import load_splits
from rankgrad.training import Settings, fit
from rankgrad import _threads
if {spinning}:
    _threads._MIN_PARALLEL_WORK = 0.0
found = load_splits(sys.argv[1], int(sys.argv[2]) or None)
options = dict(loss={loss!r}, device="cpu", patience=None)
fit(Settings(**options, epochs=1), found["train"], found["vali"])
began = time.perf_counter()
fit(Settings(**options, epochs=15), found["train"], found["vali"])
print(time.perf_counter() - began)
"""

PREDICT = """
import sys, time
from rankgrad.data import load_splits
from rankgrad.training import Settings, fit
found = load_splits(sys.argv[1], int(sys.argv[2]) or None)
test = found["test"]
model = fit(Settings(device="cpu", epochs=1), found["train"], found["vali"]).model
model.predict(test.features, test.offsets)
began = time.perf_counter()
for start, stop in zip(test.offsets[:-1], test.offsets[1:], strict=True):
    model.predict(test.features[start:stop])
print(time.perf_counter() - began)
"""

LIGHTGBM = """
import sys, time
import lightgbm
from rankgrad.data import load_splits
train = load_splits(sys.argv[1], int(sys.argv[2]) or None)["train"]
data = lightgbm.Dataset(train.features, train.labels, group=train.lengths).construct()
options = dict(objective="lambdarank", num_threads=2, verbose=-1)
lightgbm.train(options, data, 5)
began = time.perf_counter()
lightgbm.train(options, data, 300)
print(time.perf_counter() - began)
"""

PROGRAMS = {
    "train (softmax)": TRAIN.format(loss="softmax", spinning=False),
    "train (neural_ndcg)": TRAIN.format(loss="neural_ndcg", spinning=False),
    "predict, list by list": PREDICT,
    "LightGBM": LIGHTGBM,
    "train, two threads, spinning": TRAIN.format(loss="softmax", spinning=True),
}


@contextmanager
def neighbors(number: int) -> Iterator[None]:
    """Processes that compute all the time."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def seconds(name: str, arguments: list[str], limit: float) -> float:
    """The time that a program says it took; ``limit`` where it was cut off."""
    policy = {"OMP_WAIT_POLICY": "active"} if "spinning" in name else {}
    command = [sys.executable, "-c", PROGRAMS[name], *arguments]
    try:
        done = subprocess.run(
            command, env=os.environ | policy, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return limit
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each program."""
    times: dict[str, dict[str, list[float]]] = {
        name: {"idle": [], "busy": []} for name in options.programs
    }
    arguments = [str(options.data), str(options.fold)]
    for _ in range(options.repeats):
        for state, number in (("idle", 0), ("busy", NEIGHBORS)):
            with neighbors(number):
                for name in options.programs:
                    times[name][state].append(seconds(name, arguments, options.limit))
    return [
        {
            "program": name,
            "idle": min(found["idle"]),
            "busy": min(found["busy"]),
            "ratio": min(found["busy"]) / min(found["idle"]),
            "cut off": min(found["busy"]) >= options.limit,
        }
        for name, found in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="a folder with train and vali")
    parser.add_argument("--fold", type=int, default=0, help="0 where there are no folds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one program")
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--out", type=Path, help="JSON")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # two cores, whatever the machine has; children inherit
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    rows = measure(options)
    load = os.getloadavg()[0]
    print(f"{'':30} {'idle s':>8} {'busy s':>8} {'ratio':>6}")
    for row in rows:
        over = ">" if row["cut off"] else " "
        print(
            f"{row['program']:30} {row['idle']:8.2f} {over}{row['busy']:7.2f} {row['ratio']:6.2f}"
        )
    print(f"goal: at most {GOAL}; load average at the end {load:.1f}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        found = {"neighbors": NEIGHBORS, "goal": GOAL, "load": load, "rows": rows}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
