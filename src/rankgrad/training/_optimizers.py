"""Optimizers, learning-rate schedules and the moving average of weights, by spec.

>>> print(optimizers.get("sgd(momentum=0.9)"), learning_rates.get("step(every=50)").factor(60, 100))
sgd(momentum=0.9) 0.1
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from rankgrad._validation import check_positive, check_rate, check_whole
from rankgrad.specs import HasSpec, Registry

optimizers: Registry[Optimizer] = Registry("optimizer")
learning_rates: Registry[LearningRate] = Registry("learning-rate schedule")


@dataclass(frozen=True, kw_only=True)
class Optimizer(HasSpec):
    """How parameters are updated. ``str(optimizer)`` is its spec."""

    def build(
        self, network: nn.Module, learning_rate: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """PyTorch's optimizer. Weights decay; biases and the scales of normalizations do not."""
        parameters = [p for p in network.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        return self._make([group for group in groups if group["params"]], learning_rate)

    def _make(self, groups: list[dict[str, object]], rate: float) -> torch.optim.Optimizer:
        raise TypeError(f"{type(self).__name__} does not say how it is made")


@dataclass(frozen=True, kw_only=True)
class _Moments(Optimizer):
    """An optimizer with running means of the gradient and of its square."""

    kind: ClassVar[type[torch.optim.Adam]]
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        check_rate("beta1", self.beta1)
        check_rate("beta2", self.beta2)
        check_positive("epsilon", self.epsilon)

    def _make(self, groups: list[dict[str, object]], rate: float) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return self.kind(groups, lr=rate, betas=betas, eps=self.epsilon, fused=True)


@optimizers.register("adam")
@dataclass(frozen=True, kw_only=True)
class Adam(_Moments):
    """Adam (Kingma and Ba 2015); weight decay is added to the gradient."""

    kind = torch.optim.Adam


@optimizers.register("adamw")
@dataclass(frozen=True, kw_only=True)
class AdamW(_Moments):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    kind = torch.optim.AdamW


@optimizers.register("adagrad")
@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011).

    Args:
        initial: what the sums of squared gradients start from; TensorFlow's default is 0.1.
    """

    initial: float = 0.0

    def _make(self, groups: list[dict[str, object]], rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(groups, lr=rate, initial_accumulator_value=self.initial)


@optimizers.register("sgd")
@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent."""

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_rate("momentum", self.momentum)

    def _make(self, groups: list[dict[str, object]], rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=rate, momentum=self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True, kw_only=True)
class LearningRate(HasSpec):
    """A factor of the learning rate as a function of the epoch."""

    def factor(self, epoch: float, epochs: int) -> float:
        """The factor after this many epochs, and parts of one, of all epochs."""
        raise TypeError(f"{type(self).__name__} does not say its factor")


@learning_rates.register("constant")
@dataclass(frozen=True, kw_only=True)
class Constant(LearningRate):
    """The same throughout."""

    @override
    def factor(self, epoch: float, epochs: int) -> float:
        return 1.0


@learning_rates.register("step")
@dataclass(frozen=True, kw_only=True)
class Step(LearningRate):
    """Multiplied by ``by`` after every ``every`` epochs, as the NeuralNDCG paper does.

    Args:
        every: the number of epochs between two steps.
        by: the factor of a step.
    """

    every: int = 50
    by: float = 0.1

    def __post_init__(self) -> None:
        check_whole("every", self.every)
        check_positive("by", self.by)

    @override
    def factor(self, epoch: float, epochs: int) -> float:
        return float(self.by ** (epoch // self.every))


@learning_rates.register("cosine")
@dataclass(frozen=True, kw_only=True)
class Cosine(LearningRate):
    """Half a cosine from 1 down to ``end``, after a linear rise over the first epochs.

    Args:
        end: the factor at the end.
        warmup: how many epochs the rise takes.

    >>> [round(Cosine(warmup=1.0).factor(epoch, 9), 2) for epoch in (0.5, 1, 5, 9)]
    [0.5, 1.0, 0.5, 0.0]
    """

    end: float = 0.0
    warmup: float = 0.0

    @override
    def factor(self, epoch: float, epochs: int) -> float:
        if epoch < self.warmup:
            return epoch / self.warmup
        share = min(1.0, (epoch - self.warmup) / max(epochs - self.warmup, 1e-9))
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * share)) / 2


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer, by the number of the parameter and the name: ``0.exp_avg``."""
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if value is not None
    }


def load_state_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load what :func:`state_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


class FusedAdam:
    """The steps of PyTorch's fused Adam or AdamW on a CPU, by its kernel alone.

    On a small network, what PyTorch does around the kernel at each step takes longer than it.

    Args:
        optimizer: whose parameters, all of one type, and state they are.
    """

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        self.optimizer = optimizer
        self._count = sum(len(group["params"]) for group in optimizer.param_groups)
        decoupled = isinstance(optimizer, torch.optim.AdamW)
        self._kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        state = self.optimizer.state
        if len(state) < self._count:
            self.optimizer.step()  # the first one, which makes the state
            return
        for group in self.optimizer.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            if parameters:
                self._update(group, parameters, [state[each] for each in parameters])

    def _update(
        self, group: dict[str, Any], parameters: list[Tensor], states: list[dict[str, Tensor]]
    ) -> None:
        steps = [each["step"] for each in states]
        torch._foreach_add_(steps, 1)
        beta1, beta2 = group["betas"]
        self._kernel(
            parameters,
            [each.grad for each in parameters if each.grad is not None],
            [each["exp_avg"] for each in states],
            [each["exp_avg_sq"] for each in states],
            [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def zero_grad(self) -> None:
        """Take the gradients off the parameters."""
        for group in self.optimizer.param_groups:
            for each in group["params"]:
                each.grad = None


class WeightAverage:
    """``a ← d a + (1 - d) w`` after every step, of all floating-point tensors of a network.

    The decay d rises to its value as ``(1 + t) / (10 + t)`` after t steps, so that the weights the
    network started from are soon forgotten. Whole numbers are taken as they are.

    Args:
        network: whose weights w are averaged.
        decay: d, in [0, 1).

    >>> net = nn.Linear(1, 1)
    >>> average = WeightAverage(net, decay=0.5)
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
        """Update the average by the weights after a step of the optimizer."""
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
        weights = {k: v.detach().clone() for k, v in self.network.state_dict().items()}
        self.network.load_state_dict(self.tensors)
        try:
            yield
        finally:
            self.network.load_state_dict(weights)

    def state(self) -> dict[str, Tensor]:
        """Its state, by name."""
        return {"steps": torch.tensor(self.steps), **self.tensors}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load what :meth:`state` gave."""
        if "steps" not in state:
            raise ValueError(
                "the run has no averaged weights to go on from, since an earlier version started "
                "it: start a new run, or resume it with that version"
            )
        self.steps = int(state["steps"])
        for name, value in self.tensors.items():
            value.copy_(state[name])
