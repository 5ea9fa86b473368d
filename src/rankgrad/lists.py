"""Lists of items: the one place that knows how they are laid out.

Every loss and metric takes the same two layouts, and turns them into :class:`Lists` first:

- padded: ``[..., n]`` tensors, with a boolean ``mask`` that is True on real items. Padding may
  stand anywhere and hold anything, NaN included;
- flat: ``[N]`` tensors with ``offsets`` ``[B + 1]``; list ``b`` is ``offsets[b]:offsets[b + 1]``.
  Without offsets, a 1-D tensor is one list.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional as F

from rankgrad.kernels import ops, ready

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[Reduction, ...] = ("mean", "sum", "none")

_TILE = 1 << 18  # numbers held at a time: what a processor cache takes
_MOST_KEPT, _MOST_LISTS = 64, 1 << 16  # offsets of padded lists kept, and of how many lists


class Slots(NamedTuple):
    """Lists as flat memory, as fused operations take them: list b is ``offsets[b]:offsets[b + 1]``.

    Padded tensors are slots as they lie, with a mask. What padding holds is not to be looked at.
    ``longest`` is the number of slots of the longest list. As a tuple, they are the arguments that
    every fused operation begins with.
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
    _looking: _Look | None = field(default=None, repr=False, compare=False)
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
                f"labels have shape {_shape(labels)}, scores {_shape(scores)}: they must agree"
            )
        longest = 0
        if offsets is not None:
            offsets, longest = _check_offsets(offsets, scores, mask)
        elif mask is not None:
            mask = check_mask(mask, scores)
        if labels.dtype != scores.dtype or labels.device != scores.device:
            labels = labels.to(scores)
        item_weights, list_weights = _split_weights(weights, scores, offsets)
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
        looked = _Look(scores, labels, mask, item_weights, list_weights)
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

        All tensors are on one device. With offsets, ``longest`` is the longest list's length.
        """
        scores = as_scores(scores)
        labels, weights = labels.to(scores), None if weights is None else weights.to(scores)
        if offsets is None:
            slots = _padded_slots(scores, labels, mask, weights)
            return cls(slots, None, tuple(scores.shape[:-1]) or (1,))
        slots = _slots(scores, labels, None, weights, offsets, longest)
        return cls(slots, None, (len(offsets) - 1,), flat=True)

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
                return slots.new_zeros(self.mask.shape)
            at = (starts + places).clamp(min=0, max=slots.numel() - 1)
            return slots[at].where(self.mask, 0.0)


def as_tensor(argument: str, value: Any) -> Tensor:
    """A dense tensor of real numbers from a tensor, an array or nested lists."""
    try:
        tensor: Tensor = value if type(value) is Tensor else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(value).__name__
        raise ValueError(
            f"{argument} must be a tensor, an array or lists of equal lengths (for ragged lists "
            f"give flat values and offsets); found {kind}: {error}"
        ) from None
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise ValueError(
            f"{argument} must be dense real numbers, found {tensor.dtype}, {tensor.layout}"
        )
    return tensor


def as_scores(scores: Any) -> Tensor:
    """Scores as a floating-point tensor of at least one dimension; half precision becomes float32.

    Whole numbers become float64, which tells all below 2^53 apart.

    >>> as_scores([1, 2]).dtype, as_scores(torch.zeros(2, dtype=torch.bfloat16)).dtype
    (torch.float64, torch.float32)
    """
    tensor = as_tensor("scores", scores)
    if tensor.dim() == 0:
        raise ValueError("scores must have at least one dimension, the items; found one number")
    if tensor.dtype == torch.bool:
        raise ValueError(f"scores must be real numbers, found {tensor.dtype}")
    if not tensor.is_floating_point():
        return tensor.to(torch.float64)
    return tensor.to(torch.float32) if tensor.dtype.itemsize < 4 else tensor


def check_mask(mask: Any, scores: Tensor) -> Bool[Tensor, "*b n"]:
    """The mask of padded scores, all True when there is none."""
    if mask is None:
        return torch.ones_like(scores, dtype=torch.bool)
    tensor = as_tensor("mask", mask).to(scores.device)
    if tensor.dtype != torch.bool:
        raise ValueError(f"mask must be boolean (True = real item), found {tensor.dtype}")
    if tensor.shape != scores.shape:
        raise ValueError(
            f"mask has shape {_shape(tensor)}, scores {_shape(scores)}: they must agree"
        )
    return tensor


def check_cutoff(k: int | None) -> int | None:
    """A rank cutoff: None for the whole list, or a whole number of at least 1."""
    return None if k is None else check_whole("k", k)


def check_whole(option: str, value: Any, least: int = 1) -> int:
    """A whole number, NumPy's included."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < least:
        raise ValueError(f"{option} must be a whole number of at least {least}, found {value!r}")
    return operator.index(value)


def check_flag(option: str, value: object) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{option} must be true or false, found {value!r}")


def check_between(option: str, value: Any, low: float, high: float) -> None:
    """A number strictly between two others."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        raise ValueError(f"{option} must lie between {low:g} and {high:g}, found {value!r}")


def check_choice(option: str, value: object, choices: Sequence[object]) -> None:
    """An option that takes one of a few values."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{option} must be one of {listed}; found {value!r}")


def check_positive(option: str, value: Any) -> None:
    """A number above zero, such as a temperature; NumPy's included."""
    number = not isinstance(value, bool | str) and hasattr(value, "__float__")
    if not number or not 0 < float(value) < math.inf:
        raise ValueError(f"{option} must be a number above 0, found {value!r}")


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
            seed = check_whole("seed", seed, least=0)
            if seed >= 2**63:
                raise ValueError(f"seed must be below 2^63, found {seed}")
        self._generators: dict[str, torch.Generator] = {}
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
            return None
        if str(device) not in self._generators:
            generator = torch.Generator(device).manual_seed(self.seed)
            self._generators[str(device)] = generator
        return self._generators[str(device)]


def _check_offsets(offsets: Any, scores: Tensor, mask: Any) -> tuple[Int[Tensor, " c"], int]:
    """The offsets on the device of the scores, and the length of the longest list."""
    if mask is not None:
        raise ValueError("give either mask (padded lists) or offsets (flat lists), not both")
    given = as_tensor("offsets", offsets)
    if given.dim() != 1 or given.is_floating_point() or given.dtype == torch.bool:
        raise ValueError(
            f"offsets must be whole numbers in one dimension, found {given.dtype} {_shape(given)}"
        )
    if scores.dim() != 1:
        raise ValueError(f"with offsets, scores must have one dimension, found {_shape(scores)}")
    host = given.to("cpu", torch.int64)
    if len(host) < 1 or host[0] != 0 or host[-1] != len(scores):
        ends = "nothing" if len(host) < 1 else f"{int(host[0])} to {int(host[-1])}"
        raise ValueError(
            f"offsets must run from 0 to the number of items, {len(scores)}; found {ends}"
        )
    if (host.diff() < 0).any():
        at = int((host.diff() < 0).nonzero()[0]) + 1
        raise ValueError(
            f"offsets must not fall; offsets[{at}] = {int(host[at])} follows {int(host[at - 1])}"
        )
    longest = int(host.diff().max()) if len(host) > 1 else 0
    return given.to(scores.device, torch.int64, non_blocking=True), longest


def unseen(tensor: Tensor) -> bool:
    """Whether values cannot be looked at now: compiled code, a captured CUDA graph, no values."""
    if torch.compiler.is_compiling() or tensor.is_meta:
        return True
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _any_large(labels: Tensor, mask: Tensor | None) -> bool:
    if labels.numel() == 0:
        return False
    inside = labels if mask is None else torch.where(mask, labels, 0.0)
    return bool(inside.max() > ops.LARGEST_LABEL)


class _Look:
    """A look at the values of lists, as the caller gave them.

    ``verdict`` waits for a twin to say whether there is nothing wrong at all.
    """

    verdict: Callable[[], bool]

    def __init__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None,
        item_weights: Tensor | None,
        list_weights: Tensor | None,
    ) -> None:
        self.scores, self.labels, self.mask = scores, labels, mask
        self.item_weights, self.list_weights = item_weights, list_weights

    def closely(self) -> tuple[bool, bool]:
        """Whether scores are finite, and labels large; an error that says where they are wrong."""
        finite = _check_values(self.scores, self.labels, self.mask)
        _check_weights(self.item_weights, self.mask)
        _check_weights(self.list_weights, None)
        return finite, _any_large(self.labels, self.mask)


def _check_values(scores: Tensor, labels: Tensor, mask: Tensor | None) -> bool:
    """An error that says where a score or a label is wrong; whether all scores are finite."""
    if scores.numel() == 0:
        return True
    # All at a glance: roots are NaN for negative labels, and sums finite for finite numbers only.
    glance = labels.detach().sqrt() + scores.detach() / 2
    if mask is not None:
        glance = torch.where(mask, glance, 0.0)
    if math.isfinite(float(torch.linalg.vector_norm(glance, math.inf))):
        return True
    bad_scores, bad_labels = scores.isnan(), ~(labels >= 0) | labels.isinf()
    if mask is not None:
        bad_scores, bad_labels = bad_scores & mask, bad_labels & mask
    if not (bad_scores | bad_labels).any():
        return False
    name, tensor, bad = ("scores", scores, bad_scores)
    wanted = "scores must be numbers"
    if not bad_scores.any():
        name, tensor, bad = ("labels", labels, bad_labels)
        wanted = "labels must be finite and not negative (mark padding with mask, not with a label)"
    at = tuple(bad.nonzero()[0].tolist())
    where = ", ".join(map(str, at))
    raise ValueError(f"{name}[{where}] = {tensor[at].item():g}: {wanted}")


def _split_weights(
    weights: Any, scores: Tensor, offsets: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Item weights and list weights, told apart by shape.

    Flat lists that are as many as their items have per-item weights; a column says per list.
    """
    if weights is None:
        return None, None
    weights = as_tensor("weights", weights).to(scores)
    per_list = scores.shape[:-1] if offsets is None else torch.Size([len(offsets) - 1])
    if weights.shape == scores.shape:
        return weights, None
    column = offsets is not None and weights.shape == (*per_list, 1)
    if column or weights.shape == per_list or (not per_list and weights.shape == (1,)):
        return None, weights
    raise ValueError(
        f"weights have shape {_shape(weights)}: give one per item, {_shape(scores)}, "
        f"or one per list, {tuple(per_list)}"
    )


def _check_weights(weights: Tensor | None, mask: Tensor | None) -> None:
    if weights is None:
        return
    bad = ~((weights >= 0) & weights.isfinite())
    if mask is not None:
        bad = bad & mask
    if bad.any():
        at = tuple(bad.nonzero()[0].tolist())
        where = ", ".join(map(str, at))
        raise ValueError(
            f"weights[{where}] = {weights[at].item():g}: weights must be finite and not negative"
        )


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


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
