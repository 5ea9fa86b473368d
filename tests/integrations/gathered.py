"""A metric synchronized between processes: gathered.py FOLDER RANK RANKS. The test starts it."""

import json
import sys
from pathlib import Path

import torch

from rankgrad.integrations.torchmetrics import RankingMetric

# Items of each update, by process: query 1 is split between the processes.
UPDATES = {"unequal": ((8, 5, 3), (4,)), "one has none": ((12, 8), ())}


def data():
    generator = torch.Generator().manual_seed(0)
    preds = torch.rand(20, generator=generator)
    target = torch.randint(0, 3, (20,), generator=generator)
    return preds, target, torch.arange(20) // 6 % 3


def compute(sizes, first):
    metric = RankingMetric("ndcg@3")
    for size in sizes:
        part = slice(first, first + size)
        metric.update(*(values[part] for values in data()))
        first += size
    return metric


def main(folder, rank, ranks):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
    )
    found = {}
    for name, sizes in UPDATES.items():
        metric = compute(sizes[rank], sum(map(sum, sizes[:rank])))
        found[name] = [metric.compute().item()]
        metric._computed = None  # and again: the states of this process were brought back
        found[name].append(metric.compute().item())
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
