"""Lists of items: the one place that knows how they are laid out.

Every loss and metric takes the same two layouts, and turns them into :class:`Lists` first:

- padded: ``[..., n]`` tensors, with a boolean ``mask`` that is True on real items. Padding may
  stand anywhere and hold anything, NaN included;
- ragged: flat ``[N]`` tensors with ``offsets`` ``[B + 1]``; list ``b`` is
  ``offsets[b]:offsets[b + 1]``. Without offsets, a 1-D tensor is one list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional as F

from rankgrad.shapes import Bool, Float, Int
from rankgrad.validation import check_whole

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[Reduction, ...] = ("mean", "sum", "none")

_TILE = 1 << 18  # numbers held at a time: what a processor cache takes
_MOST_CACHED, _MOST_LISTS = 64, 1 << 16  # cached offsets of padded lists, and the most lists of one


class FlatLists(NamedTuple):
    """Lists in the flat layout: list ``b`` is ``offsets[b]:offsets[b + 1]`` of every tensor.

    Padded ``[b, n]`` tensors are flat as they lie, with ``offsets = 0, n, 2n, ...`` and a mask. As
    a tuple, they are the arguments that every operation of a loss begins with.

    The tensors are contiguous. On a CPU they have the shape that the caller gave, as a view would
    be one more step of autograd; the layout is that of their memory.

    Attributes:
        scores: ``[items]``.
        labels: ``[items]``, of the scores' type.
        mask: ``[items]``, False on padding, or None without padding. What padding holds is never
            read, nor what comes after the last list; results are not written there.
        weights: ``[items]``, of the scores' type, or None.
        offsets: ``[lists + 1]``.
        max_length: a bound on the lists' lengths, padding included, that the host knows, so that
            nothing waits for the device. If lists times it is all items, every list has so many.
    """

    scores: Float[Tensor, " items"]
    labels: Float[Tensor, " items"]
    mask: Bool[Tensor, " items"] | None
    weights: Float[Tensor, " items"] | None
    offsets: Int[Tensor, " bounds"]
    max_length: int


@dataclass(frozen=True)
class Lists:
    """A batch of lists: flat, and as the ``[b, n]`` tensors with a mask that eager forms take.

    The padded form is made when it is first asked for; in it, padding holds zeros.
    :func:`rankgrad.inputs.as_lists` makes lists of what callers pass.

    Attributes:
        flat: the lists in the flat layout.
        list_weights: one for each list, or None.
        shape: the caller's batch shape, which per-list results are given in.
        ragged: whether the caller gave flat tensors with offsets.
        finite: whether the scores are known to be finite.
        large: whether a label may be too large for the gain 2^y - 1.

    >>> from rankgrad.inputs import as_lists
    >>> lists = as_lists([3.0, 1.0, 2.0], [1, 0, 2], offsets=[0, 1, 3])
    >>> lists.scores.tolist(), lists.mask.tolist()
    ([[3.0, 0.0], [1.0, 2.0]], [[True, False], [True, True]])
    """

    flat: FlatLists
    list_weights: Float[Tensor, " b"] | None
    shape: tuple[int, ...]
    ragged: bool = False
    finite: bool = False
    large: bool = False
    # functools.cached_property takes a lock, which torch.compile cannot follow.
    _made: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_padded(
        cls,
        scores: Float[Tensor, "b n"],
        labels: Float[Tensor, "b n"],
        mask: Bool[Tensor, "b n"],
        item_weights: Float[Tensor, "b n"] | None,
    ) -> Lists:
        """Lists of tensors that are known to be right, so that nothing is checked."""
        flat = flatten(scores, labels, mask, item_weights)
        return cls(flat, None, (len(scores),), finite=True)

    @property
    def mask(self) -> Bool[Tensor, "b n"]:
        """True on real items."""
        if "mask" not in self._made:
            self._made["mask"] = self._make_mask()
        return self._made["mask"]

    @property
    def scores(self) -> Float[Tensor, "b n"]:
        """The scores, 0 on padding."""
        if "scores" not in self._made:
            # The result is cached, so it is attached to the graph even under no_grad.
            with torch.enable_grad():
                self._made["scores"] = self._pad(self.flat.scores)
        return self._made["scores"]

    @property
    def labels(self) -> Float[Tensor, "b n"]:
        """The labels, 0 on padding."""
        if "labels" not in self._made:
            self._made["labels"] = self._pad(self.flat.labels)
        return self._made["labels"]

    @property
    def item_weights(self) -> Float[Tensor, "b n"] | None:
        """The items' weights, 0 on padding."""
        if self.flat.weights is None:
            return None
        if "weights" not in self._made:
            self._made["weights"] = self._pad(self.flat.weights)
        return self._made["weights"]

    @property
    def lengths(self) -> Int[Tensor, " b"]:
        """The number of real items of each list."""
        return self.flat.offsets.diff() if self.ragged else self.mask.sum(-1)

    def repeat(self, scores: Float[Tensor, "samples b n"]) -> Lists:
        """Several samples of the scores, each with the labels and weights of these lists."""
        samples, _, n = scores.shape
        weights = self.item_weights
        return Lists.from_padded(
            scores=scores.reshape(-1, n),
            labels=self.labels.repeat(samples, 1),
            mask=self.mask.repeat(samples, 1),
            item_weights=None if weights is None else weights.repeat(samples, 1),
        )

    def weighted(self, terms: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Per-item terms times the item weights, where there are any."""
        return terms if self.item_weights is None else terms * self.item_weights

    def _make_mask(self) -> Tensor:
        flat = self.flat
        if self.ragged:
            lengths = flat.offsets.diff()
            places = torch.arange(max(1, flat.max_length), device=lengths.device)
            return places < lengths[:, None]
        if flat.mask is None:
            return self._rows(torch.ones_like(flat.scores, dtype=torch.bool))
        return self._rows(flat.mask)

    def _rows(self, flat: Tensor) -> Tensor:
        return flat.reshape(-1, max(1, self.flat.max_length))

    def _pad(self, flat: Tensor) -> Tensor:
        # The result is cached, so it is attached to the graph even under no_grad.
        with torch.enable_grad():
            if not self.ragged:
                rows = self._rows(flat)
                return rows if self.flat.mask is None else rows.where(self.mask, 0.0)
            starts, places = self.flat.offsets[:-1, None], self.mask.cumsum(-1) - 1
            if flat.numel() == 0:
                return flat.new_zeros(self.mask.shape) + flat.sum()
            at = (starts + places).clamp(min=0, max=flat.numel() - 1)
            return flat[at].where(self.mask, 0.0)


def reduce(
    values: Float[Tensor, " b"],
    defined: Bool[Tensor, " b"],
    lists: Lists,
    reduction: Reduction,
) -> Float[Tensor, ...]:
    """Per-list losses to the result: lists on which the loss is undefined are left out.

    ``"mean"`` is the weighted mean over the lists that are in, 0 when there are none; ``"sum"`` the
    weighted sum; ``"none"`` the weighted values in the caller's batch shape, 0 for lists left out.
    """
    weights = defined.to(values)
    if lists.list_weights is not None:
        weights = weights * lists.list_weights
    if reduction == "none":
        return (values * weights).reshape(lists.shape)
    if reduction == "mean":
        total = weights.sum()
        weights = weights / torch.where(total > 0, total, 1.0)
    return values @ weights


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient, and 0 with a zero gradient where the denominator is not above 0.

    >>> divide(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]))
    tensor([0.5000, 0.0000])
    """
    above = denominator > 0
    return torch.where(above, numerator, 0.0) / torch.where(above, denominator, 1.0)


def log_softmax(logits: Float[Tensor, "b n"], mask: Bool[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """The logarithm of the softmax over the real items; 0 on padding.

    >>> log_softmax(torch.zeros(1, 3), torch.tensor([[True, True, False]])).exp()
    tensor([[0.5000, 0.5000, 1.0000]])
    """
    empty = ~mask.any(-1, keepdim=True)
    inside = torch.where(mask | empty, logits, float("-inf"))
    return torch.where(mask, inside.log_softmax(-1), 0.0)


def descending(
    scores: Float[Tensor, "b n"],
    mask: Bool[Tensor, "b n"],
    labels: Float[Tensor, "b n"] | None = None,
) -> Int[Tensor, "b n"]:
    """The order of the items by descending score, padding last.

    Ties are broken by input order or, given ``labels``, with the less relevant item first. Then the
    order does not depend on how a file was sorted, and constant scores get the worst value.

    >>> mask = torch.ones(1, 3, dtype=torch.bool)
    >>> descending(torch.tensor([[1.0, 2.0, 1.0]]), mask).tolist()
    [[1, 0, 2]]
    >>> descending(torch.tensor([[1.0, 2.0, 1.0]]), mask, torch.tensor([[1.0, 0, 0]])).tolist()
    [[1, 2, 0]]
    """
    lowest = torch.finfo(scores.dtype).min
    keys = scores.detach().clamp(min=lowest).masked_fill(~mask, float("-inf"))
    if labels is None:
        return keys.argsort(dim=-1, descending=True, stable=True)
    by_label = labels.argsort(dim=-1, stable=True)
    by_score = keys.gather(-1, by_label).argsort(dim=-1, descending=True, stable=True)
    return by_label.gather(-1, by_score)


def invert(order: Int[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """The inverse permutation: where each item went."""
    positions = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, positions)


def hard_ranks(
    scores: Float[Tensor, "b n"],
    mask: Bool[Tensor, "b n"],
    labels: Float[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b n"]:
    """1-based ranks by descending score as numbers, ties as in :func:`descending`."""
    return (invert(descending(scores, mask, labels)) + 1).to(scores.dtype)


def tiles(width: int, n: int) -> Iterator[slice]:
    """Ranges of n rows, as many at a time as fit into one tile of memory at this width."""
    height = max(1, _TILE // max(1, width))
    for start in range(0, n, height):
        yield slice(start, min(start + height, n))


def tie_groups(
    scores: Float[Tensor, "b n"],
) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
    """Where each item's group of equal scores starts and ends (exclusive), in sorted scores.

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


class Randomness:
    """Random numbers per item that depend on the seed and the items, not on how they are padded.

    Args:
        seed: a number, a ``torch.Generator``, or None for PyTorch's own generator.
    """

    def __init__(self, seed: int | torch.Generator | None) -> None:
        if not isinstance(seed, torch.Generator | None):
            seed = check_whole("seed", seed, least=0, most=2**63 - 1)
        self._generators: dict[str, torch.Generator] = {}
        #: Drawn from where there is no seed, in place of PyTorch's own generator.
        self.fallback: torch.Generator | None = None
        if isinstance(seed, torch.Generator):
            self._generators[str(seed.device)] = seed
            seed = seed.initial_seed()
        self.seed = seed

    def exponential(
        self, mask: Bool[Tensor, "b n"], samples: int = 1
    ) -> Float[Tensor, "samples b n"]:
        """Standard exponential numbers on the real items, above 0; 1 on padding."""
        if mask.is_cuda or torch._C._are_functorch_transforms_active():
            return self._hashed(mask, samples)
        drawn = torch.empty(samples, int(mask.sum()), dtype=torch.float64, device=mask.device)
        drawn.exponential_(generator=self.generator(mask.device)).clamp_(min=1e-300)
        numbers = torch.ones(samples, *mask.shape, dtype=torch.float64, device=mask.device)
        return numbers.masked_scatter_(mask.expand_as(numbers), drawn)

    def _hashed(self, mask: Tensor, samples: int) -> Tensor:
        """The same without asking a GPU how many items are real, so that CUDA graphs can draw.

        A hash of one drawn number, the sample and the item's place.
        """
        place = mask.reshape(-1).cumsum(0).reshape(mask.shape)
        sample = torch.arange(samples, device=mask.device).reshape(-1, *[1] * mask.dim())
        bits = _shift(splitmix(self.draw_seed(mask.device), place + (sample << 40)), 11)
        numbers = -torch.log((bits.double() + 0.5) * 2.0**-53)
        return torch.where(mask, numbers, 1.0)

    def draw_seed(self, device: torch.device) -> Int[Tensor, 1]:
        """A number for a hash, drawn on the device, so that a CUDA graph draws anew as well.

        Under ``torch.func.vmap`` all calls share it, and so their noise.
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

    Products of 64 bits wrap around alike with and without a sign; shifts must not copy it.
    """
    state = seed + counters * (0x9E3779B97F4A7C15 - 2**64)
    state = (state ^ _shift(state, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    state = (state ^ _shift(state, 27)) * (0x94D049BB133111EB - 2**64)
    return state ^ _shift(state, 31)


def _shift(numbers: Tensor, bits: int) -> Tensor:
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def has_pairs(labels: Float[Tensor, "b n"], mask: Bool[Tensor, "b n"]) -> Bool[Tensor, " b"]:
    """Whether a list has two unequal labels."""
    highest = labels.masked_fill(~mask, float("-inf")).amax(-1)
    lowest = labels.masked_fill(~mask, float("inf")).amin(-1)
    return highest > lowest


def row_offsets(padded: Float[Tensor, "*b n"]) -> tuple[Int[Tensor, " bounds"], int]:
    """The offsets of padded rows in the flat layout, and their width."""
    n = padded.shape[-1]
    lists = padded.numel() // max(1, n)
    if not torch.compiler.is_compiling() and type(padded) in (Tensor, torch.nn.Parameter):
        return _cached_offsets(lists, n, padded.device), n
    return _offsets(lists, n, padded.device), n


def _offsets(lists: int, n: int, device: torch.device) -> Int[Tensor, " c"]:
    return torch.arange(0, lists * max(1, n) + 1, max(1, n), device=device)


@dataclass
class _CachedOffsets:
    """Offsets of padded rows, which come again at every step.

    Args:
        offsets: made once.
        made: on a GPU, the event after which they can be read, until it is known to be over.
        stream: the one that made them.
    """

    offsets: Int[Tensor, " c"]
    made: Any = None
    stream: Any = None

    def readable(self) -> bool:
        """Whether kernels that are launched now find them, without the host waiting for it."""
        if self.made is None:
            return True
        if torch.cuda.is_current_stream_capturing():
            return False  # a graph cannot wait for what is outside of it
        if self.made.query():
            self.made = None
        elif (here := torch.cuda.current_stream(self.offsets.device)) != self.stream:
            here.wait_event(self.made)
        return True


#: None is ever dropped: a CUDA graph that reads them may be replayed at any time.
_cache: dict[tuple[int, int, torch.device], _CachedOffsets] = {}


def _cached_offsets(lists: int, n: int, device: torch.device) -> Int[Tensor, " c"]:
    found = _cache.get((lists, n, device))
    if found is not None and found.readable():
        return found.offsets
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    with torch.inference_mode(False):  # so that a later backward pass may save them
        cached = _CachedOffsets(_offsets(lists, n, device))
    if capturing or len(_cache) >= _MOST_CACHED or lists > _MOST_LISTS:
        return cached.offsets
    if is_functorch_wrapped_tensor(cached.offsets):  # of a transform of torch.func, gone with it
        return cached.offsets
    if device.type == "cuda":
        cached.stream = torch.cuda.current_stream(device)
        cached.made = cached.stream.record_event()
    _cache[lists, n, device] = cached
    return cached.offsets


def flatten(
    scores: Tensor, labels: Tensor, mask: Tensor | None, weights: Tensor | None
) -> FlatLists:
    """``[..., n]`` tensors in the flat layout; a list has space for one item at least."""
    if scores.shape[-1] == 0:
        mask = torch.zeros_like(scores, dtype=torch.bool) if mask is None else mask
        scores, labels, mask = (F.pad(x, (0, 1)) for x in (scores, labels, mask))
        weights = None if weights is None else F.pad(weights, (0, 1))
    return contiguous(FlatLists(scores, labels, mask, weights, *row_offsets(scores)))


def contiguous(lists: FlatLists) -> FlatLists:
    """Tensors of any shape as contiguous memory, flat tensors but on a CPU."""
    scores, labels, mask, weights, offsets, max_length = lists
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if transformed or not scores.is_cpu:
        scores, labels = scores.reshape(-1), labels.reshape(-1)
        mask = None if mask is None else mask.reshape(-1)
        weights = None if weights is None else weights.reshape(-1)
    return FlatLists(
        scores.contiguous(),
        labels.contiguous(),
        None if mask is None else mask.contiguous(),
        None if weights is None else weights.contiguous(),
        offsets.contiguous(),
        max_length,
    )


def is_unchecked(*tensors: Tensor) -> bool:
    """Whether values of one of these tensors cannot be read now.

    That is in compiled code, where a CUDA graph is captured, under a transform of ``torch.func``,
    and where there are no values.
    """
    if torch.compiler.is_compiling():
        return True
    for tensor in tensors:
        if tensor.is_meta or is_functorch_wrapped_tensor(tensor):
            return True
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return True
    return False
