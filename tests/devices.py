"""The device that the contract tests run on: ``RANKGRAD_TEST_DEVICE``, or else the CPU.

Tests make their lists on the CPU and look at results there. For another device, whatever a loss, a
metric or a relaxation is called with is moved there first, and what it gives is moved back, which
autograd follows.
"""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from rankgrad import metrics
from rankgrad.losses import Loss
from rankgrad.metrics import Metric
from rankgrad.sorting import Relaxation

DEVICE = os.environ.get("RANKGRAD_TEST_DEVICE", "cpu")

METHODS = {
    Loss: ("forward",),
    Metric: ("__call__", "relaxed"),
    Relaxation: ("__call__", "permutation", "ranks", "sort", "rank", "sample_scores"),
}


def entries() -> Iterator[tuple[Any, str]]:
    """Wherever tensors enter: what is public of every class, where the class says it itself."""
    yield metrics, "evaluate"
    for base, names in METHODS.items():
        for owner in (base, *_derived(base)):
            yield from ((owner, name) for name in names if name in vars(owner))


def _derived(base: type) -> set[type]:
    below = set(base.__subclasses__())
    return below.union(*map(_derived, below))


def moved(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """The function on a device, called with tensors of another one.

    Called with tensors of that device, as by another function that is moved, it is as it was.
    """

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        tensors = [each for each in (*args, *named.values()) if isinstance(each, Tensor)]
        if not tensors or any(tensor.device.type == device for tensor in tensors):
            return function(*args, **named)
        there = {name: _to(each, device) for name, each in named.items()}
        return _to(function(*(_to(each, device) for each in args), **there), "cpu")

    return call


def _to(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value
