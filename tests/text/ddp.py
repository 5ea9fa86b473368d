"""Gradient caching in one of two processes: ddp.py RANK FOLDER. The test starts it."""

import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from rankgrad import losses
from rankgrad.text import cached_backward, cached_scores

SIZES = (13, 4)  # documents of each process: four mini-batches and one


class Network(nn.Module):
    """With dropout, and a buffer, which DDP broadcasts in forward passes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 1))
        self.register_buffer("shift", torch.ones(4))

    def forward(self, batch):
        return self.layers(batch + self.shift).squeeze(-1)


def inputs(rank, step):
    torch.manual_seed(10 * step + rank)
    documents = torch.randn(SIZES[(rank + step) % 2], 4)
    return documents.split(4), lambda scores: losses.get("softmax")(
        scores, torch.arange(len(documents)) % 2
    )


def gradients(module):
    found = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    return found


def backward(module, rank, step):
    batches, loss = inputs(rank, step)
    cached_backward(module, batches, loss, no_sync=module.no_sync)


def scores(module, rank, step):
    batches, loss = inputs(rank, step)
    loss(cached_scores(module, batches, no_sync=module.no_sync)).backward()


def wanted(steps):
    """The mean over processes of the sum of one graph's gradients, without DDP."""
    sums = None
    for rank in range(2):
        network = Network()
        for step in steps:
            batches, loss = inputs(rank, step)
            loss(torch.cat([network(batch) for batch in batches])).backward()
        found = gradients(network)
        sums = found if sums is None else {name: sums[name] + found[name] for name in sums}
    return {name: total / 2 for name, total in sums.items()}


def main(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2
    )
    network = Network()
    module = DistributedDataParallel(network)
    results = {}
    backward(module, rank, 0)
    results["backward"], results["wanted backward"] = gradients(network), wanted([0])
    scores(module, rank, 1)
    results["scores"], results["wanted scores"] = gradients(network), wanted([1])
    with module.no_sync():
        backward(module, rank, 0)
    scores(module, rank, 1)
    results["accumulated"], results["wanted accumulated"] = gradients(network), wanted([0, 1])
    seen = []
    module.register_comm_hook(seen, counted)
    scores(module, rank, 0)
    results["synchronized"] = len(seen)
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


def counted(seen, bucket):
    """DDP's own mean over processes, noted."""
    seen.append(1)
    reduced = distributed.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return reduced.then(lambda future: future.value()[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
