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

    OpenMP reads the environment once, when importing torch loads it. If torch is imported already,
    or the user has set such a variable, nothing is changed.

    Returns:
        Whether the environment was changed.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _WAIT_VARIABLES):
        return False
    os.environ.update(_PASSIVE)
    return True


class _ThreadState(threading.local):
    """How many threads PyTorch has in this Python thread outside of :func:`for_work`.

    None while the thread is not in such a block.
    """

    outside: int | None = None


# torch.set_num_threads holds for the calling thread, and threads that start later begin with the
# number that was last set. A Python thread that starts during another's for_work may thus begin
# with 1, which is not its number outside.
_state = _ThreadState()
_lock = threading.Lock()
_n_open = 0  # active for_work blocks, nested ones not counted, over all Python threads
_most = 1  # the most threads that PyTorch had on entering any of the open blocks


def available() -> int:
    """How many threads parallel work may use: PyTorch's number outside of :func:`for_work`.

    >>> from rankgrad._threads import available, for_work
    >>> given = torch.get_num_threads()
    >>> with for_work(operations=1e3):
    ...     available() == given
    True
    """
    import torch

    return _state.outside or torch.get_num_threads()


def passes(network: nn.Module, items: int) -> int:
    """Multiplications of a forward pass over a batch: one for each weight and item."""
    return items * sum(weights.numel() for weights in network.parameters())


@contextmanager
def for_work(operations: float) -> Iterator[None]:
    """PyTorch uses one thread for small work in this block, and all it was given for large work.

    The choice depends on the sizes alone, so that results are reproducible.

    Args:
        operations: about how many multiplications a call of PyTorch makes: see :func:`passes`.

    >>> from rankgrad._threads import for_work, passes
    >>> with for_work(passes(torch.nn.Linear(46, 1), items=640)):
    ...     torch.get_num_threads()
    1
    """
    import torch

    before, nested = torch.get_num_threads(), _state.outside
    _state.outside = nested or _enter(before)
    torch.set_num_threads(1 if operations < _SMALL else _state.outside)
    try:
        yield
    finally:
        # Not the number before, with which the thread may have started: see above.
        torch.set_num_threads(before if nested else _state.outside)
        _state.outside = nested
        if nested is None:
            _leave()


def _enter(number: int) -> int:
    """Count a block as open; return how many threads PyTorch has outside of all blocks."""
    global _n_open, _most
    with _lock:
        _most = number if _n_open == 0 else max(number, _most)
        _n_open += 1
        return _most


def _leave() -> None:
    global _n_open
    with _lock:
        _n_open -= 1
