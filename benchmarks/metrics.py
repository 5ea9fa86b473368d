"""Exact metrics of 10,000 lists beside pytrec_eval's and ranx's, in one run.

    python benchmarks/metrics.py
    python benchmarks/metrics.py --lists 1000 --items 20 400 --repeats 9

Each is given its own data structures ready-made, so only the evaluation is timed: flat tensors and
offsets for rankgrad, dictionaries and an evaluator for pytrec_eval, Qrels and Run for ranx (which
sorts a run when it first evaluates it; that is timed, and the part without it as well). All three
must agree. ranx and pytrec_eval are left out where they are not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rankgrad import kernels, metrics

OURS = ("ndcg@10(gain=linear)", "ap", "rr", "precision@10", "recall@10")
TREC = ("ndcg_cut_10", "map", "recip_rank", "P_10", "recall_10")
RANX = ("ndcg@10", "map", "mrr", "precision@10", "recall@10")


def lists(count: int, fewest: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores without ties, labels with about WEB30K's frequencies, and offsets."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(fewest, most + 1, (count,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    items = int(offsets[-1])
    frequencies = torch.tensor([0.515, 0.325, 0.134, 0.019, 0.007])
    labels = torch.multinomial(frequencies, items, replacement=True, generator=generator)
    return torch.randperm(items, generator=generator).double(), labels, offsets


def dictionaries(values: Tensor, offsets: Tensor) -> dict[str, dict[str, Any]]:
    """The same by query and document."""
    flat, bounds = values.tolist(), offsets.tolist()
    return {
        f"q{b:06}": {f"d{i - first}": flat[i] for i in range(first, bounds[b + 1])}
        for b, first in enumerate(bounds[:-1])
    }


def seconds(work: Callable[[], Any], repeats: int, before: Callable[[], Any] | None = None) -> Any:
    """The median time of some work and its last result; ``before`` is not timed."""
    times, result = [], None
    for _ in range(repeats + 1):  # the first is a warm-up
        if before is not None:
            before()
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]), result


def ours(scores: Tensor, labels: Tensor, offsets: Tensor) -> list[float]:
    found = metrics.evaluate(scores, labels, offsets=offsets, metrics=OURS)
    return [found[name] for name in OURS]


def with_pytrec_eval(truth: Any, run: Any, repeats: int) -> tuple[float, list[float]]:
    import pytrec_eval

    evaluator = pytrec_eval.RelevanceEvaluator(truth, {"ndcg_cut.10", "map", "recip_rank", "P.10",
                                                       "recall.10"})  # fmt: skip
    time_, found = seconds(lambda: evaluator.evaluate(run), repeats)
    return time_, [statistics.fmean(values[name] for values in found.values()) for name in TREC]


def with_ranx(truth: Any, run: Any, repeats: int) -> tuple[float, float, list[float]]:
    import ranx

    qrels, ranking = ranx.Qrels(truth), ranx.Run(run)

    def forget() -> None:
        ranking.sorted = False

    def work() -> Any:
        return ranx.evaluate(qrels, ranking, list(RANX), save_results_in_run=False)

    whole, found = seconds(work, repeats, forget)
    sorted_, _ = seconds(work, repeats)
    return whole, sorted_, [float(found[name]) for name in RANX]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lists", type=int, default=10_000)
    parser.add_argument("--items", type=int, nargs=2, default=(20, 200), help="fewest and most")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    given = lists(arguments.lists, *arguments.items)
    print(f"{arguments.lists:,} lists, {len(given[0]):,} items, {arguments.threads} threads")
    mine, values = seconds(lambda: ours(*given), arguments.repeats)
    print(f"{'rankgrad':<24} {1e3 * mine:>9.1f} ms")
    with kernels.using("eager"):
        eager, _ = seconds(lambda: ours(*given), max(1, arguments.repeats // 3))
    rows = [("rankgrad, eager", eager, values)]
    truth, run = dictionaries(given[1], given[2]), dictionaries(given[0], given[2])
    if importlib.util.find_spec("pytrec_eval"):
        rows.append(("pytrec_eval", *with_pytrec_eval(truth, run, arguments.repeats)))
    if importlib.util.find_spec("ranx"):
        whole, without_sort, found = with_ranx(truth, run, arguments.repeats)
        rows += [("ranx", whole, found), ("ranx, sorted before", without_sort, found)]
    for name, time_, found in rows:
        print(f"{name:<24} {1e3 * time_:>9.1f} ms {time_ / mine:>7.1f}×", flush=True)
        torch.testing.assert_close(torch.tensor(found), torch.tensor(values))


if __name__ == "__main__":
    main()
