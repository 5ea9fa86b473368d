"""Compile the CPU kernels into the package: ``python tools/precompile.py [--all]``.

It compiles for the x86-64 level of this machine, or for all levels. Code that the archives of the
package already have is not compiled again. Without an archive kernels are compiled at their first
call, by each new machine, and by each process of the tests.

This program calls everything that has a CPU kernel, so that Numba compiles it, and writes the
compiled code to the archives that :mod:`rankgrad._precompiled` reads.
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

#: Three small lists to call the kernels with.
LABELS = torch.tensor([2.0, 0, 1, 1, 0, 0, 3, 1])
QUERIES = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2])
OFFSETS = torch.tensor([0, 3, 4, 8])


def call(loss, dtype: torch.dtype, padded: bool) -> None:
    """Compute a loss and its gradient."""
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
    """Call all registered losses on scores of each dtype, flat and padded."""
    for dtype in (torch.float32, torch.float64):
        for name, padded in product(losses.names(), (False, True)):
            call(losses.get(name), dtype, padded)
        kernels.use("eager")
        call(losses.get("fastsort_ndcg"), dtype, True)  # the eager form has a kernel, too: isotonic
        kernels.use("auto")


def call_metrics() -> None:
    """Call all registered metrics on scores of each dtype, and the integrations with kernels."""
    for dtype in (torch.float32, torch.float64):
        scores = torch.arange(8, dtype=dtype)
        evaluate(scores, LABELS.to(dtype), offsets=OFFSETS, metrics=metrics.names())
    RankingMetric("ndcg")(torch.arange(8.0), LABELS, QUERIES.flip(0))
    objective("lambdarank")(LABELS.numpy(), torch.arange(8.0).double().numpy(), None, [3, 1, 4])


def fit_and_serve() -> None:
    """Call the parser, quantile normalization, the default model and the service."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_text("1 qid:1 1:0.5 2:1\n0 qid:1 1:0.25 # id\n")
        letor.read(path)
    features = torch.randn(8, 2).numpy()
    # call_losses compiles the losses: here a small one will do.
    ranker = Ranker("mse", epochs=1).fit(features, LABELS.numpy(), qid=QUERIES.numpy())
    ranker.predict(features, qid=QUERIES.numpy())
    medium = Ranker("mse", model="medium", epochs=1)
    medium.fit(features, LABELS.numpy(), qid=QUERIES.numpy())
    for fitted in (ranker, medium):
        ServedRanker.of(fitted.model_, "a").score(features, OFFSETS.numpy())
    JsonShape.of(b'{"lists": []}')


def compile_for(level: str) -> dict[str, bytes]:
    """The machine code of every function called so far, by its name in the archive of a level."""
    path = _precompiled.archive_path(level)
    packaged: dict[str, bytes] = {}
    if path.exists():
        with zipfile.ZipFile(path) as archive:
            packaged = {name: archive.read(name) for name in archive.namelist()}
    codes = {}
    for entry_point in _linking.entry_points:
        for arguments in entry_point.signatures:
            name = _precompiled.member_name(entry_point.py_func, arguments, level)
            codes[name] = packaged.get(name) or _linking.machine_code(entry_point, arguments, level)
    return codes


def write(level: str, codes: dict[str, bytes]) -> None:
    """Write the archive of a level."""
    path = _precompiled.archive_path(level)
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".partial")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, code in codes.items():
            archive.writestr(name, code)
    os.replace(temporary, path)
    print(f"{path.name}: {len(codes)} functions, {path.stat().st_size / 1e6:.1f} MB")


def call_and_compile(
    functions: Sequence[Callable[[], None]], levels: Sequence[str]
) -> list[dict[str, bytes]]:
    """Call functions, and return the code of all kernels that they called, for each level."""
    for function in functions:
        function()
    return [compile_for(level) for level in levels]


def main() -> None:
    """Run the kernels in two processes, then write the archives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="for all levels, as wheels have it")
    host = _precompiled.host_level()
    levels = [host] if host else []
    if parser.parse_args().all:
        levels = list(_precompiled.LEVELS)
    if not _linking.AVAILABLE:
        levels = []
    jobs = [([call_losses], levels), ([call_metrics, fit_and_serve], levels)]
    with multiprocessing.get_context("fork").Pool(len(jobs)) as pool:
        results = pool.starmap(call_and_compile, jobs, chunksize=1)
    for level, first, second in zip(levels, *results, strict=True):
        write(level, dict(sorted({**first, **second}.items())))


if __name__ == "__main__":
    main()
