"""Steps under DDP, as a program: averaged.py FOLDER RANK RANKS. The test starts it."""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rankgrad import losses

LOSSES = ("neural_ndcg", "ranknet")
PARTS = {"unequal": (5, 3), "one has nothing": (4, 4), "one has no list": (8, 0)}


def data():
    """Features, labels and weights of eight lists; no loss is defined on half of them."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(8, 6, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(1, 4, (8, 6), generator=generator).double()
    labels[[1, 4, 5, 6, 7]] = 0
    return features, labels, torch.rand(8, generator=generator, dtype=torch.float64)


def gradient(network, compute, first, last, weighted):
    """That of a network's weights by the loss of some lists, and the loss."""
    features, labels, weights = (x[first:last] for x in data())
    network.zero_grad()
    scores = network(features).squeeze(-1)
    value = compute(scores, labels, weights=weights if weighted else None)
    value.backward()
    return {"loss": value.item(), "gradient": next(network.parameters()).grad.tolist()}


def network():
    torch.manual_seed(0)
    return nn.Linear(3, 1, dtype=torch.float64)


def cases():
    return [(spec, parts, weighted) for spec in LOSSES for parts in PARTS for weighted in (0, 1)]


def main(folder, rank, ranks):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
    )
    parallel, found = DistributedDataParallel(network()), {}
    for spec, parts, weighted in cases():
        loss, first = losses.get(spec), sum(PARTS[parts][:rank])
        last = first + PARTS[parts][rank]

        def mean(*args, loss=loss, **options):
            return losses.distributed_mean(loss, *args, **options)

        for how, compute in {"mean": mean, "own mean": loss}.items():
            case = f"{spec} {parts} {weighted} {how}"
            found[case] = gradient(parallel, compute, first, last, weighted)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
