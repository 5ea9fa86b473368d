"""LETOR parsing against scikit-learn's, on one generated file, in one run.

    python benchmarks/parse.py --rows 20000

The file has MSLR-WEB's look: 136 features to a row, a third of them 0, the others whole numbers and
decimals of up to six places, one in ten negative. The readers take turns, so that what else the
computer does hits all of them; the table has the median of each. scikit-learn is timed with and
without the qids, the reading of which takes it a time that grows with the square of the rows.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file  # type: ignore[import-untyped]

from rankgrad.data import letor

COUNT, DECIMAL, LOG = 0, 1, 2  # kinds of number


def generate(path: Path, rows: int, seed: int) -> None:
    """Write a file of MSLR-like rows, about 120 to a query.

    As there, 125 features are 25 kinds of number for each of five parts of a page (body, anchor,
    title, address, all), of which the anchor and the address are often without any match, and 11
    are counts of other things.
    """
    random = np.random.default_rng(seed)
    kinds = np.repeat([COUNT, DECIMAL, LOG], [10, 12, 3]).repeat(5)
    kinds = np.append(kinds, [COUNT] * 11)
    part = np.append(np.tile(np.arange(5), 25), [4] * 11)
    scales = random.lognormal(1, 2, len(kinds))
    labels = random.choice(5, rows, p=[0.52, 0.32, 0.13, 0.02, 0.01])
    with path.open("w") as file:
        for row in range(rows):
            matched = random.random(5) > [0.0, 0.75, 0.05, 0.5, 0.0]
            shown = (matched[part] & (random.random(len(kinds)) > 0.1)) | (kinds == LOG)
            values = (random.exponential(scales) * shown).tolist()
            cells = [
                f"{number}:{as_text(value, kind)}"
                for number, (value, kind) in enumerate(zip(values, kinds, strict=True), 1)
            ]
            file.write(f"{labels[row]} qid:{1 + row // 120} {' '.join(cells)} \n")


def as_text(value: float, kind: int) -> str:
    """A count, a decimal of up to six places, or a negative one."""
    if kind == COUNT or value == 0:
        return str(round(value))
    return f"{-value if kind == LOG else value:.6f}".rstrip("0").rstrip(".")


def check(path: Path) -> None:
    """Both readers must agree, value for value."""
    matrix, labels, qids = load_svmlight_file(str(path), query_id=True)
    dataset = letor.read(path)
    assert np.array_equal(dataset.features, matrix.toarray().astype(np.float32))
    assert np.array_equal(dataset.labels, labels.astype(np.float32))
    assert np.array_equal(np.repeat(dataset.qids.astype(int), np.diff(dataset.offsets)), qids)


def timed(readers: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each reader; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(repeats):
        for name, reader in readers.items():
            start = time.perf_counter()
            reader()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    """Generate, check, time, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the file (20000)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each reader (5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the file's content (0)")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "generated.txt")
        generate(path, arguments.rows, arguments.seed)
        size = path.stat().st_size / 1e6
        print(f"{arguments.rows} rows, {size:.1f} MB, median of {arguments.repeats}")
        check(path)
        cores = letor.cores()
        readers: dict[str, Callable[[], object]] = {
            "scikit-learn": lambda: load_svmlight_file(str(path), query_id=True),
            "scikit-learn, no qids": lambda: load_svmlight_file(str(path)),
            "rankgrad, 1 thread": lambda: letor.read(path, threads=1),
            f"rankgrad, {cores} threads": lambda: letor.read(path, threads=cores),
        }
        seconds = timed(readers, arguments.repeats)

    base = seconds["scikit-learn"]
    bare = seconds["scikit-learn, no qids"]
    print(f"{'':24}{'seconds':>9}{'MB/s':>8}{'x sklearn':>11}{'x no qids':>11}")
    for name, value in seconds.items():
        row = f"{value:9.3f}{size / value:8.0f}{base / value:11.1f}{bare / value:11.1f}"
        print(f"{name:24}{row}")


if __name__ == "__main__":
    main()
