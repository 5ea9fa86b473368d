"""What the twins share: slots as arrays, the items of a list in order, gains, discounts and norms.

All is computed in float64, whatever the scores are: sums over long lists then need no care, and
there is one compiled form of each loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankgrad.kernels.cpu.arithmetic import total
from rankgrad.kernels.cpu.compiled import compiled, compiled_reduction, share

Array = np.ndarray[Any, Any]

APART = 64  # numbers between the rows of a block: more than a loop takes at a time
_RUN = 64  # items that are sorted by counting
_WHOLE = 32  # labels up to it that are whole numbers are sorted by counting
_KINDS = 12  # unequal gains that are counted instead of being sorted

NDCG, DCG, PRECISION, RECALL, RBP, ARP = range(6)
METRICS = {
    "ndcg": NDCG,
    "dcg": DCG,
    "precision": PRECISION,
    "recall": RECALL,
    "rbp": RBP,
    "arp": ARP,
}


@dataclass(frozen=True)
class Slots:
    """An operation's lists as arrays, and the results to be filled in."""

    scores: Array
    labels: Array
    mask: Array
    weights: Array
    offsets: Array
    values: Array
    slopes: Array
    defined: Array

    @classmethod
    def of(
        cls,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None,
        weights: Tensor | None,
        offsets: Tensor,
    ) -> Slots:
        """Arrays of the slots; a mask or weights that are not there are empty ones."""
        bounds = offsets.to(torch.int64).contiguous().numpy()
        lists = len(bounds) - 1
        return cls(
            scores=numbers(scores),
            labels=numbers(labels),
            mask=flags(mask),
            weights=np.empty(0) if weights is None else numbers(weights),
            offsets=bounds,
            values=np.zeros(lists),
            slopes=np.zeros(scores.numel()),
            defined=np.zeros(lists, np.bool_),
        )

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What every loop takes first."""
        return (
            self.scores,
            self.labels,
            self.mask,
            self.weights,
            self.offsets,
            self.values,
            self.slopes,
            self.defined,
        )

    def each(
        self, work: Callable[..., None], *options: Any, steps: int = 16, power: int = 1
    ) -> None:
        """Run a loop over all lists: so many steps for each item, and a power of their number."""
        lengths = np.diff(self.offsets).astype(np.float64)
        share(steps * lengths + lengths**power, lambda a, b: work(a, b, *self.arrays, *options))

    def results(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values, slopes and defined, as tensors like the scores."""
        return (
            torch.from_numpy(self.values).to(scores.dtype),
            torch.from_numpy(self.slopes).to(scores.dtype).reshape(scores.shape),
            torch.from_numpy(self.defined),
        )


def numbers(tensor: Tensor) -> Array:
    """A flat float64 array of a tensor."""
    flat: Array = tensor.detach().reshape(-1).to(torch.float64).contiguous().numpy()
    return flat


def flags(mask: Tensor | None) -> Array:
    """A flat array of a mask; an empty one if there is none."""
    if mask is None:
        return np.empty(0, np.bool_)
    flat: Array = mask.reshape(-1).contiguous().numpy()
    return flat


def discounts(metric: str, persistence: float, longest: int) -> Array:
    """What the ranks 1, 2, ... are worth."""
    ranks = np.arange(1, longest + 1, dtype=np.float64)
    if metric in ("ndcg", "dcg"):
        return np.asarray(1 / np.log2(1 + ranks))
    if metric == "rbp":
        return np.asarray((1 - persistence) * persistence ** (ranks - 1))
    return ranks if metric == "arp" else np.ones_like(ranks)


@compiled
def new_block(rows: int, n: int) -> Array:
    """Rows of n numbers, all 0, in one block of memory: row r is ``block[r, :n]``.

    Loops on arrays that lie closer together than a few vectors run one item at a time.
    """
    return np.zeros((rows, n + APART))


@compiled
def real_slots(mask: Array, first: int, last: int) -> Array:
    """The slots of a list that are no padding."""
    slots = np.empty(last - first, np.int64)
    count = 0
    for slot in range(first, last):
        slots[count] = slot
        if mask.size == 0 or mask[slot]:
            count += 1
    return slots[:count]


@compiled
def take(values: Array, slots: Array) -> Array:
    """Some of the values; ones where there are no values."""
    taken = np.ones(slots.size)
    if values.size:
        for i in range(slots.size):
            taken[i] = values[slots[i]]
    return taken


@compiled
def sort_descending(keys: Array, slots: Array) -> None:
    """Order slots by descending key, equal ones as they came: runs by counting, then merges."""
    n, run = slots.size, _RUN
    source, target = np.empty(n), np.empty_like(slots)
    other, moved = np.empty(n), slots
    for i in range(n):
        other[i] = keys[slots[i]]
    for start in range(0, n, run):
        some = slice(start, min(start + run, n))
        _count(other[some], moved[some], source[some], target[some])
    while run < n:
        for start in range(0, n, 2 * run):
            end = min(start + 2 * run, n)
            some = slice(start, end)
            _merge(source[some], target[some], min(run, end - start), other[some], moved[some])
        source, other, target, moved = other, source, moved, target
        run *= 2
    for i in range(n):
        slots[i] = target[i]


@compiled
def _count(keys: Array, slots: Array, into: Array, moved: Array) -> None:
    """Put each where as many are ahead of it: no branch depends on the keys."""
    for i in range(keys.size):
        key = keys[i]
        place = int(_ahead(key, keys[:i], True) + _ahead(key, keys[i + 1 :], False))
        into[place], moved[place] = key, slots[i]


@compiled_reduction
def _ahead(key: float, keys: Array, equal: bool) -> float:
    count = 0.0
    if equal:
        for j in range(keys.size):
            count += 1.0 if keys[j] >= key else 0.0
    else:
        for j in range(keys.size):
            count += 1.0 if keys[j] > key else 0.0
    return count


@compiled
def _merge(keys: Array, slots: Array, middle: int, into: Array, moved: Array) -> None:
    """Merge what stands before the middle with the rest, without a branch on the keys."""
    a, b, i, n = 0, middle, 0, keys.size
    while a < middle and b < n:
        first = keys[a] >= keys[b]
        at = a if first else b
        into[i], moved[i] = keys[at], slots[at]
        a += first
        b += not first
        i += 1
    while a < middle:
        into[i], moved[i] = keys[a], slots[a]
        a += 1
        i += 1
    while b < n:
        into[i], moved[i] = keys[b], slots[b]
        b += 1
        i += 1


@compiled
def sort_by_label(labels: Array, slots: Array) -> None:
    """Order slots by descending label, equal ones as they came."""
    counts = np.zeros(_WHOLE + 1, np.int64)
    for i in range(slots.size):
        label = labels[slots[i]]
        if not 0 <= label < _WHOLE or label != math.floor(label):
            sort_descending(labels, slots)
            return
        counts[int(label)] += 1
    # Where the items of each label begin.
    for label in range(_WHOLE - 1, -1, -1):
        counts[label] += counts[label + 1]
    for slot in slots.copy():
        place = int(labels[slot]) + 1
        slots[counts[place]] = slot
        counts[place] += 1


def level(threshold: float, scores: Tensor) -> float:
    """A threshold in the precision of labels: one of 0.7 is reached by a label of 0.7."""
    return float(torch.tensor(threshold, dtype=scores.dtype))


@compiled
def gains_of(labels: Array, metric: int, linear: bool, threshold: float) -> Array:
    """What items are worth by their labels."""
    gains = np.empty(labels.size)
    for i in range(labels.size):
        if metric == ARP or (linear and metric <= DCG):
            gains[i] = labels[i]
        elif metric <= DCG:
            gains[i] = np.exp2(labels[i]) - 1.0
        else:
            gains[i] = 1.0 if labels[i] >= threshold else 0.0
    return gains


@compiled_reduction
def any_relevant(gains: Array, weights: Array) -> bool:
    """Whether an item counts."""
    count = 0.0
    for i in range(gains.size):
        count += 1.0 if (gains[i] > 0) & (weights[i] > 0) else 0.0
    return count > 0


@compiled
def ideal(gains: Array, discount: Array, k: int) -> float:
    """The largest DCG@k of these gains."""
    end = gains.size if k == 0 else min(k, gains.size)
    kinds, counts = np.empty(_KINDS), np.empty(_KINDS, np.int64)
    found = _count_kinds(gains, kinds, counts)
    best = 0.0
    if found <= _KINDS:  # as with whole labels: no need to sort
        r = 0
        for kind in range(found):
            stop = min(r + counts[kind], end)
            best += kinds[kind] * total(discount[r:stop])
            r = stop
        return best
    order = np.arange(gains.size)
    sort_descending(gains, order)
    for r in range(end):
        best += gains[order[r]] * discount[r]
    return best


@compiled
def _count_kinds(gains: Array, kinds: Array, counts: Array) -> int:
    """The unequal gains in descending order, how often each occurs, and how many they are."""
    found = 0
    for i in range(gains.size):
        gain, at = gains[i], 0
        while at < found and kinds[at] > gain:
            at += 1
        if at < found and kinds[at] == gain:
            counts[at] += 1
            continue
        if found == kinds.size:
            return found + 1
        for later in range(found, at, -1):
            kinds[later], counts[later] = kinds[later - 1], counts[later - 1]
        kinds[at], counts[at] = gain, 1
        found += 1
    return found


@compiled
def norm_of(gains: Array, metric: int, k: int, discount: Array) -> float:
    """What the sum of weighted gain times discount is divided by; 0 where that is undefined."""
    if metric == NDCG:
        return ideal(gains, discount, k)
    if metric == PRECISION:
        return float(gains.size if k == 0 else k)
    if metric in (RECALL, ARP):
        return total(gains)
    return 1.0


@compiled
def beyond_cutoff(metric: int, k: int, n: int) -> float:
    """What every rank past the cutoff is worth."""
    return k + 1.0 if metric == ARP and 0 < k < n else 0.0


@compiled
def finish(value: float, metric: int) -> float:
    """The loss of a metric's value."""
    return value if metric == ARP else 1.0 - value
