"""Arithmetic on padded lists: ``[b, n]`` tensors and masks that are True on real items.

The eager forms of losses, metrics and relaxations are written with these functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rankgrad._shapes import Float, Int, ItemMask, ItemValues, ListMask
from rankgrad._validation import check_whole

_TILE = 1 << 18  # numbers of a tile, which fit into the cache of a CPU


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient; 0, with a zero gradient, where the denominator is not above 0.

    >>> divide(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]))
    tensor([0.5000, 0.0000])
    """
    is_positive = denominator > 0
    return torch.where(is_positive, numerator, 0.0) / torch.where(is_positive, denominator, 1.0)


def exponential_gains(labels: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """``2^y - 1``: exact for whole labels, and without cancellation for small ones.

    >>> exponential_gains(torch.tensor([2.0, 1e-8]))
    tensor([3.0000e+00, 6.9315e-09])
    """
    return torch.where(labels < 0.5, torch.expm1(labels * math.log(2)), torch.exp2(labels) - 1)


def log_softmax(logits: ItemValues, mask: ItemMask) -> ItemValues:
    """The logarithm of the softmax over the real items; 0 on padding.

    >>> log_softmax(torch.zeros(1, 3), torch.tensor([[True, True, False]])).exp()
    tensor([[0.5000, 0.5000, 1.0000]])
    """
    is_empty = ~mask.any(-1, keepdim=True)  # with -inf alone, the softmax would be NaN
    real_logits = torch.where(mask | is_empty, logits, float("-inf"))
    return torch.where(mask, real_logits.log_softmax(-1), 0.0)


def standardize(scores: ItemValues, mask: ItemMask) -> ItemValues:
    """``(s - mean) / std`` within each list, 0 on padding.

    1e-6 is added to the variance, which bounds the gradient where all scores are tied.
    """
    length = mask.sum(-1, keepdim=True).to(scores.dtype)
    total = torch.where(mask, scores, 0.0).sum(-1, keepdim=True)
    centered = torch.where(mask, scores - divide(total, length), 0.0)
    variance = divide(centered.square().sum(-1, keepdim=True), length)
    return centered / (variance + 1e-6).sqrt()


def descending(
    scores: ItemValues, mask: ItemMask, labels: ItemValues | None = None
) -> Int[Tensor, "b n"]:
    """The indices that sort items by descending score, padding last.

    Ties keep their input order or, with ``labels``, have the less relevant item first. Then the
    order does not depend on how a file was sorted, and constant scores get the worst value.

    >>> mask = torch.ones(1, 3, dtype=torch.bool)
    >>> descending(torch.tensor([[1.0, 2.0, 1.0]]), mask).tolist()
    [[1, 0, 2]]
    >>> descending(torch.tensor([[1.0, 2.0, 1.0]]), mask, torch.tensor([[1.0, 0, 0]])).tolist()
    [[1, 2, 0]]
    """
    lowest = torch.finfo(scores.dtype).min  # replaces scores of -inf, so they precede padding
    keys = scores.detach().clamp(min=lowest).masked_fill(~mask, float("-inf"))
    if labels is None:
        return keys.argsort(dim=-1, descending=True, stable=True)
    by_label = labels.argsort(dim=-1, stable=True)
    by_score = keys.gather(-1, by_label).argsort(dim=-1, descending=True, stable=True)
    return by_label.gather(-1, by_score)


def invert(order: Int[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """The inverse permutation: the position of each item in the order."""
    positions = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, positions)


def hard_ranks(scores: ItemValues, mask: ItemMask, labels: ItemValues | None = None) -> ItemValues:
    """1-based ranks by descending score, of the scores' type; ties as in :func:`descending`."""
    return (invert(descending(scores, mask, labels)) + 1).to(scores.dtype)


def tie_groups(scores: ItemValues) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
    """Where the group of equal scores of each item starts, and where it ends (exclusive).

    Args:
        scores: sorted.

    >>> start, end = tie_groups(torch.tensor([[3.0, 2.0, 2.0, 1.0]]))
    >>> start.tolist(), end.tolist()
    ([[0, 1, 1, 3]], [[1, 3, 3, 4]])
    """
    n = scores.shape[-1]
    positions = torch.arange(n, device=scores.device)
    edge = torch.ones_like(scores[:, :1], dtype=torch.bool)
    differs = scores[:, 1:] != scores[:, :-1]
    first, last = torch.cat([edge, differs], -1), torch.cat([differs, edge], -1)
    start = torch.where(first, positions, 0).cummax(-1).values
    end = torch.where(last, positions + 1, n).flip(-1).cummin(-1).values.flip(-1)
    return start, end


def has_pairs(labels: ItemValues, mask: ItemMask) -> ListMask:
    """Whether a list has two unequal labels."""
    highest = labels.masked_fill(~mask, float("-inf")).amax(-1)
    lowest = labels.masked_fill(~mask, float("inf")).amin(-1)
    return highest > lowest


def tiles(width: int, n: int) -> Iterator[slice]:
    """Slices that cover n rows of ``width`` numbers, each with as many rows as fit into a tile."""
    height = max(1, _TILE // max(1, width))
    for start in range(0, n, height):
        yield slice(start, min(start + height, n))


def sums_ahead(values: ItemValues, ranks: ItemValues, beta: float) -> ItemValues:
    """``Σ_j value_j sigmoid(beta (rank_i - rank_j))`` for each item i.

    This relaxes ``Σ_j value_j 1[rank_j < rank_i]``; an item counts one half in its own sum.

    Args:
        values: ``[b, n]``, 0 on padding.
        ranks: relaxed ranks, ``[b, n]``.
        beta: the sharpness of the sigmoid.

    Returns:
        ``[b, n]``.
    """
    sums = []
    # A row is one item i of every list, paired with all items j: b n numbers.
    for rows in tiles(ranks.numel(), ranks.shape[-1]):
        is_ahead = torch.sigmoid(beta * (ranks[:, rows, None] - ranks[:, None, :]))
        sums.append((values[:, None, :] @ is_ahead.mT).squeeze(1))
    return torch.cat(sums, -1)


class Randomness:
    """Random numbers per item that depend on the seed and the items, not on how they are padded.

    Args:
        seed: a whole number, a ``torch.Generator``, or None for PyTorch's own generator.
    """

    def __init__(self, seed: int | torch.Generator | None) -> None:
        if not isinstance(seed, torch.Generator | None):
            seed = check_whole("seed", seed, least=0, most=2**63 - 1)
        self._generators: dict[str, torch.Generator] = {}
        #: Without a seed, the generator to use in place of PyTorch's own.
        self.fallback: torch.Generator | None = None
        if isinstance(seed, torch.Generator):
            self._generators[str(seed.device)] = seed
            seed = seed.initial_seed()
        self.seed = seed

    def exponential(self, mask: ItemMask, samples: int = 1) -> Float[Tensor, "samples b n"]:
        """Random numbers of the standard exponential distribution, above 0; 1 on padding."""
        if mask.is_cuda or torch._C._are_functorch_transforms_active():
            return self._hashed_exponential(mask, samples)
        drawn = torch.empty(samples, int(mask.sum()), dtype=torch.float64, device=mask.device)
        drawn.exponential_(generator=self.generator(mask.device)).clamp_(min=1e-300)
        numbers = torch.ones(samples, *mask.shape, dtype=torch.float64, device=mask.device)
        return numbers.masked_scatter_(mask.expand_as(numbers), drawn)

    def _hashed_exponential(self, mask: Tensor, samples: int) -> Tensor:
        """:meth:`exponential` by hashing one random number, the sample and the item's number.

        Items are numbered by counting real ones. The host need not know how many there are, so a
        CUDA graph can record this, and ``torch.func`` can transform it.
        """
        item = mask.reshape(-1).cumsum(0).reshape(mask.shape)
        sample = torch.arange(samples, device=mask.device).reshape(-1, *[1] * mask.dim())
        counters = item + (sample << 40)  # distinct for fewer than 2^40 items
        bits = _shift(splitmix(self.draw_seed(mask.device), counters), 11)  # the upper 53 of 64
        numbers = -torch.log((bits.double() + 0.5) * 2.0**-53)  # of uniform numbers in (0, 1)
        return torch.where(mask, numbers, 1.0)

    def draw_seed(self, device: torch.device) -> Int[Tensor, 1]:
        """A random number to hash. Each replay of a CUDA graph draws a new one, on the device.

        Under ``torch.func.vmap`` all mapped calls share the number, and so the noise.
        """
        with torch._C._DisableFuncTorch():
            seed = torch.empty(1, dtype=torch.int64, device=device)
            return seed.random_(generator=self.generator(device))

    def generator(self, device: torch.device) -> torch.Generator | None:
        """The generator on a device; None for PyTorch's own."""
        if self.seed is None:
            return self.fallback
        if str(device) not in self._generators:
            generator = torch.Generator(device).manual_seed(self.seed)
            self._generators[str(device)] = generator
        return self._generators[str(device)]


def splitmix(seed: Int[Tensor, 1], counters: Int[Tensor, "*items"]) -> Int[Tensor, "*items"]:
    """SplitMix64 (Steele et al. 2014) of a seed and counters, as kernels compute it.

    PyTorch has signed integers only. Products of 64 bits wrap around in the same way as unsigned
    ones; shifts copy the sign bit, so :func:`_shift` clears the copies.
    """
    state = seed + counters * (0x9E3779B97F4A7C15 - 2**64)
    state = (state ^ _shift(state, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    state = (state ^ _shift(state, 27)) * (0x94D049BB133111EB - 2**64)
    return state ^ _shift(state, 31)


def _shift(numbers: Tensor, bits: int) -> Tensor:
    """A logical right shift, which fills up with zeros."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
