"""How many threads PyTorch and the CPU kernels use, and how they wait for each other.

OpenMP's threads spin while they wait. Beside other busy processes they take time from the very
threads that are waited for: training slows down many times. So small work runs on one thread, and
threads that are needed sleep while they wait.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

#: Variables by which OpenMP (GCC's, and Intel's and LLVM's) learns how threads wait.
_PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
_WAIT_VARIABLES = (*_PASSIVE, "GOMP_SPINCOUNT", "KMP_LIBRARY")

#: Multiplications below which a second thread gains little: some milliseconds on one core.
_SMALL = 1e8


def wait_passively() -> bool:
    """Have OpenMP's threads sleep while they wait, unless the environment says otherwise.

    OpenMP reads it once, when PyTorch loads it: nothing is done after that, nor where the user has
    set any such variable.

    Returns:
        Whether the environment was changed.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _WAIT_VARIABLES):
        return False
    os.environ.update(_PASSIVE)
    return True


class _Here(threading.local):
    """The threads that PyTorch used in this thread of Python, outside of :func:`for_work`."""

    outside: int | None = None


_here = _Here()
_lock = threading.Lock()
_open = 0  # active sections, over all threads
_first = 1  # threads of PyTorch when the first of these sections began


def available() -> int:
    """How many threads there are for work that is shared out: as many as PyTorch was given.

    >>> from rankgrad._threads import available, for_work
    >>> given = torch.get_num_threads()
    >>> with for_work(operations=1e3):
    ...     available() == given
    True
    """
    import torch

    return _here.outside or torch.get_num_threads()


def passes(network: nn.Module, items: int) -> int:
    """The work of a pass over a batch: each weight is multiplied once for each item."""
    return items * sum(weights.numel() for weights in network.parameters())


@contextmanager
def for_work(operations: float) -> Iterator[None]:
    """PyTorch uses one thread for small work in this block, and all it was given for large work.

    The choice depends on the sizes alone, so that results are the same again.

    Args:
        operations: multiplications, about, between two steps of Python: see :func:`passes`.

    >>> from rankgrad._threads import for_work, passes
    >>> with for_work(passes(torch.nn.Linear(46, 1), items=640)):
    ...     torch.get_num_threads()
    1
    """
    import torch

    before, nested = torch.get_num_threads(), _here.outside
    _here.outside = nested or _enter(before)
    torch.set_num_threads(1 if operations < _SMALL else _here.outside)
    try:
        yield
    finally:
        torch.set_num_threads(before if nested else _here.outside)
        _here.outside = nested
        if nested is None:
            _leave()


def _enter(number: int) -> int:
    """The threads that PyTorch was given, in a thread that may have started while it had fewer."""
    global _open, _first
    with _lock:
        _first = number if _open == 0 else max(number, _first)
        _open += 1
        return _first


def _leave() -> None:
    global _open
    with _lock:
        _open -= 1
