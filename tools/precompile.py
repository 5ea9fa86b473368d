"""Compile the CPU kernels into the package: ``python tools/precompile.py [--all]``.

For this machine's level of x86-64, or for all levels. What the archives in the package hold already
is not compiled again. Kernels compile themselves where there is no archive, but then each new
machine and each process of the tests does so.
"""

import argparse
import multiprocessing
import os
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import torch

from rankgrad import Ranker, _linking, _precompiled, kernels
from rankgrad.data import letor
from rankgrad.integrations.lightgbm import objective
from rankgrad.integrations.torchmetrics import RankingMetric
from rankgrad.losses import losses
from rankgrad.metrics import evaluate, metrics
from rankgrad.serving._json_shape import JsonShape
from rankgrad.serving._served_ranker import ServedRanker

LABELS = torch.tensor([2.0, 0, 1, 1, 0, 0, 3, 1])
QUERIES = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])
OFFSETS = torch.tensor([0, 3, 4, 8])


def call(loss, dtype: torch.dtype, padded: bool) -> None:
    """A loss and its gradient."""
    random = torch.Generator().manual_seed(0)
    labels = LABELS.to(dtype)
    scores = torch.randn(8, dtype=dtype, generator=random, requires_grad=True)
    if padded:
        mask = torch.tensor([[True] * 4, [True, True, False, True]])
        value = loss(scores.view(2, 4), labels.view(2, 4), mask)
    else:
        value = loss(scores, labels, offsets=OFFSETS)
    value.backward()


def call_losses() -> None:
    """All that are registered, on scores of each dtype, flat and padded."""
    for dtype in (torch.float32, torch.float64):
        for name, padded in product(losses.names(), (False, True)):
            call(losses.get(name), dtype, padded)
        kernels.use("eager")
        call(losses.get("fastsort_ndcg"), dtype, True)  # isotonic regression
        kernels.use("auto")


def call_metrics() -> None:
    """All that are registered, on scores of each dtype, and what sorts and boosts."""
    for dtype in (torch.float32, torch.float64):
        scores = torch.arange(8, dtype=dtype)
        evaluate(scores, LABELS.to(dtype), offsets=OFFSETS, metrics=metrics.names())
    RankingMetric("ndcg")(torch.arange(8.0), LABELS, QUERIES.flip(0))
    objective("lambdarank")(LABELS.numpy(), torch.arange(8.0).double().numpy(), None, [3, 1, 4])


def fit_and_serve() -> None:
    """The parser, quantile normalization, the default model, and what prepares its inputs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_text("1 qid:1 1:0.5 2:1\n0 qid:1 1:0.25 # id\n")
        letor.read(path)
    features = torch.randn(8, 2).numpy()
    # The losses are compiled elsewhere: a small one.
    ranker = Ranker("mse", epochs=1).fit(features, LABELS.numpy(), qid=QUERIES.numpy())
    ranker.predict(features, qid=QUERIES.numpy())
    ServedRanker.of(ranker.model_, "a").score(features, OFFSETS.numpy())
    JsonShape.of(b'{"lists": []}')


def compile_for(level: str) -> dict[str, bytes]:
    """The code of every function called so far, by its name in the archive of a level."""
    path = _precompiled.archive_path(level)
    found: dict[str, bytes] = {}
    if path.exists():
        with zipfile.ZipFile(path) as old:
            found = {name: old.read(name) for name in old.namelist()}
    made = {}
    for entry_point in _linking.entry_points:
        for arguments in entry_point.signatures:
            name = _precompiled.member_name(entry_point.py_func, arguments, level)
            made[name] = found.get(name) or _linking.machine_code(entry_point, arguments, level)
    return made


def write(level: str, codes: dict[str, bytes]) -> None:
    """Write the archive of a level."""
    path = _precompiled.archive_path(level)
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".partial")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for name, code in codes.items():
            new.writestr(name, code)
    os.replace(temporary, path)
    print(f"{path.name}: {len(codes)} functions, {path.stat().st_size / 1e6:.1f} MB")


def part(calls: Sequence[Callable[[], None]], levels: Sequence[str]) -> list[dict[str, bytes]]:
    """Call, and give the code of what was called for each level."""
    for each in calls:
        each()
    return [compile_for(level) for level in levels]


def main() -> None:
    """Run the kernels in two processes, then write the archives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="for all levels, as wheels have it")
    host = _precompiled.host_level()
    levels = list(_precompiled.LEVELS) if parser.parse_args().all else [host] if host else []
    if not _linking.AVAILABLE:
        levels = []
    with multiprocessing.get_context("fork").Pool(2) as pool:
        calls = ([call_losses], [call_metrics, fit_and_serve])
        parts = pool.starmap(part, [(each, levels) for each in calls], chunksize=1)
    for level, *codes in zip(levels, *parts, strict=True):
        write(level, dict(sorted({**codes[0], **codes[1]}.items())))


if __name__ == "__main__":
    main()
