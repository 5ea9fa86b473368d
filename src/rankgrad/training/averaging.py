"""The moving average of a network's weights, steadier than the weights of any one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """``a ← d a + (1 - d) w`` after every step, of all floating-point tensors of a network.

    The decay d rises to its value as ``(1 + t) / (10 + t)`` after t steps, so that the weights the
    network started from are soon forgotten. Whole numbers are taken as they are.

    Args:
        network: whose weights w are averaged.
        decay: d, in [0, 1).

    >>> net = nn.Linear(1, 1)
    >>> average = Average(net, decay=0.5)
    >>> before = net.weight.detach().clone()
    >>> with torch.no_grad():
    ...     _ = net.weight.add_(1.0)
    >>> average.update()
    >>> with average.applied():
    ...     print(round((net.weight - before).item(), 4))
    0.8182
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network, self.decay = network, decay
        self.steps = 0
        self.tensors = {k: v.detach().clone() for k, v in network.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step of the optimizer."""
        self.steps += 1
        share = 1 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, value in self.network.state_dict().items():
            if value.is_floating_point():
                self.tensors[name].lerp_(value, share)
            else:
                self.tensors[name].copy_(value)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network with the averaged weights in place of its own."""
        own = {k: v.detach().clone() for k, v in self.network.state_dict().items()}
        self.network.load_state_dict(self.tensors)
        try:
            yield
        finally:
            self.network.load_state_dict(own)

    def state(self) -> dict[str, Tensor]:
        """What it goes on from, by name."""
        return {"steps": torch.tensor(self.steps), **self.tensors}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take back what :meth:`state` gave."""
        if "steps" not in state:
            raise ValueError(
                "the run has no averaged weights to go on from, since an earlier version started "
                "it: start a new run, or resume it with that version"
            )
        self.steps = int(state["steps"])
        for name, value in self.tensors.items():
            value.copy_(state[name])
