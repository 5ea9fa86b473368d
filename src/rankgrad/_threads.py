"""How many threads PyTorch and the CPU kernels use, and how they wait for each other.

By default OpenMP's threads spin while they wait. If other processes are busy, spinning takes time
from the very threads that are waited for, and training slows down many times. So threads sleep
while they wait (:func:`wait_passively`), and small work runs on one thread (:func:`for_work`).
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

#: Environment variables that make OpenMP's threads sleep: GCC's, and that of Intel and LLVM.
_PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
#: If the user has set one of these, nothing is changed.
_WAIT_VARIABLES = (*_PASSIVE, "GOMP_SPINCOUNT", "KMP_LIBRARY")

#: Multiplications below which a second thread gains little: some milliseconds on one core.
_MIN_PARALLEL_WORK = 1e8


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
    """Per Python thread: PyTorch's number of threads outside of :func:`for_work`.

    None while the Python thread is not in such a block.
    """

    outside: int | None = None


# torch.set_num_threads applies to the calling Python thread, but a Python thread that starts later
# begins with the number that any thread has set last. If it starts while another one is in
# for_work, that number may be 1, which must not be taken for its number outside of for_work.
_state = _ThreadState()
_lock = threading.Lock()
_n_open = 0  # for_work blocks that are active in all Python threads, without nested ones
_max_threads = 1  # the most threads that PyTorch had on entering any of these blocks


def available() -> int:
    """How many threads parallel work may use: PyTorch's number outside of :func:`for_work`.

    >>> from rankgrad._threads import available, for_work
    >>> outside = torch.get_num_threads()
    >>> with for_work(operations=1e3):
    ...     available() == outside
    True
    """
    import torch

    return _state.outside or torch.get_num_threads()


def passes(network: nn.Module, items: int) -> int:
    """The number of multiplications of a forward pass: one for each weight and item."""
    return items * sum(weights.numel() for weights in network.parameters())


@contextmanager
def for_work(operations: float) -> Iterator[None]:
    """In this block PyTorch uses one thread for small work, and all its threads for large work.

    The choice depends only on the sizes, so that results are reproducible.

    Args:
        operations: about how many multiplications a call of PyTorch makes; see :func:`passes`.

    >>> from rankgrad._threads import for_work, passes
    >>> with for_work(passes(torch.nn.Linear(46, 1), items=640)):
    ...     torch.get_num_threads()
    1
    """
    import torch

    before = torch.get_num_threads()
    enclosing = _state.outside  # None if no other block encloses this one
    _state.outside = enclosing or _open_block(before)
    torch.set_num_threads(1 if operations < _MIN_PARALLEL_WORK else _state.outside)
    try:
        yield
    finally:
        # If no block encloses this one, `before` may be wrong: see the comment on _state.
        torch.set_num_threads(before if enclosing else _state.outside)
        _state.outside = enclosing
        if enclosing is None:
            _close_block()


def _open_block(n_threads: int) -> int:
    """Count a block as active, and return how many threads PyTorch has outside of all blocks.

    Args:
        n_threads: PyTorch's number of threads on entering the block, which may be too small.
    """
    global _n_open, _max_threads
    with _lock:
        _max_threads = n_threads if _n_open == 0 else max(n_threads, _max_threads)
        _n_open += 1
        return _max_threads


def _close_block() -> None:
    """Count a block as no longer active."""
    global _n_open
    with _lock:
        _n_open -= 1
