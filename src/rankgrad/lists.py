"""Lists of items: the only module that knows how they are laid out in memory.

Every loss and metric takes the same two layouts, and converts them to :class:`Lists` first:

- padded: ``[..., n]`` tensors, with a boolean ``mask`` that is True on real items. Padding may
  be anywhere and contain anything, NaN included;
- ragged: flat ``[N]`` tensors with ``offsets`` ``[B + 1]``; list ``b`` is
  ``offsets[b]:offsets[b + 1]``. Without offsets, a 1-D tensor is one list.

:func:`make_lists` makes :class:`Lists` from what callers pass, and checks types and shapes. Values
are checked by :mod:`rankgrad.inputs`, or by the kernel that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional as F

from rankgrad._quoting import quote
from rankgrad._shapes import Bool, Float, Int, ItemMask, ItemValues, ListValues

__all__ = [
    "FlatLists",
    "Lists",
    "as_scores",
    "as_tensor",
    "check_mask",
    "contiguous",
    "flatten",
    "is_unchecked",
    "make_lists",
    "row_offsets",
]

_MAX_CACHED = 64  # the largest number of entries in the cache of offsets
_MAX_CACHED_LISTS = 1 << 16  # offsets of more lists than this are not cached


class FlatLists(NamedTuple):
    """Lists in the flat layout: list ``b`` is ``offsets[b]:offsets[b + 1]`` of every tensor.

    Padded ``[b, n]`` tensors are flat in memory, with ``offsets = 0, n, 2n, ...`` and a mask. The
    fields of this tuple are the first arguments of every operation of a loss.

    The tensors are contiguous. On a CPU they keep the caller's shape, as a view would be one more
    step of autograd; there, ``[items]`` below describes their memory.

    Attributes:
        scores: ``[items]``.
        labels: ``[items]``, of the scores' type.
        mask: ``[items]``, False on padding, or None without padding. Kernels neither read nor write
            padding, nor memory after the last list.
        weights: ``[items]``, of the scores' type, or None.
        offsets: ``[lists + 1]``.
        max_length: a bound on the lists' lengths, padding included. The host knows it, so that
            nothing waits for the device. If ``lists * max_length`` is the number of items, all
            lists have this length.
    """

    scores: Float[Tensor, " items"]
    labels: Float[Tensor, " items"]
    mask: Bool[Tensor, " items"] | None
    weights: Float[Tensor, " items"] | None
    offsets: Int[Tensor, " bounds"]
    max_length: int


@dataclass  # not frozen: a frozen one takes three times as long to create, at every small call
class Lists:
    """A batch of lists: flat, and as the ``[b, n]`` tensors with a mask that eager forms take.

    The padded tensors are made when they are first used; their padding is zero.
    :func:`rankgrad.inputs.as_lists` makes lists from what callers pass.

    Attributes:
        flat: the lists in the flat layout.
        list_weights: ``[b]``, one for each list, or None.
        shape: the caller's batch shape, which is the shape of results per list.
        ragged: whether the caller gave flat tensors with offsets.
        readable: whether values can be read now; see :func:`is_unchecked`.
        finite: whether the scores are known to be finite.
        large: whether a label may be too large for the gain 2^y - 1.
        arguments: scores, labels, mask, item weights and list weights in the caller's shapes, for
            error messages; empty for lists that were not made from a caller's arguments.

    >>> from rankgrad.inputs import as_lists
    >>> lists = as_lists([3.0, 1.0, 2.0], [1, 0, 2], offsets=[0, 1, 3])
    >>> lists.scores.tolist(), lists.mask.tolist()
    ([[3.0, 0.0], [1.0, 2.0]], [[True, False], [True, True]])
    """

    flat: FlatLists
    list_weights: ListValues | None
    shape: tuple[int, ...]
    ragged: bool = False
    readable: bool = True
    finite: bool = False
    large: bool = False
    arguments: tuple[Tensor | None, ...] = field(default=(), repr=False, compare=False)
    # A dictionary, as torch.compile cannot trace functools.cached_property, which takes a lock.
    _padded: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_padded(
        cls,
        scores: ItemValues,
        labels: ItemValues,
        mask: ItemMask,
        item_weights: ItemValues | None,
    ) -> Lists:
        """Lists from padded tensors that are known to be valid, so nothing is checked.

        Args:
            scores: ``[b, n]``.
            labels: ``[b, n]``.
            mask: ``[b, n]``, True on real items.
            item_weights: ``[b, n]``, or None.

        Returns:
            The lists, without list weights.
        """
        flat = flatten(scores, labels, mask, item_weights)
        return cls(flat, None, (len(scores),), finite=True)

    @property
    def mask(self) -> ItemMask:
        """True on real items."""
        if "mask" not in self._padded:
            self._padded["mask"] = self._make_mask()
        return self._padded["mask"]

    @property
    def scores(self) -> ItemValues:
        """The scores, 0 on padding."""
        return self._pad("scores", self.flat.scores)

    @property
    def labels(self) -> ItemValues:
        """The labels, 0 on padding."""
        return self._pad("labels", self.flat.labels)

    @property
    def item_weights(self) -> ItemValues | None:
        """The items' weights, 0 on padding."""
        weights = self.flat.weights
        return None if weights is None else self._pad("weights", weights)

    @property
    def lengths(self) -> Int[Tensor, " b"]:
        """The number of real items of each list."""
        return self.flat.offsets.diff() if self.ragged else self.mask.sum(-1)

    @property
    def learned(self) -> bool:
        """Whether labels or weights require a gradient, which kernels do not compute."""
        weights, list_weights = self.flat.weights, self.list_weights
        requires_grad = (
            self.flat.labels.requires_grad
            or (weights is not None and weights.requires_grad)
            or (list_weights is not None and list_weights.requires_grad)
        )
        return requires_grad and torch.is_grad_enabled()

    def repeat(self, scores: Float[Tensor, "samples b n"]) -> Lists:
        """These lists once for each sample of scores, as ``samples * b`` lists.

        Args:
            scores: ``[samples, b, n]``.

        Returns:
            The lists, sample by sample, without list weights.
        """
        samples, _, n = scores.shape
        weights = self.item_weights
        return Lists.from_padded(
            scores=scores.reshape(-1, n),
            labels=self.labels.repeat(samples, 1),
            mask=self.mask.repeat(samples, 1),
            item_weights=None if weights is None else weights.repeat(samples, 1),
        )

    def weighted(self, terms: ItemValues) -> ItemValues:
        """Per-item terms times the item weights, where there are any.

        Args:
            terms: ``[b, n]``.

        Returns:
            ``[b, n]``.
        """
        return terms if self.item_weights is None else terms * self.item_weights

    def _make_mask(self) -> ItemMask:
        flat = self.flat
        if self.ragged:
            lengths = flat.offsets.diff()
            columns = torch.arange(max(1, flat.max_length), device=lengths.device)
            return columns < lengths[:, None]
        if flat.mask is None:
            return self._as_rows(torch.ones_like(flat.scores, dtype=torch.bool))
        return self._as_rows(flat.mask)

    def _as_rows(self, values: Tensor) -> Tensor:
        """Values of lists that are not ragged, one list per row: ``[b, n]``."""
        return values.reshape(-1, max(1, self.flat.max_length))

    def _pad(self, name: str, values: Tensor) -> ItemValues:
        """Values ``[items]`` as ``[b, n]``, 0 on padding; cached by their name."""
        if name in self._padded:
            return self._padded[name]
        # The result is cached, so it is attached to the graph even under no_grad.
        with torch.enable_grad():
            if not self.ragged:
                rows = self._as_rows(values)
                padded = rows if self.flat.mask is None else rows.where(self.mask, 0.0)
            elif values.numel() == 0:
                padded = values.new_zeros(self.mask.shape) + values.sum()
            else:
                starts, columns = self.flat.offsets[:-1, None], self.mask.cumsum(-1) - 1
                index = (starts + columns).clamp(min=0, max=values.numel() - 1)
                padded = values[index].where(self.mask, 0.0)
        self._padded[name] = padded
        return padded


def make_lists(
    scores: Any,
    labels: Any,
    mask: Any = None,
    *,
    offsets: Any = None,
    lengths: Any = None,
    qid: Any = None,
    weights: Any = None,
) -> Lists:
    """Convert the arguments of a loss or metric to :class:`Lists`; values are not checked.

    Args:
        scores: ``[..., n]`` padded, or ``[N]`` flat.
        labels: of the same shape.
        mask: padded lists: True on real items.
        offsets: flat lists: ``[B + 1]``, where each begins and ends.
        lengths: flat lists: ``[B]``, the number of items of each, in place of ``offsets``.
        qid: flat lists: ``[N]``, the query of each item, in place of ``offsets``.
        weights: one per list, or one per item.

    Returns:
        The lists.

    Raises:
        ValueError: an argument is not a tensor of numbers, or shapes do not agree.

    >>> make_lists([3.0, 1.0, 2.0], [1, 0, 2], lengths=[1, 2]).flat.offsets
    tensor([0, 1, 3])
    """
    if offsets is lengths is qid is weights is None and _are_padded_rows(scores, labels, mask):
        rows, n = scores.shape
        flat = FlatLists(scores, labels, mask, None, _cached_offsets(rows, n, scores.device), n)
        return Lists(flat, None, (rows,), arguments=(scores, labels, mask, None, None))
    scores, labels = as_scores(scores), as_tensor("labels", labels)
    if labels.shape != scores.shape:
        raise ValueError(
            f"labels have shape {_shape_of(labels)}, scores {_shape_of(scores)}: they must agree"
        )
    max_length = 0
    if not (offsets is lengths is qid is None):
        offsets, max_length = _check_offsets(scores, mask, offsets, lengths, qid)
    else:
        _check_column(scores)
        if mask is not None:
            mask = check_mask(mask, scores)
    if labels.dtype != scores.dtype or labels.device != scores.device:
        labels = labels.to(scores)
    item_weights, list_weights = _split_weights(weights, scores, offsets)
    if offsets is None:
        flat, ragged = flatten(scores, labels, mask, item_weights), False
        shape = tuple(scores.shape[:-1]) or (1,)
    else:
        flat = contiguous(FlatLists(scores, labels, None, item_weights, offsets, max_length))
        shape, ragged = (len(offsets) - 1,), True
    return Lists(
        flat,
        None if list_weights is None else list_weights.reshape(-1).contiguous(),
        shape,
        ragged=ragged,
        readable=not is_unchecked(scores, labels),
        arguments=(scores, labels, mask, item_weights, list_weights),
    )


def _are_padded_rows(scores: Any, labels: Any, mask: Any) -> bool:
    """Whether the arguments are ``[b, n]`` tensors that CPU kernels read as they are.

    Most calls are like this. Then no other check is needed, which saves time on small lists.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return (
        type(scores) is type(labels) is Tensor
        and scores.is_cpu
        and labels.is_cpu
        and labels.dtype is (dtype := scores.dtype)
        and (dtype is torch.float32 or dtype is torch.float64)
        and labels.layout is scores.layout is torch.strided
        and labels.shape == (shape := scores.shape)
        and len(shape) == 2
        and shape[1] > 0
        and scores.is_contiguous()
        and labels.is_contiguous()
        and (mask is None or _is_plain_mask(mask, shape))
    )


def _is_plain_mask(mask: Any, shape: torch.Size) -> bool:
    """Whether a mask is a boolean tensor of this shape that CPU kernels read as it is."""
    return (
        type(mask) is Tensor
        and mask.is_cpu
        and mask.dtype is torch.bool
        and mask.layout is torch.strided
        and mask.shape == shape
        and mask.is_contiguous()
    )


def as_tensor(argument: str, value: Any) -> Tensor:
    """A dense tensor of real numbers from a tensor, an array or nested lists.

    Args:
        argument: the name of the argument, for errors.
        value: what the caller passed.

    Returns:
        The tensor; the value itself if it is a tensor already.

    Raises:
        ValueError: the value is none of these, or it is complex or sparse.
    """
    if type(value) is Tensor and value.layout is torch.strided and not value.dtype.is_complex:
        return value
    try:
        tensor: Tensor = torch.as_tensor(_as_plain_array(value))
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


def _as_plain_array(value: Any) -> Any:
    """An array, or a column of a data frame, as an array that PyTorch takes; others as they are.

    PyTorch takes no arrays with negative strides or of another byte order, warns of read-only ones,
    and reads a pandas Series by the labels of its index.
    """
    if torch.compiler.is_compiling() or isinstance(value, Tensor):
        return value
    if hasattr(value, "iloc"):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return value
    return np.require(value, value.dtype.newbyteorder("="), ["C", "W"])


def as_scores(scores: Any) -> Tensor:
    """Scores as a floating-point tensor of at least one dimension; half precision becomes float32.

    Whole numbers become float64, in which all of them below 2^53 stay different.

    Args:
        scores: what the caller passed.

    Returns:
        ``[..., n]`` in float32 or float64.

    Raises:
        ValueError: they are not real numbers, or have no dimension.

    >>> as_scores([1, 2]).dtype, as_scores(torch.zeros(2, dtype=torch.bfloat16)).dtype
    (torch.float64, torch.float32)
    """
    tensor = as_tensor("scores", scores)
    if tensor.dim() == 0:
        raise ValueError("scores must have at least one dimension, the items; found one number")
    if tensor.is_floating_point():
        return tensor.to(torch.float32) if tensor.dtype.itemsize < 4 else tensor
    if tensor.dtype == torch.bool:
        raise ValueError(f"scores must be real numbers, found {tensor.dtype}")
    return tensor.to(torch.float64)


def _check_column(scores: Tensor) -> None:
    """Raise an error for ``[B, n, 1]``, the output of a model whose last layer has one unit.

    These would be lists of one item each, on which every loss is 0. ``[B, 1]`` is allowed.
    """
    if scores.dim() > 2 and scores.shape[-1] == 1 and scores.shape[-2] > 1:
        raise ValueError(
            f"scores have shape {_shape_of(scores)}: the last dimension is the items of a list, so "
            "every list would have one item. Give scores.squeeze(-1), and labels, mask and weights "
            "alike; lists that do have one item each are of shape [lists, 1]"
        )


def check_mask(mask: Any, scores: Tensor) -> Bool[Tensor, "*b n"]:
    """The mask of padded scores; None means that all items are real.

    Args:
        mask: what the caller passed.
        scores: ``[..., n]``.

    Returns:
        The mask on the device of the scores.

    Raises:
        ValueError: it is not boolean, or not of the shape of the scores.
    """
    if mask is None:
        return torch.ones_like(scores, dtype=torch.bool)
    tensor = as_tensor("mask", mask).to(scores.device)
    if tensor.dtype != torch.bool:
        raise ValueError(f"mask must be boolean (True = real item), found {tensor.dtype}")
    if tensor.shape != scores.shape:
        raise ValueError(
            f"mask has shape {_shape_of(tensor)}, scores {_shape_of(scores)}: they must agree"
        )
    return tensor


def _check_offsets(
    scores: Tensor, mask: Any, offsets: Any, lengths: Any, qid: Any
) -> tuple[Int[Tensor, " bounds"], int]:
    """The offsets on the device of the scores, and the length of the longest list.

    Where values cannot be read (:func:`is_unchecked`), the number of all items takes the place of
    this length.
    """
    if mask is not None:
        raise ValueError("give either mask (padded lists) or offsets (flat lists), not both")
    if scores.dim() != 1:
        raise ValueError(f"with offsets, scores must have one dimension, found {_shape_of(scores)}")
    if lengths is not None or qid is not None:
        offsets = _as_offsets(len(scores), offsets, lengths, qid)
    tensor = _as_whole_numbers("offsets", offsets)
    if is_unchecked(tensor):
        return tensor.to(scores.device, torch.int64), scores.shape[0]
    host = tensor.to("cpu", torch.int64)
    if len(host) < 1 or host[0] != 0 or host[-1] != len(scores):
        ends = "nothing" if len(host) < 1 else f"{int(host[0])} to {int(host[-1])}"
        raise ValueError(
            f"offsets must run from 0 to the number of items, {len(scores)}; found {ends}"
        )
    if (host.diff() < 0).any():
        i = int((host.diff() < 0).nonzero()[0]) + 1
        raise ValueError(
            f"offsets must not fall; offsets[{i}] = {int(host[i])} follows {int(host[i - 1])}"
        )
    max_length = int(host.diff().max()) if len(host) > 1 else 0
    return tensor.to(scores.device, torch.int64, non_blocking=True), max_length


def _as_whole_numbers(argument: str, value: Any) -> Tensor:
    """A one-dimensional tensor of integers, or an error that names the argument."""
    tensor = as_tensor(argument, value)
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise ValueError(
            f"{argument} must be whole numbers in one dimension, found {tensor.dtype} "
            f"{_shape_of(tensor)}"
        )
    return tensor


def _as_offsets(
    n_items: int, offsets: Any = None, lengths: Any = None, qid: Any = None
) -> Int[Tensor, " bounds"]:
    """The offsets of flat lists, from the lengths of the lists or the queries of the items.

    Args:
        n_items: the number of items, N.
        offsets: what the caller passed; an error if anything else is given as well.
        lengths: ``[B]``, the number of items of each list.
        qid: ``[N]``, the query of each item, numbers or text; the items of a query are together.

    Returns:
        The offsets, ``[B + 1]``.

    Raises:
        ValueError: more than one is given, they are not of N items, or the items of a query are
            not together.

    >>> _as_offsets(3, lengths=[2, 1]), _as_offsets(3, qid=["a", "a", "b"])
    (tensor([0, 2, 3]), tensor([0, 2, 3]))
    """
    if (offsets is not None) + (lengths is not None) + (qid is not None) > 1:
        raise ValueError("give one of offsets, lengths and qid, not several")
    if lengths is not None:
        sizes = _as_whole_numbers("lengths", lengths).to(torch.int64)
        if not is_unchecked(sizes) and ((sizes < 0).any() or sizes.sum() != n_items):
            raise ValueError(
                f"lengths must not be negative, and must add up to the number of items, {n_items}; "
                f"found {quote(sizes.tolist())}"
            )
        return F.pad(sizes.cumsum(0), (1, 0))
    queries = np.asarray(qid.cpu() if isinstance(qid, Tensor) else qid)
    if queries.ndim != 1:
        raise ValueError(f"qid must have one dimension, one query per item, found {queries.shape}")
    if len(queries) != n_items:
        raise ValueError(f"qid must have one query per item, {n_items}; found {len(queries)}")
    is_start = np.concatenate([[True], queries[1:] != queries[:-1]])[: len(queries)]
    starts = np.flatnonzero(is_start)
    try:
        _, first, counts = np.unique(queries[starts], return_index=True, return_counts=True)
    except TypeError:  # values of several types cannot be sorted
        raise ValueError("qid must be all numbers or all text") from None
    if (counts > 1).any():
        repeated = queries[starts][first[counts > 1][0]]
        raise ValueError(
            f"the items of qid {quote(repeated.item())} are not together: sort the items by qid"
        )
    return torch.as_tensor(np.append(starts, len(queries)))


def _split_weights(
    weights: Any, scores: Tensor, offsets: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Item weights and list weights, of which one is None, told apart by the shape of ``weights``.

    If flat lists have as many lists as items, ``[B]`` are item weights, and ``[B, 1]`` list
    weights.
    """
    if weights is None:
        return None, None
    weights = as_tensor("weights", weights).to(scores)
    batch_shape = scores.shape[:-1] if offsets is None else torch.Size([len(offsets) - 1])
    if weights.shape == scores.shape:
        return weights, None
    is_column = offsets is not None and weights.shape == (*batch_shape, 1)
    is_single = not batch_shape and weights.shape == (1,)
    if is_column or is_single or weights.shape == batch_shape:
        return None, weights
    raise ValueError(
        f"weights have shape {_shape_of(weights)}: give one per item, {_shape_of(scores)}, "
        f"or one per list, {tuple(batch_shape) or (1,)}"
    )


def _shape_of(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's shape, as error messages print it."""
    return tuple(tensor.shape)


def row_offsets(padded: Float[Tensor, "*b n"]) -> tuple[Int[Tensor, " bounds"], int]:
    """The offsets of padded rows in the flat layout, and their width.

    Args:
        padded: ``[..., n]``.

    Returns:
        The offsets, ``[rows + 1]``, and the number of items of a row.
    """
    n = padded.shape[-1]
    lists = padded.numel() // max(1, n)
    if not torch.compiler.is_compiling() and type(padded) in (Tensor, torch.nn.Parameter):
        return _cached_offsets(lists, n, padded.device), n
    return _offsets(lists, n, padded.device), n


def _offsets(lists: int, n: int, device: torch.device) -> Int[Tensor, " bounds"]:
    """``0, n, 2n, ...``, the offsets of lists of n items each; empty lists count as one item."""
    return torch.arange(0, lists * max(1, n) + 1, max(1, n), device=device)


@dataclass
class _CachedOffsets:
    """Cached offsets of padded rows: lists of the same shape come at every training step.

    Attributes:
        offsets: ``[lists + 1]``.
        event: on a GPU, the event after which the offsets can be read; None on a CPU, and once the
            event is known to be over.
        stream: on a GPU, the stream that made the offsets.
    """

    offsets: Int[Tensor, " bounds"]
    event: Any = None
    stream: Any = None

    def readable(self) -> bool:
        """Whether kernels that are launched now can read the offsets; the host does not wait.

        If another stream makes the offsets, the current stream waits for that one.
        """
        if self.event is None:
            return True
        if torch.cuda.is_current_stream_capturing():
            return False  # a graph cannot wait for an event outside of it
        if self.event.query():
            self.event = None
            return True
        stream = torch.cuda.current_stream(self.offsets.device)
        if stream != self.stream:
            stream.wait_event(self.event)
        return True


#: The cache of offsets, by number of lists, their length and the device. Entries are never
#: removed, as a CUDA graph that reads them may be replayed at any time.
_cache: dict[tuple[int, int, torch.device], _CachedOffsets] = {}


def _cached_offsets(lists: int, n: int, device: torch.device) -> Int[Tensor, " bounds"]:
    """:func:`_offsets`, from the cache where that is possible."""
    cached = _cache.get((lists, n, device))
    if cached is not None and (cached.event is None or cached.readable()):
        return cached.offsets
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    with torch.inference_mode(False):  # so that a later backward pass may save them
        cached = _CachedOffsets(_offsets(lists, n, device))
    if capturing or len(_cache) >= _MAX_CACHED or lists > _MAX_CACHED_LISTS:
        return cached.offsets
    if is_functorch_wrapped_tensor(cached.offsets):  # valid within a torch.func transform only
        return cached.offsets
    if device.type == "cuda":
        cached.stream = torch.cuda.current_stream(device)
        cached.event = cached.stream.record_event()
    _cache[lists, n, device] = cached
    return cached.offsets


def flatten(
    scores: Tensor, labels: Tensor, mask: Tensor | None, weights: Tensor | None
) -> FlatLists:
    """``[..., n]`` tensors in the flat layout; empty lists are padded to one item.

    Args:
        scores: ``[..., n]``.
        labels: ``[..., n]``.
        mask: ``[..., n]``, True on real items; None if all are.
        weights: ``[..., n]``, of items, or None.

    Returns:
        The lists.
    """
    if scores.shape[-1] == 0:
        mask = torch.zeros_like(scores, dtype=torch.bool) if mask is None else mask
        scores, labels, mask = (F.pad(x, (0, 1)) for x in (scores, labels, mask))
        weights = None if weights is None else F.pad(weights, (0, 1))
    return contiguous(FlatLists(scores, labels, mask, weights, *row_offsets(scores)))


def contiguous(lists: FlatLists) -> FlatLists:
    """The lists with contiguous tensors, flattened to one dimension except on a CPU.

    Args:
        lists: with tensors of any shape and strides.

    Returns:
        The same lists.
    """
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    tensors: list[Any] = list(lists[:5])
    if transformed or not lists.scores.is_cpu:
        tensors = [None if tensor is None else tensor.reshape(-1) for tensor in tensors]
    tensors = [None if tensor is None else tensor.contiguous() for tensor in tensors]
    return FlatLists._make([*tensors, lists.max_length])


def is_unchecked(*tensors: Tensor) -> bool:
    """Whether the values of one of these tensors cannot be read now, and so not be checked.

    Values cannot be read in compiled code, while a CUDA graph is captured, under a transform of
    ``torch.func``, and for tensors without values (on the meta device).
    """
    if torch.compiler.is_compiling():
        return True
    for tensor in tensors:
        if is_functorch_wrapped_tensor(tensor):
            return True
        if tensor.is_cpu:
            continue
        if tensor.is_meta or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
            return True
    return False
