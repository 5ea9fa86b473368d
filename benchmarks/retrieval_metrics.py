"""RankingMetric beside torchmetrics' retrieval metrics, on the same items in one run.

    python benchmarks/retrieval_metrics.py
    python benchmarks/retrieval_metrics.py --items 20 200 --repeats 5

Both are given the same items in batches, queries mixed, and compute the mean over the queries;
the two take turns, and the table has the median of each. Only ``compute`` is timed: ``update``
stores items in both. Both run on one thread, and what is counted is its CPU time, so that other
processes do not matter. The values must agree. ``--json`` also writes the figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor
from torchmetrics import Metric, retrieval

from rankgrad.integrations.torchmetrics import RankingMetric

PAIRS = {
    "ndcg@10(gain=linear)": lambda: retrieval.RetrievalNormalizedDCG(top_k=10),
    "ap": retrieval.RetrievalMAP,
    "rr": retrieval.RetrievalMRR,
    "precision@10": lambda: retrieval.RetrievalPrecision(top_k=10),
    "recall@10": lambda: retrieval.RetrievalRecall(top_k=10),
    "hits@10": lambda: retrieval.RetrievalHitRate(top_k=10),
}


def draw(queries: int, fewest: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions above 0 without ties, binary targets and the query of each item, shuffled."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(fewest, most + 1, (queries,), generator=generator)
    indexes = torch.arange(queries).repeat_interleave(lengths)
    order = torch.randperm(len(indexes), generator=generator)
    preds = (torch.randperm(len(indexes), generator=generator).float() + 1) / len(indexes)
    target = (torch.rand(len(indexes), generator=generator) < 0.15).long()
    return preds, target, indexes[order]


def seconds(metric: Metric) -> tuple[float, float]:
    """The CPU time of one computation, and its value."""
    metric._computed = None  # torchmetrics remembers the last value
    start = time.process_time()
    value = metric.compute().item()
    return time.process_time() - start, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--items", type=int, nargs=2, default=(5, 40), help="fewest and most")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    given = draw(arguments.queries, *arguments.items)
    print(f"{arguments.queries:,} queries, {len(given[0]):,} items, shuffled")
    print(f"{'':22}{'rankgrad':>12}{'torchmetrics':>16}{'ratio':>9}")
    rows = {}
    for spec, make in PAIRS.items():
        both = (RankingMetric(spec), make())
        for metric in both:
            for batch in zip(*(values.split(100_000) for values in given), strict=True):
                metric.update(*batch)
        seconds(both[0])  # kernels are compiled
        times = [[seconds(metric) for metric in both] for _ in range(arguments.repeats)]
        ours, theirs = (statistics.median(t[at][0] for t in times) for at in (0, 1))
        torch.testing.assert_close(torch.tensor(times[0][0][1]), torch.tensor(times[0][1][1]))
        rows[spec] = {"rankgrad": ours, "torchmetrics": theirs, "ratio": theirs / ours}
        print(f"{spec:22}{1e3 * ours:9.1f} ms{1e3 * theirs:13.1f} ms{theirs / ours:8.0f}×")
    if arguments.json is not None:
        metadata = {
            "queries": arguments.queries,
            "items": len(given[0]),
            "repeats": arguments.repeats,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "seconds": rows,
        }
        arguments.json.write_text(json.dumps(metadata, indent=2) + "\n")


if __name__ == "__main__":
    main()
