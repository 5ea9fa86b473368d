"""The random numbers of one training, apart from those that PyTorch draws for all threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankgrad.losses import Loss
from rankgrad.losses.base import randomness_of
from rankgrad.models.dropout import draw_from

_turn = threading.RLock()  # for trainings that draw from the generators that all threads share


class RandomState:
    """Where a training draws its random numbers from: initial weights, dropout, noise of the loss.

    On a CPU, that is a generator of its own, so that trainings in several threads do not affect
    each other. A module of the user's and the dropout of GPUs draw from PyTorch's shared
    generators: such trainings take turns (see :func:`isolated`).

    Args:
        device: that is trained on.
        custom: whether the network is a module of the user's.
    """

    def __init__(self, device: torch.device, custom: bool = False) -> None:
        self.shared = custom or device.type != "cpu"
        self.generator = torch.default_generator if self.shared else torch.Generator()

    def seed(self, number: int) -> None:
        """Set the seed."""
        if self.shared:
            torch.manual_seed(number)  # of GPUs too
        else:
            self.generator.manual_seed(number)

    def building(self) -> AbstractContextManager[Any]:
        """While open, what this thread builds draws its initial weights from here."""
        return nullcontext() if self.shared else _DrawFrom(self.generator)

    @contextmanager
    def training(self, network: nn.Module, loss: Loss) -> Iterator[None]:
        """While open, the dropout of a network and a loss without a seed draw from here."""
        if self.shared:
            yield
            return
        for randomness in randomness_of(loss).values():
            randomness.fallback = self.generator
        draw_from(network, self.generator)
        try:
            yield
        finally:
            draw_from(network, None)  # a network that is copied or saved later carries none


@contextmanager
def isolated(device: torch.device, custom: bool) -> Iterator[RandomState]:
    """The random numbers of a training; PyTorch's own are left as they were."""
    state = RandomState(device, custom)
    if not state.shared:
        yield state
        return
    with _turn, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield state


_DRAWING: set[Callable[..., Any]] = {
    *(getattr(Tensor, name) for name in ("bernoulli_", "exponential_", "normal_", "random_")),
    *(Tensor.uniform_, Tensor.bernoulli, Tensor.multinomial),
    *(torch.bernoulli, torch.multinomial, torch.normal, torch.rand, torch.randint, torch.randn),
    *(torch.randperm, nn.init.uniform_, nn.init.normal_, nn.init.trunc_normal_),
    *(nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.xavier_uniform_),
    *(nn.init.xavier_normal_, nn.init.orthogonal_, nn.init.sparse_),
}


class _DrawFrom(TorchFunctionMode):
    """While open, functions of PyTorch draw from a generator, in this thread."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWING and kwargs.get("generator") is None:
            kwargs = kwargs | {"generator": self.generator}
        return func(*args, **kwargs)
