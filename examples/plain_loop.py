"""A ranker trained in a plain PyTorch loop: your network and data, a loss and metrics of rankgrad.

python examples/plain_loop.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from rankgrad import evaluate, losses
from rankgrad.data import Dataset, synthetic

List = tuple[Tensor, Tensor]


def lists_of(data: Dataset) -> list[List]:
    """Features ``[n, f]`` and labels ``[n]`` of each list: yours come from anywhere."""
    sizes = data.lengths.tolist()
    features, labels = torch.from_numpy(data.features), torch.from_numpy(data.labels)
    return list(zip(features.split(sizes), labels.split(sizes), strict=True))


def collate(lists: list[List]) -> tuple[Tensor, Tensor, Tensor]:
    """Lists of any length as flat tensors: list b is ``offsets[b]:offsets[b + 1]``. No padding."""
    features, labels = zip(*lists, strict=True)
    offsets = torch.tensor([0, *map(len, labels)]).cumsum(0)
    return torch.cat(features), torch.cat(labels), offsets


def train(epochs: int = 10) -> tuple[float, float]:
    """Train; the validation NDCG@10 before and after."""
    torch.manual_seed(0)
    data = [
        lists_of(synthetic.make(n, features=16, split=s)) for n, s in ((200, "train"), (50, "vali"))
    ]
    batches = DataLoader(data[0], batch_size=16, shuffle=True, collate_fn=collate)
    validation = collate(data[1])
    network = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    loss = losses.get("neural_ndcg@10(temperature=exponential(start=10, end=0.1))")
    before = quality(network, validation)
    for epoch in range(epochs):
        loss.progress = epoch / epochs  # moves the temperature along its schedule
        for features, labels, offsets in batches:
            scores = network(features).squeeze(-1)
            value = loss(scores, labels, offsets=offsets)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        now = quality(network, validation)
        print(f"epoch {epoch + 1}: loss {value.item():.4f}, ndcg@10 {now:.4f}")
    return before, quality(network, validation)


def quality(network: nn.Module, lists: tuple[Tensor, Tensor, Tensor]) -> float:
    """The exact NDCG@10 of a network on some lists."""
    features, labels, offsets = lists
    network.eval()
    with torch.no_grad():
        scores = network(features).squeeze(-1)
    network.train()
    return evaluate(scores, labels, offsets=offsets, metrics="ndcg@10")["ndcg@10"]


if __name__ == "__main__":
    train()
