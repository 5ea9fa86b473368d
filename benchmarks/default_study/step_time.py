"""How long a training step of the defaults takes on one thread of a CPU, with and without encoding.

Models take turns, so that a busy machine slows all of them; times are CPU times.
"""

from __future__ import annotations

import statistics
import time

import torch

from rankgrad.losses import losses
from rankgrad.models import TabM, models

MODELS = {
    "small": "small",
    "medium": "medium",
    "medium(heads=2)": "medium(heads=2)",
    "medium, ramps": "tabm(hidden=[256, 128], members=1, dropout=0.2, "
    "in_list=[rank, score, ties], bins=8)",
    "medium, no encoding": "tabm(hidden=[256, 128], members=1, dropout=0.2, "
    "in_list=[rank, score, ties])",
}
LISTS, ITEMS, FEATURES = 32, 120, 136


def measure(rounds: int = 15) -> str:
    """A table of the median CPU time of a step: 32 lists of 120 items with 136 features.

    Args:
        rounds: the number of steps of each model.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    features = torch.rand(LISTS, ITEMS, FEATURES)
    labels = torch.randint(0, 5, (LISTS, ITEMS)).float()
    loss = losses.get("softmax")
    steps = {}
    for name, spec in MODELS.items():
        model = models.get(spec)
        assert isinstance(model, TabM)
        network = model.build(FEATURES)
        steps[name] = network, torch.optim.AdamW(network.parameters())
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 2):  # the first two compile kernels and allocate memory
        for name, (network, optimizer) in steps.items():
            began = time.process_time()
            scores = network.train()(features)
            members = scores if scores.dim() == 3 else scores[None]
            torch.stack([loss(member, labels) for member in members]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(times[2:]) for name, times in seconds.items()}
    base = medians["medium, no encoding"]
    lines = [f"{name:<22}{1000 * s:7.1f} ms  {s / base:5.2f}" for name, s in medians.items()]
    return "\n".join(lines)
