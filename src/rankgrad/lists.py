"""Lists of items: the one place that knows how they are laid out.

Every loss and metric takes the same two layouts, and turns them into :class:`Lists` first:

- padded: ``[..., n]`` tensors, with a boolean ``mask`` that is True on real items. Padding may
  stand anywhere and hold anything, NaN included;
- flat: ``[N]`` tensors with ``offsets`` ``[B + 1]``; list ``b`` is ``offsets[b]:offsets[b + 1]``.
  Without offsets, a 1-D tensor is one list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional as F

from rankgrad.given import (
    Look,
    as_scores,
    as_tensor,
    check_column,
    check_mask,
    check_offsets,
    shape_of,
    split_weights,
    unseen,
)
from rankgrad.kernels import ops, ready
from rankgrad.options import check_whole

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[Reduction, ...] = ("mean", "sum", "none")

_TILE = 1 << 18  # numbers held at a time: what a processor cache takes
_MOST_KEPT, _MOST_LISTS = 64, 1 << 16  # offsets of padded lists kept, and of how many lists


class Slots(NamedTuple):
    """Lists as flat memory, as fused operations take them: list b is ``offsets[b]:offsets[b + 1]``.

    Padded tensors are slots as they lie, with a mask. What padding holds is not to be looked at,
    nor what comes after the last list; results are not written there. ``longest`` bounds the number
    of slots of a list; if lists times that is all slots, every list has so many. As a tuple, they
    are the arguments that every fused operation begins with.
    """

    scores: Float[Tensor, " s"]
    labels: Float[Tensor, " s"]
    mask: Bool[Tensor, " s"] | None
    weights: Float[Tensor, " s"] | None
    offsets: Int[Tensor, " c"]
    longest: int


@dataclass(frozen=True)
class Lists:
    """A batch of lists: as slots, and as the ``[b, n]`` tensors with a mask that all else is on.

    The padded form is made when it is first asked for; in it, padding holds zeros. ``shape`` is the
    caller's batch shape, which per-list results are given in. ``finite`` says that the scores were
    seen to be finite, ``large`` that a label was seen that may be too large for the gain 2^y - 1.

    >>> lists = Lists.of([3.0, 1.0, 2.0], [1, 0, 2], offsets=[0, 1, 3])
    >>> lists.scores.tolist(), lists.mask.tolist()
    ([[3.0, 0.0], [1.0, 2.0]], [[True, False], [True, True]])
    """

    slots: Slots
    list_weights: Float[Tensor, " b"] | None
    shape: tuple[int, ...]
    flat: bool = False
    finite: bool = False
    large: bool = False
    _looking: Look | None = field(default=None, repr=False, compare=False)
    # functools.cached_property takes a lock, which torch.compile cannot follow.
    _made: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        scores: Any,
        labels: Any,
        mask: Any = None,
        *,
        offsets: Any = None,
        weights: Any = None,
        check: bool = True,
    ) -> Lists:
        """Check the input, name what is wrong with it, and bring it into the common layout.

        Values are not looked at with ``check=False``, in compiled code and where a CUDA graph is
        captured: there is nobody there to tell.
        """
        return cls.begun(
            scores, labels, mask, offsets=offsets, weights=weights, check=check
        ).settled()

    @classmethod
    def begun(
        cls,
        scores: Any,
        labels: Any,
        mask: Any = None,
        *,
        offsets: Any = None,
        weights: Any = None,
        check: bool = True,
    ) -> Lists:
        """:meth:`of`, of which a GPU may still look at the values until they are :meth:`settled`.

        Meanwhile there is time to prepare what is to be done with them.
        """
        scores, labels = as_scores(scores), as_tensor("labels", labels)
        if labels.shape != scores.shape:
            raise ValueError(
                f"labels have shape {shape_of(labels)}, scores {shape_of(scores)}: they must agree"
            )
        if offsets is None:
            check_column(scores)
        longest = 0
        if offsets is not None:
            offsets, longest = check_offsets(offsets, scores, mask)
        elif mask is not None:
            mask = check_mask(mask, scores)
        if labels.dtype != scores.dtype or labels.device != scores.device:
            labels = labels.to(scores)
        item_weights, list_weights = split_weights(weights, scores, offsets)
        if offsets is not None:
            slots = _slots(scores, labels, None, item_weights, offsets, longest)
            shape: tuple[int, ...] = (len(offsets) - 1,)
        else:
            shape = tuple(scores.shape[:-1]) or (1,)
            slots = _padded_slots(scores, labels, mask, item_weights)
        per_list = None if list_weights is None else list_weights.reshape(-1).contiguous()
        flat = offsets is not None
        if not check or unseen(scores):
            return cls(slots, per_list, shape, flat)
        looked = Look(scores, labels, mask, item_weights, list_weights)
        if ready("look", slots.scores):
            looked.verdict = ops.look(
                slots.scores, slots.labels, slots.mask, slots.weights, per_list
            )
            return cls(slots, per_list, shape, flat, finite=True, _looking=looked)
        return cls(slots, per_list, shape, flat, *looked.closely())

    def settled(self) -> Lists:
        """The lists once their values have been looked at; an error that says what is wrong."""
        looked = self._looking
        if looked is None:
            return self
        object.__setattr__(self, "_looking", None)
        if looked.verdict():
            return self
        finite, large = looked.closely()
        return replace(self, finite=finite, large=large)

    @classmethod
    def padded(
        cls,
        scores: Float[Tensor, "b n"],
        labels: Float[Tensor, "b n"],
        mask: Bool[Tensor, "b n"],
        item_weights: Float[Tensor, "b n"] | None,
    ) -> Lists:
        """Lists of tensors that are known to be right."""
        slots = _padded_slots(scores, labels, mask, item_weights)
        return cls(slots, None, (len(scores),), finite=True)

    @classmethod
    def trusted(
        cls,
        scores: Float[Tensor, "*items"],
        labels: Float[Tensor, "*items"],
        mask: Bool[Tensor, "b n"] | None = None,
        *,
        offsets: Int[Tensor, " c"] | None = None,
        longest: int = 0,
        weights: Float[Tensor, "*items"] | None = None,
    ) -> Lists:
        """:meth:`of` for what is known to be right: nothing is looked at, so nothing waited for.

        All tensors are on one device. With offsets, ``longest`` bounds the lists' lengths, and the
        last one may be followed by room, as :class:`Slots` says.
        """
        scores = as_scores(scores)
        labels, weights = labels.to(scores), None if weights is None else weights.to(scores)
        if offsets is None:
            slots = _padded_slots(scores, labels, mask, weights)
            return cls(slots, None, tuple(scores.shape[:-1]) or (1,), finite=True)
        slots = _slots(scores, labels, None, weights, offsets, longest)
        return cls(slots, None, (len(offsets) - 1,), flat=True, finite=True)

    @property
    def unseen(self) -> bool:
        """Whether values cannot be looked at now: compiled code, a captured CUDA graph."""
        return unseen(self.slots.scores)

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
            # Kept for all who ask, so attached to the graph even if the first needs none.
            with torch.enable_grad():
                self._made["scores"] = self._pad(self.slots.scores)
        return self._made["scores"]

    @property
    def labels(self) -> Float[Tensor, "b n"]:
        """The labels, 0 on padding."""
        if "labels" not in self._made:
            self._made["labels"] = self._pad(self.slots.labels)
        return self._made["labels"]

    @property
    def item_weights(self) -> Float[Tensor, "b n"] | None:
        """The items' weights, 0 on padding."""
        if self.slots.weights is None:
            return None
        if "weights" not in self._made:
            self._made["weights"] = self._pad(self.slots.weights)
        return self._made["weights"]

    @property
    def lengths(self) -> Int[Tensor, " b"]:
        """The number of real items of each list."""
        return self.slots.offsets.diff() if self.flat else self.mask.sum(-1)

    def weighted(self, terms: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """Per-item terms times the item weights, where there are any."""
        return terms if self.item_weights is None else terms * self.item_weights

    def _make_mask(self) -> Tensor:
        slots = self.slots
        if self.flat:
            lengths = slots.offsets.diff()
            places = torch.arange(max(1, slots.longest), device=lengths.device)
            return places < lengths[:, None]
        if slots.mask is None:
            return self._rows(torch.ones_like(slots.scores, dtype=torch.bool))
        return self._rows(slots.mask)

    def _rows(self, slots: Tensor) -> Tensor:
        return slots.reshape(-1, max(1, self.slots.longest))

    def _pad(self, slots: Tensor) -> Tensor:
        # Kept for all that follows, so attached to the graph also if first asked for without one.
        with torch.enable_grad():
            if not self.flat:
                rows = self._rows(slots)
                return rows if self.slots.mask is None else rows.where(self.mask, 0.0)
            starts, places = self.slots.offsets[:-1, None], self.mask.cumsum(-1) - 1
            if slots.numel() == 0:
                return slots.new_zeros(self.mask.shape) + slots.sum()
            at = (starts + places).clamp(min=0, max=slots.numel() - 1)
            return slots[at].where(self.mask, 0.0)


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

    Ties are broken by input order or, given ``labels``, against the scores: the less relevant item
    first. So the order never leaks from how a file was sorted, and a constant score looks as bad as
    it may be.

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
        drawn = torch.empty(samples, int(mask.sum()), dtype=torch.float64, device=mask.device)
        drawn.exponential_(generator=self.generator(mask.device)).clamp_(min=1e-300)
        numbers = torch.ones(samples, *mask.shape, dtype=torch.float64, device=mask.device)
        return numbers.masked_scatter_(mask.expand_as(numbers), drawn)

    def generator(self, device: torch.device) -> torch.Generator | None:
        """The generator on a device; None for PyTorch's own."""
        if self.seed is None:
            return self.fallback
        if str(device) not in self._generators:
            generator = torch.Generator(device).manual_seed(self.seed)
            self._generators[str(device)] = generator
        return self._generators[str(device)]


def has_pairs(labels: Float[Tensor, "b n"], mask: Bool[Tensor, "b n"]) -> Bool[Tensor, " b"]:
    """Whether a list has two unequal labels."""
    highest = labels.masked_fill(~mask, float("-inf")).amax(-1)
    lowest = labels.masked_fill(~mask, float("inf")).amin(-1)
    return highest > lowest


def rows(padded: Float[Tensor, "*b n"]) -> tuple[Int[Tensor, " c"], int]:
    """The offsets of padded rows taken as slots, and their width."""
    n = padded.shape[-1]
    lists = padded.numel() // max(1, n)
    if not torch.compiler.is_compiling() and type(padded) in (Tensor, torch.nn.Parameter):
        return _kept_offsets(lists, n, padded.device), n
    return _offsets(lists, n, padded.device), n


def _offsets(lists: int, n: int, device: torch.device) -> Int[Tensor, " c"]:
    return torch.arange(0, lists * max(1, n) + 1, max(1, n), device=device)


@dataclass
class _Kept:
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
_kept: dict[tuple[int, int, torch.device], _Kept] = {}


def _kept_offsets(lists: int, n: int, device: torch.device) -> Int[Tensor, " c"]:
    found = _kept.get((lists, n, device))
    if found is not None and found.readable():
        return found.offsets
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if capturing or len(_kept) >= _MOST_KEPT or lists > _MOST_LISTS:
        return _offsets(lists, n, device)
    with torch.inference_mode(False):  # so that a later backward pass may keep them
        kept = _Kept(_offsets(lists, n, device))
    if is_functorch_wrapped_tensor(kept.offsets):  # of a transform of torch.func, gone with it
        return kept.offsets
    if device.type == "cuda":
        kept.stream = torch.cuda.current_stream(device)
        kept.made = kept.stream.record_event()
    _kept[lists, n, device] = kept
    return kept.offsets


def _padded_slots(
    scores: Tensor, labels: Tensor, mask: Tensor | None, weights: Tensor | None
) -> Slots:
    """``[..., n]`` tensors as slots; lists are given room for one item at least."""
    if scores.shape[-1] == 0:
        mask = torch.zeros_like(scores, dtype=torch.bool) if mask is None else mask
        scores, labels, mask = (F.pad(x, (0, 1)) for x in (scores, labels, mask))
        weights = None if weights is None else F.pad(weights, (0, 1))
    return _slots(scores, labels, mask, weights, *rows(scores))


def _slots(
    scores: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: Tensor | None,
    offsets: Tensor,
    longest: int,
) -> Slots:
    """Tensors of any shape as flat memory."""
    return Slots(
        scores.reshape(-1).contiguous(),
        labels.reshape(-1).contiguous(),
        None if mask is None else mask.reshape(-1).contiguous(),
        None if weights is None else weights.reshape(-1).contiguous(),
        offsets.contiguous(),
        longest,
    )
