"""Optimizers and learning-rate schedules, by spec, and the moving average of weights.

The training loop (:mod:`rankgrad.training.trainer`) gets them by the settings ``optimizer``,
``schedule`` and ``average``.

>>> print(optimizers.get("sgd(momentum=0.9)"), learning_rates.get("step(every=50)").factor(60, 100))
sgd(momentum=0.9) 0.1
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from rankgrad._quoting import quote
from rankgrad._validation import check_flag, check_positive, check_rate, check_whole
from rankgrad.specs import HasSpec, Registry

optimizers: Registry[Optimizer] = Registry("optimizer")
learning_rates: Registry[LearningRate] = Registry("learning-rate schedule")


@dataclass(frozen=True, kw_only=True)
class Optimizer(HasSpec):
    """How parameters are updated. ``str(optimizer)`` is its spec."""

    def build(
        self, network: nn.Module, learning_rate: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """PyTorch's optimizer of the network's parameters.

        Weight decay applies to matrices, and not to vectors: biases and the scales of
        normalizations. Nor does it apply to the parameters that a module names in ``undecayed``.
        An L1 penalty applies to those that a module names in ``l1_parameters``.
        """
        parameters = [p for p in network.parameters() if p.requires_grad]
        undecayed = {p for p in parameters if p.dim() <= 1} | _named(network, "undecayed")
        l1 = self.l1 if isinstance(self, AdamW) else 0.0
        scales = _named(network, "l1_parameters") if l1 else set()
        if l1 and not scales:
            raise ValueError(
                f"{self}: l1 is a penalty of the factors that scale inputs, and this network has "
                "none. medium, large and tabm with share=adapters and hidden layers have them"
            )
        # Matrices are first, whatever decays of them: saved states are numbered in this order.
        ordered = sorted(parameters, key=lambda p: p.dim() <= 1)
        alike = groupby(ordered, lambda p: (p in undecayed, p in scales))
        groups: list[dict[str, object]] = [
            {
                "params": [*group],
                "weight_decay": 0.0 if is_undecayed else weight_decay,
                **({"l1": l1} if is_scale else {}),
            }
            for (is_undecayed, is_scale), group in alike
        ]
        return self._make(groups, learning_rate)

    def _make(self, groups: list[dict[str, object]], rate: float) -> torch.optim.Optimizer:
        """PyTorch's optimizer of these groups of parameters, with this learning rate."""
        raise TypeError(f"{type(self).__name__} does not say how it is made")


def _named(network: nn.Module, attribute: str) -> set[nn.Parameter]:
    """The parameters that the modules of a network name in this attribute."""
    return {
        module.get_parameter(name)
        for module in network.modules()
        for name in getattr(module, attribute, ())
    }


@torch.no_grad()
def soft_threshold(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Move updated parameters toward 0 by learning rate times L1 penalty, where there is one.

    Args:
        optimizer: PyTorch's, whose groups have ``lr`` and, with a penalty, ``l1``. Hooks of
            :meth:`torch.optim.Optimizer.register_step_post_hook` get further arguments.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("l1") else ():
            if parameter.grad is not None:
                parameter.copy_(nn.functional.softshrink(parameter, group["lr"] * group["l1"]))


@dataclass(frozen=True, kw_only=True)
class _Moments(Optimizer):
    """Adam and AdamW: running means of the gradient and of its square.

    Args:
        beta1: the decay of the mean of the gradient.
        beta2: the decay of the mean of its square.
        epsilon: added to the divisor of a step.
    """

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
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Args:
        l1: a decoupled L1 penalty of the factors by which ``tabm`` scales its inputs. After each
            step they move toward 0 by learning rate times l1, and stop at 0 (soft thresholding, the
            proximal step of the lasso), so the network ignores inputs that do not help. In units of
            the factors the move is ``scale_rate`` times as large. With an average of weights
            (``average``) factors come near 0, and few are exactly 0.
    """

    kind = torch.optim.AdamW
    l1: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_not_negative("l1", self.l1)

    @override
    def _make(self, groups: list[dict[str, object]], rate: float) -> torch.optim.Optimizer:
        optimizer = super()._make(groups, rate)
        if self.l1:
            optimizer.register_step_post_hook(soft_threshold)
        return optimizer


@optimizers.register("adagrad")
@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011).

    Args:
        initial: the initial sum of squared gradients; TensorFlow's default is 0.1.
    """

    initial: float = 0.0

    def __post_init__(self) -> None:
        _check_not_negative("initial", self.initial)

    def _make(self, groups: list[dict[str, object]], rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(groups, lr=rate, initial_accumulator_value=self.initial)


@optimizers.register("sgd")
@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent.

    Args:
        momentum: the factor of the previous step in the next one.
        nesterov: whether to use Nesterov momentum.
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check_rate("momentum", self.momentum)
        check_flag("nesterov", self.nesterov)
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")

    def _make(self, groups: list[dict[str, object]], rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=rate, momentum=self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True, kw_only=True)
class LearningRate(HasSpec):
    """A factor of the learning rate as a function of the epoch."""

    def factor(self, epoch: float, epochs: int) -> float:
        """The factor after ``epoch`` of ``epochs`` epochs; ``epoch`` may be a fraction."""
        raise TypeError(f"{type(self).__name__} does not say its factor")


@learning_rates.register("constant")
@dataclass(frozen=True, kw_only=True)
class Constant(LearningRate):
    """A constant learning rate."""

    @override
    def factor(self, epoch: float, epochs: int) -> float:
        return 1.0


@learning_rates.register("step")
@dataclass(frozen=True, kw_only=True)
class Step(LearningRate):
    """The factor is multiplied by ``by`` after every ``every`` epochs, as in the NeuralNDCG paper.

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

    def __post_init__(self) -> None:
        _check_not_negative("end", self.end)
        _check_not_negative("warmup", self.warmup)

    @override
    def factor(self, epoch: float, epochs: int) -> float:
        if epoch < self.warmup:
            return epoch / self.warmup
        progress = min(1.0, (epoch - self.warmup) / max(epochs - self.warmup, 1e-9))
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * progress)) / 2


def _check_not_negative(option: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise ValueError(f"{option} must be a number of at least 0, found {quote(value)}")


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer as tensors, named as ``0.exp_avg``: parameter number and name."""
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
        if value is not None
    }


def load_state_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors that :func:`state_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


#: Options of a group of parameters that PyTorch's kernels take under the same names.
_ADAM_OPTIONS = ("lr", "weight_decay", "eps", "amsgrad", "maximize")


class FusedAdam:
    """The steps of PyTorch's fused Adam or AdamW on a CPU, by a direct call of its kernel.

    For a small network, PyTorch's code around the kernel takes longer than the kernel.

    Args:
        optimizer: PyTorch's optimizer, whose parameters and state are updated. All parameters have
            one dtype.
    """

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        self.optimizer = optimizer
        self._n_parameters = sum(len(group["params"]) for group in optimizer.param_groups)
        decoupled = isinstance(optimizer, torch.optim.AdamW)
        self._kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        state_of = self.optimizer.state
        if len(state_of) < self._n_parameters:
            self.optimizer.step()  # the first step, which creates the state
            return
        for group in self.optimizer.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            states = [state_of[p] for p in parameters]  # their moments and step counts
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            beta1, beta2 = group["betas"]
            self._kernel(
                parameters,
                [p.grad for p in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],  # maxima of amsgrad, which is off
                steps,
                beta1=beta1,
                beta2=beta2,
                **{name: group[name] for name in _ADAM_OPTIONS},
            )
        soft_threshold(self.optimizer)

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


class WeightAverage:
    """A moving average a of a network's weights w: ``a ← d a + (1 - d) w`` after every step.

    At first the decay d is ``(1 + t) / (10 + t)`` after t steps, until that reaches ``decay``: so
    the initial weights soon lose their influence. Integer tensors are copied.

    Args:
        network: the network whose tensors w are averaged.
        decay: the largest d, in [0, 1).

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
        """Update the average; to be called after each step of the optimizer."""
        self.steps += 1
        new_weight = 1 - min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, value in self.network.state_dict().items():
            if value.is_floating_point():
                self.tensors[name].lerp_(value, new_weight)
            else:
                self.tensors[name].copy_(value)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the network has the averaged weights in place of its own."""
        weights = {k: v.detach().clone() for k, v in self.network.state_dict().items()}
        self.network.load_state_dict(self.tensors)
        try:
            yield
        finally:
            self.network.load_state_dict(weights)

    def state(self) -> dict[str, Tensor]:
        """The state to save, by name."""
        return {"steps": torch.tensor(self.steps), **self.tensors}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load a state that :meth:`state` returned."""
        if "steps" not in state:
            raise ValueError(
                "the run has no averaged weights to go on from, since an earlier version started "
                "it: start a new run, or resume it with that version"
            )
        self.steps = int(state["steps"])
        for name, value in self.tensors.items():
            value.copy_(state[name])
