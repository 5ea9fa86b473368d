"""A batch of lists as NumPy arrays, loops over its lists, and the real items of a list.

:class:`FlatArrays` is what :mod:`rankgrad.kernels.ops` passes to the kernel of a loss. The kernel
runs a compiled loop over the lists, which writes the value of each list and the derivatives to the
arrays; :func:`reduce_lists` then computes the loss and its gradient.

Everything is computed in float64, also for float32 scores. Sums over long lists are accurate
without compensation, and each loop is compiled only once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.arguments import LARGEST_LABEL, FlatLists, KernelCall
from rankgrad.kernels.cpu._compiled import array_at, compiled, run_in_threads
from rankgrad.lists import contiguous

Array = np.ndarray[Any, Any]

#: The arrays of a batch: scores, labels, mask and weights ``[items]``, offsets ``[lists + 1]``, and
#: the results values ``[lists]``, grad_scores ``[items]`` and defined ``[lists]``. Loops over
#: lists take them as one argument, because Numba's dispatch costs time per argument, and as a plain
#: tuple, because named tuples are dispatched more slowly.
Arrays = tuple[Array, Array, Array, Array, Array, Array, Array, Array]

APART = 64  # numbers between rows of a block (:func:`new_block`), several vectors long
VECTOR = 16  # numbers that a vectorized loop takes at a time, on processors of today
#: Elementary steps: less work runs in one thread. ``_compiled.py`` has the same constant; checking
#: it here first is cheaper for small calls.
_ONE_THREAD = 100_000
_CACHED_ITEMS = 32768  # items: the arrays of smaller batches are cached for the next one
_NO_NUMBERS, _NO_FLAGS = np.empty(0), np.empty(0, np.bool_)  # missing weights, missing mask
#: For each dtype that kernels take, an empty array and a scalar tensor of it.
_LIKE: dict[torch.dtype, tuple[Array, Tensor]] = {
    torch.float32: (np.empty(0, np.float32), torch.empty((), dtype=torch.float32)),
    torch.float64: (_NO_NUMBERS, torch.empty((), dtype=torch.float64)),
}


class FlatArrays:
    """A batch as NumPy arrays, and the arrays to which kernels write results.

    A missing mask and missing weights are empty arrays.

    Args:
        batch: the lists; tensors are contiguous, and numbers are all float32 or all float64.
        list_weights: ``[lists]`` or None, for the mean or sum over lists.

    Attributes:
        arrays: the arrays that loops over lists take.
        offsets: ``[lists + 1]``.
        max_length: an upper bound of list lengths.
        list_weights: ``[lists]``, ones if there are none.
        like: an array of the dtype of scores and labels.
        scalar: a tensor of one number of that dtype, to allocate results like it.
        single: whether it is float32.
        valid: whether scores are finite, weights finite and not negative, and labels from 0 to
            ``LARGEST_LABEL``. Values on padding do not count.
    """

    def __init__(self, batch: FlatLists, list_weights: Tensor | None = None) -> None:
        scores, _, mask, weights, offsets, self.max_length = batch
        items, lists = scores.numel(), offsets.numel() - 1
        self._shape = scores.shape
        self.like, self.scalar = _LIKE[scores.dtype]
        self.single = scores.dtype is torch.float32
        self.offsets = np.empty(lists + 1, np.int64)
        self.arrays: Arrays = (
            np.empty(items),  # scores
            np.empty(items),  # labels
            _NO_FLAGS if mask is None else np.empty(items, np.bool_),
            _NO_NUMBERS if weights is None else np.empty(items),
            self.offsets,
            np.empty(lists),  # values
            np.empty(items),  # grad_scores
            np.empty(lists, np.bool_),  # defined
        )
        self.list_weights = np.empty(lists)
        self._loop: tuple[Callable[[int, int], None], int, int] | None = None
        self._call: KernelCall | None = None
        self.load(batch, list_weights)

    def load(self, batch: FlatLists, list_weights: Tensor | None) -> None:
        """Copy a batch of the same size to the arrays; results become 0."""
        scores, labels, mask, weights, offsets, _ = batch
        dtype = self.scalar.dtype
        # Compiled code reads the tensors by address: Tensor.numpy() takes longer than all of this.
        addresses = (
            _address(scores, dtype),
            _address(labels, dtype),
            0 if mask is None else _address(mask, torch.bool),
            0 if weights is None else _address(weights, dtype),
            _address(offsets, torch.int64),
            0 if list_weights is None else _address(list_weights, dtype),
        )
        self.valid: bool = _load(addresses, self.arrays, self.list_weights, self.like)

    @classmethod
    def of(cls, batch: FlatLists, list_weights: Tensor | None = None) -> FlatArrays:
        """Convert tensors of any dtype and layout, such as users pass to operations."""
        scores, labels, mask, weights, offsets, max_length = contiguous(batch)
        if scores.dtype not in _LIKE:
            scores = scores.to(torch.float64)
        weights = None if weights is None else weights.to(scores)
        if list_weights is not None:
            list_weights = list_weights.to(scores).contiguous()
        labels, offsets = labels.to(scores), offsets.to(torch.int64)
        return cls(FlatLists(scores, labels, mask, weights, offsets, max_length), list_weights)

    def run(
        self, work: Callable[..., None], *options: Any, steps: int = 16, power: int = 1
    ) -> None:
        """Run ``work(first, last, arrays, *options)``, a loop over the lists ``first:last``.

        ``steps`` and ``power`` are as in :func:`each_list`.
        """
        self.each_list(lambda first, last: work(first, last, self.arrays, *options), steps, power)

    def each_list(self, work: Callable[[int, int], None], steps: int = 16, power: int = 1) -> None:
        """Call :func:`each_list` with these lists, and remember the loop for :meth:`repeat`."""
        self._loop = work, steps, power
        each_list(self.offsets, work, steps, power)

    def repeat(self, call: KernelCall) -> bool:
        """Run the last loop again, if the same call of a kernel ran it; return whether it did.

        If it did not, the caller runs the kernel, whose loop belongs to ``call`` from then on.
        Calls with a tensor among their options are not repeated.
        """
        if self._loop is None or self._call != call:
            self._call, self._loop = None if _has_tensor(call) else call, None
            return False
        work, steps, power = self._loop
        items = self.arrays[0].size
        if steps * items + items**power < _ONE_THREAD:
            work(0, self.list_weights.size)
        else:
            each_list(self.offsets, work, steps, power)
        return True

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors values, grad_scores and defined; the first two have the scores' dtype."""
        values, grad_scores, defined = self.arrays[5:]
        grad = torch.from_numpy(grad_scores.astype(self.like.dtype).reshape(self._shape))
        return torch.from_numpy(values.astype(self.like.dtype)), grad, torch.from_numpy(defined)


def _has_tensor(call: KernelCall) -> bool:
    return any(isinstance(option, Tensor) for option in call.options)


class _Last(threading.local):
    """The arrays of the last small batch in this thread, and the key of batches that fit them."""

    batch: tuple[tuple[Any, ...], FlatArrays] | None = None


_last = _Last()


def arrays_for(batch: FlatLists, list_weights: Tensor | None) -> FlatArrays:
    """The arrays of a batch for a kernel whose results are read before this thread's next call.

    Small batches of the same size share their arrays, and calls of the same kernel their loop:
    making and preparing them takes as long as the rest of a small call.

    Args:
        batch: as in :class:`FlatArrays`.
        list_weights: likewise.
    """
    scores, _, mask, weights, offsets, n = batch
    key = scores.shape, scores.dtype, offsets.shape, n, mask is None, weights is None
    last = _last.batch
    if last is not None and last[0] == key:
        last[1].load(batch, list_weights)
        return last[1]
    arrays = FlatArrays(batch, list_weights)
    if scores.numel() <= _CACHED_ITEMS:
        _last.batch = key, arrays
    return arrays


def _address(tensor: Tensor, dtype: torch.dtype) -> int:
    """The memory address of a contiguous tensor of this dtype."""
    address = tensor.data_ptr()
    if tensor.dtype is not dtype or not tensor.is_contiguous() or (not address and tensor.numel()):
        raise TypeError(f"a CPU kernel needs a contiguous {dtype} tensor, found {type(tensor)}")
    return address


@compiled
def _load(
    addresses: tuple[int, int, int, int, int, int],
    to: Arrays,
    list_weights: Array,
    like: Array,
) -> bool:
    """Copy the tensors at the addresses, and return whether all values are valid.

    Results become 0.

    Args:
        addresses: of scores, labels, mask, weights, offsets and list weights; 0 for a missing one.
        to: the arrays of the batch, written.
        list_weights: ``[lists]``, written; ones if they are missing.
        like: an array of the dtype of scores, labels and both kinds of weights.
    """
    scores, labels, mask, weights, offsets, values, grad_scores, defined = to
    for b in range(values.size):
        values[b], defined[b] = 0.0, False
    for i in range(grad_scores.size):
        grad_scores[i] = 0.0
    source_mask, source_offsets = (
        array_at(addresses[2], mask.size, mask),
        array_at(addresses[4], offsets.size, offsets),
    )
    for i in range(mask.size):
        mask[i] = source_mask[i]
    for i in range(offsets.size):
        offsets[i] = source_offsets[i]
    if addresses[5] == 0:
        for b in range(list_weights.size):
            list_weights[b] = 1.0
    # A loop, so that _copy is compiled into it once.
    n_invalid, no_mask = 0, mask[:0]
    for address, least, most, value_mask, target in (
        (addresses[0], -np.inf, np.inf, mask, scores),
        (addresses[1], 0.0, LARGEST_LABEL, mask, labels),
        (addresses[3], 0.0, np.inf, mask, weights),
        (addresses[5], 0.0, np.inf, no_mask, list_weights),
    ):
        if address != 0:
            n_invalid += _copy(address, like, least, most, value_mask, target)
    return bool(n_invalid == 0)


@compiled
def _copy(address: int, like: Array, least: float, most: float, mask: Array, to: Array) -> int:
    """Copy values; count real items whose value is NaN, infinite or outside [least, most]."""
    invalid, values = 0, array_at(address, to.size, like)
    for i in range(to.size):
        to[i] = values[i]
        valid = (values[i] >= least) & (values[i] <= most) & (abs(values[i]) < np.inf)
        invalid += (mask.size == 0 or mask[i]) & (not valid)
    return invalid


@compiled
def reduce_lists(
    arrays: Arrays, list_weights: Array, mean: bool, addresses: tuple[int, int, int], like: Array
) -> None:
    """The weighted sum or mean over lists, and its gradient with respect to the scores.

    Lists on which the loss is undefined have derivatives of 0, and their values are not read.

    Args:
        arrays: the batch, with its results.
        list_weights: ``[lists]``.
        mean: whether to divide by the sum of the weights.
        addresses: the address to which the scores' gradient is written, the address to which the
            sum or mean is written, and the number of scores.
        like: an array of the dtype at these addresses.
    """
    offsets, values, grad_scores, defined = arrays[4:]
    scaled = array_at(addresses[0], addresses[2], like)
    result = array_at(addresses[1], 1, like)
    lists, weight = values.size, 0.0
    for b in range(lists):
        weight += list_weights[b] if defined[b] else 0.0
    scale = 1.0
    if mean:
        scale = 1.0 / weight if weight > 0 else 0.0
    reduced = 0.0
    for b in range(lists):
        factor = scale * list_weights[b] if defined[b] else 0.0
        if factor != 0:
            reduced += factor * values[b]
        for i in range(offsets[b], offsets[b + 1]):
            scaled[i] = factor * grad_scores[i]
    for i in range(offsets[lists], scaled.size):
        scaled[i] = 0.0
    result[0] = reduced


def each_list(
    offsets: Array, work: Callable[[int, int], None], steps: int = 16, power: int = 1
) -> None:
    """Call ``work(first, last)`` on ranges of lists, in several threads if there is enough work.

    Args:
        offsets: ``[lists + 1]``.
        work: computes the lists ``first:last``.
        steps: elementary steps per item.
        power: a list of length n costs ``steps * n + n**power`` elementary steps.
    """
    items = int(offsets[-1]) - int(offsets[0])
    if steps * items + items**power < _ONE_THREAD:
        work(0, len(offsets) - 1)
        return
    lengths = np.diff(offsets).astype(np.float64)
    run_in_threads(steps * lengths + lengths**power, work)


# The next four functions convert with NumPy, which is several times faster than PyTorch on small
# arrays.


def numbers(tensor: Tensor) -> Array:
    """A tensor as a flat float64 array."""
    return np.ascontiguousarray(tensor.detach().numpy(), np.float64).reshape(-1)


def flags(mask: Tensor | None) -> Array:
    """A mask as a flat array, empty for None."""
    if mask is None:
        return np.empty(0, np.bool_)
    return np.ascontiguousarray(mask.numpy()).reshape(-1)


def bounds(offsets: Tensor) -> Array:
    """Offsets as an int64 array."""
    return np.ascontiguousarray(offsets.numpy(), np.int64)


def tensor_like(tensor: Tensor, array: Array) -> Tensor:
    """An array as a flat tensor of the dtype of ``tensor``."""
    if tensor.dtype == torch.float32:
        array = array.astype(np.float32)
    return torch.from_numpy(array)


@compiled
def new_block(rows: int, n: int) -> Array:
    """Rows of n zeros in one block of memory; row r is ``block[r, :n]``.

    Rows are ``APART`` numbers apart, because loops over arrays that are only a few vector lengths
    apart run in their scalar form.
    """
    return np.zeros((rows, n + APART))


@compiled
def whole_vectors(n: int) -> int:
    """``n`` rounded up to a multiple of ``VECTOR``.

    For loops over rows of a block whose numbers past the first n do not change the result. The
    remainder of a vectorized loop runs one number at a time, which on short lists takes longer than
    the vectorized part.
    """
    return (n + VECTOR - 1) // VECTOR * VECTOR


@compiled
def real_items(mask: Array, first: int, last: int) -> Array:
    """The indices of a list's real items."""
    items = np.empty(last - first, np.int64)
    return items[: find_items(mask, first, last, items)]


@compiled
def find_items(mask: Array, first: int, last: int, items: Array) -> int:
    """Write the indices of a list's real items to ``items``, and return how many there are."""
    count = 0
    for item in range(first, last):
        items[count] = item
        if mask.size == 0 or mask[item]:
            count += 1
    return count


@compiled
def take(values: Array, items: Array) -> Array:
    """``values[items]``, or ones if ``values`` is empty."""
    result = np.empty(items.size)
    for i in range(items.size):
        result[i] = values[items[i]] if values.size else 1.0
    return result
