"""What CPU kernels share: lists as NumPy arrays, sorting of a list's items, gains and norms.

:class:`FlatArrays` is what :mod:`rankgrad.kernels.ops` passes to the kernel of a loss. The compiled
functions below it serve the loops over lists in the other modules.

Everything is computed in float64, also for float32 scores. Sums over long lists are accurate
without compensation, and each loop is compiled only once.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.arguments import LARGEST_LABEL, FlatLists, KernelCall, MetricOptions
from rankgrad.kernels.cpu._arithmetic import total
from rankgrad.kernels.cpu._compiled import array_at, compiled, compiled_reduction, run_in_threads
from rankgrad.lists import contiguous

Array = np.ndarray[Any, Any]

#: The arrays of a batch: scores, labels, mask and weights ``[items]``, offsets ``[lists + 1]``, and
#: the results values ``[lists]``, grad_scores ``[items]`` and defined ``[lists]``. Loops over
#: lists take them as one argument, because Numba's dispatch costs time per argument, and as a plain
#: tuple, because named tuples are dispatched more slowly.
Arrays = tuple[Array, Array, Array, Array, Array, Array, Array, Array]

#: A metric as one argument: its code, the cutoff (0 for none), whether gains are linear, the
#: threshold, the persistence and the discounts.
Metric = tuple[int, int, bool, float, float, Array]

APART = 64  # numbers between the rows of a block, more than a vectorized loop takes at a time
VECTOR = 16  # numbers that a vectorized loop takes at a time, on processors of today
#: Elementary steps: less work runs in one thread. ``_compiled.py`` has the same constant; checking
#: it here first is cheaper for small calls.
_ONE_THREAD = 100_000
_CACHED_ITEMS = 32768  # items: the arrays of smaller batches are cached for the next one
_RUN = 64  # length of the runs that are sorted by counting before they are merged
_COUNTED_LABELS = 32  # integer labels below it are sorted by counting
_MAX_KINDS = 12  # up to so many distinct gains are counted instead of sorted

#: The codes of metrics; linear ones come first, up to ARP.
METRICS = {
    name: code
    for code, name in enumerate(
        ("ndcg", "dcg", "precision", "recall", "rbp", "arp", "ap", "rr", "hits", "err", "spearman")
    )
}
NDCG, DCG, PRECISION, RECALL, RBP, ARP, AP, RR, HITS, ERR, SPEARMAN = METRICS.values()


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
        scalar: a tensor of one number of that dtype.
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
            np.empty(items),
            np.empty(items),
            _NO_FLAGS if mask is None else np.empty(items, np.bool_),
            _NO_NUMBERS if weights is None else np.empty(items),
            self.offsets,
            np.empty(lists),
            np.empty(items),
            np.empty(lists, np.bool_),
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
        """Run a loop over all lists; ``steps`` and ``power`` are as in :func:`each_list`."""
        self.each_list(lambda a, b: work(a, b, self.arrays, *options), steps, power)

    def each_list(self, work: Callable[[int, int], None], steps: int = 16, power: int = 1) -> None:
        """Call :func:`each_list` with these lists."""
        self._loop = work, steps, power
        each_list(self.offsets, work, steps, power)

    def repeat(self, call: KernelCall) -> bool:
        """Run the last loop again, if the same call of a kernel ran it."""
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
    """The last small batch in this thread, and what the next one must equal to use its arrays."""

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
    of_type: Array,
) -> bool:
    """Copy the tensors at the addresses, and return whether all values are valid.

    Results become 0.

    Args:
        addresses: of scores, labels, mask, weights, offsets and list weights; 0 for a missing one.
        to: the arrays of the batch, written.
        list_weights: ``[lists]``, written; ones if they are missing.
        of_type: an array of the dtype of scores, labels and both kinds of weights.
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
            n_invalid += _copy(address, of_type, least, most, value_mask, target)
    return bool(n_invalid == 0)


@compiled
def _copy(address: int, of_type: Array, least: float, most: float, mask: Array, to: Array) -> int:
    """Copy values; count real items whose value is NaN, infinite or outside [least, most]."""
    invalid, values = 0, array_at(address, to.size, of_type)
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
        addresses: three integers: the addresses to which the scores' gradient and the sum or mean
            are written, and the number of scores.
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


_NO_NUMBERS, _NO_FLAGS = np.empty(0), np.empty(0, np.bool_)
_LIKE: dict[torch.dtype, tuple[Array, Tensor]] = {
    torch.float32: (np.empty(0, np.float32), torch.empty((), dtype=torch.float32)),
    torch.float64: (_NO_NUMBERS, torch.empty((), dtype=torch.float64)),
}

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


def like(tensor: Tensor, array: Array) -> Tensor:
    """An array as a flat tensor of the dtype of ``tensor``."""
    if tensor.dtype == torch.float32:
        array = array.astype(np.float32)
    return torch.from_numpy(array)


@functools.lru_cache(maxsize=16)
def metric_of(options: MetricOptions, max_length: int, single: bool) -> Metric:
    """A metric as loops over lists take it; ``single`` is whether labels are float32."""
    name, k, gain, threshold, persistence = options
    discount = discounts(name, persistence, max_length)
    return METRICS[name], k, gain == "linear", level(threshold, single), persistence, discount


def level(threshold: float, single: bool) -> float:
    """A threshold in the precision of labels, so that a label of 0.7 reaches one of 0.7."""
    return float(np.float32(threshold)) if single else threshold


@functools.lru_cache(maxsize=16)
def discounts(metric: str, persistence: float, max_length: int) -> Array:
    """The discounts ``[max_length]`` of the ranks 1, 2, ...

    The array is cached and must not be modified.
    """
    ranks = np.arange(1, max_length + 1, dtype=np.float64)
    if metric in ("ndcg", "dcg"):
        return np.asarray(1 / np.log2(1 + ranks))
    if metric == "rbp":
        return np.asarray((1 - persistence) * persistence ** (ranks - 1))
    if metric in ("ap", "rr", "err"):
        return np.asarray(1 / ranks)
    return ranks if metric == "arp" else np.ones_like(ranks)


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


@compiled
def indices(n: int) -> Array:
    """``0, ..., n - 1``."""
    result = np.empty(n, np.int64)
    for i in range(n):
        result[i] = i
    return result


@compiled
def sort_descending(keys: Array, items: Array) -> None:
    """Sort ``items`` in place by descending ``keys[item]``, stable.

    Short runs are sorted by counting, then merged two by two. ``items`` is also the spare buffer of
    the merges.
    """
    n, run = items.size, _RUN
    sorted_keys, sorted_items = np.empty(n), np.empty(n, np.int64)
    spare_keys, spare_items = np.empty(n), items
    for i in range(n):
        spare_keys[i] = keys[items[i]]
    for start in range(0, n, run):
        run_keys = spare_keys[start : min(start + run, n)]
        for i in range(run_keys.size):
            place = start + _count_ahead(run_keys, i)
            sorted_keys[place], sorted_items[place] = run_keys[i], items[start + i]
    while run < n:
        for start in range(0, n, 2 * run):
            end = min(start + 2 * run, n)
            two_runs = slice(start, end)
            _merge(
                sorted_keys[two_runs],
                sorted_items[two_runs],
                min(run, end - start),
                spare_keys[two_runs],
                spare_items[two_runs],
            )
        sorted_keys, spare_keys = spare_keys, sorted_keys
        sorted_items, spare_items = spare_items, sorted_items
        run *= 2
    for i in range(n):
        items[i] = sorted_items[i]


@compiled
def _count_ahead(keys: Array, at: int) -> int:
    """How many keys are sorted before ``keys[at]``.

    No branch depends on the keys, so the processor mispredicts none.
    """
    count, key = 0, keys[at]
    for j in range(keys.size):
        count += (keys[j] > key) | ((keys[j] == key) & (j < at))
    return count


@compiled
def _merge(keys: Array, items: Array, middle: int, into: Array, moved: Array) -> None:
    """Merge the sorted keys before ``middle`` with those from it on, and their items with them."""
    a, b = 0, middle
    for i in range(keys.size):
        first = b == keys.size or (a < middle and keys[a] >= keys[b])
        at = a if first else b
        into[i], moved[i] = keys[at], items[at]
        a += first
        b += not first


@compiled
def sort_by_label(labels: Array, items: Array) -> None:
    """Sort ``items`` in place by descending ``labels[item]``, stable."""
    counts = np.zeros(_COUNTED_LABELS + 1, np.int64)
    for i in range(items.size):
        label = labels[items[i]]
        if not 0 <= label < _COUNTED_LABELS or label != math.floor(label):
            sort_descending(labels, items)
            return
        counts[np.int64(label)] += 1
    # counts[value + 1] becomes the number of larger labels: where the first item of label `value`
    # goes.
    for value in range(_COUNTED_LABELS - 1, -1, -1):
        counts[value] += counts[value + 1]
    for item in items.copy():
        slot = np.int64(labels[item]) + 1
        items[counts[slot]] = item
        counts[slot] += 1


@compiled
def gains_of(labels: Array, metric: int, linear: bool, threshold: float) -> Array:
    """The gains of labels, both ``[items]``.

    For err the gain of a label y is ``(2^y - 1) / 2^g``, the probability that the item satisfies
    the user; g is the largest label or the threshold, whichever is larger.
    """
    gains = np.empty(labels.size)
    top = threshold
    if metric == ERR:
        for i in range(labels.size):
            top = max(top, labels[i])
    for i in range(labels.size):
        if metric == ARP or (linear and metric <= DCG):  # <= DCG: NDCG or DCG
            gains[i] = labels[i]
        elif metric <= DCG:
            gains[i] = np.exp2(labels[i]) - 1.0
        elif metric == ERR:
            gains[i] = np.exp2(labels[i] - top) - np.exp2(-top)
        else:
            gains[i] = 1.0 if labels[i] >= threshold else 0.0
    return gains


@compiled_reduction
def any_relevant(gains: Array, weights: Array) -> bool:
    """Whether an item has a positive gain and a positive weight."""
    count = 0.0
    for i in range(gains.size):
        count += 1.0 if (gains[i] > 0) & (weights[i] > 0) else 0.0
    return count > 0


@compiled
def ideal(gains: Array, discount: Array, k: int) -> float:
    """The ideal DCG@k: the largest that an order of these gains reaches."""
    end = gains.size if k == 0 else min(k, gains.size)
    kinds, counts = np.empty(_MAX_KINDS), np.empty(_MAX_KINDS, np.int64)
    n_kinds = _count_kinds(gains, kinds, counts)
    best = 0.0
    if n_kinds <= _MAX_KINDS:  # few distinct gains, as of integer labels, need no sort
        r = 0
        for kind in range(n_kinds):
            stop = min(r + counts[kind], end)
            best += kinds[kind] * total(discount[r:stop])
            r = stop
        return best
    order = indices(gains.size)
    sort_descending(gains, order)
    for r in range(end):
        best += gains[order[r]] * discount[r]
    return best


@compiled
def _count_kinds(gains: Array, kinds: Array, counts: Array) -> int:
    """Write the distinct gains, descending, and the count of each; return their number.

    If there are more distinct gains than ``kinds`` can hold, the result exceeds its size.
    """
    n_kinds = 0
    for i in range(gains.size):
        gain, at = gains[i], 0
        while at < n_kinds and kinds[at] > gain:
            at += 1
        if at < n_kinds and kinds[at] == gain:
            counts[at] += 1
            continue
        if n_kinds == kinds.size:
            return n_kinds + 1
        for later in range(n_kinds, at, -1):
            kinds[later], counts[later] = kinds[later - 1], counts[later - 1]
        kinds[at], counts[at] = gain, 1
        n_kinds += 1
    return n_kinds


@compiled
def norm_of(gains: Array, metric: int, k: int, discount: Array) -> float:
    """The divisor of the sum of weighted gains times discounts; 0 if it is undefined."""
    if metric == NDCG:
        return ideal(gains, discount, k)
    if metric == PRECISION:
        return float(gains.size if k == 0 else k)
    if metric in (RECALL, ARP, AP):
        return total(gains)
    return 1.0


@compiled
def beyond_cutoff(metric: int, k: int, n: int) -> float:
    """The discount of every rank past the cutoff."""
    return k + 1.0 if metric == ARP and 0 < k < n else 0.0
