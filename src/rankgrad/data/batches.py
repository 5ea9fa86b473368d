"""Batches: the lists of a data set, gathered on the training device, step by step.

Which lists make a batch is decided on the host from the seed and the epoch alone, so it is the same
on every device and in every process. The items are then gathered by index arithmetic, without a
loop over lists: out of a copy of the features on the device where that fits, or else out of the
memory map by a thread that reads ahead.

Index arrays are copied to the device once per epoch, and the sizes of each batch are known on the
host. So gathering a batch never waits for the device.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rankgrad._shapes import Array, Bool, Float, Int
from rankgrad._validation import check_choice
from rankgrad.data._dataset import Dataset
from rankgrad.data._ordered_map import ordered_map
from rankgrad.data.transforms import Pipeline, Transform

__all__ = ["BATCHINGS", "Batch", "Batches", "process_memory"]

_Batching = Literal["queries", "documents", "query"]
BATCHINGS: tuple[_Batching, ...] = get_args(_Batching)

_BLOCK = 1 << 24  # values transformed at a time
_LISTS = (1 << 16) - 1  # lists in a batch: GPUs run attention over no more at a time
_ORDER, _ITEMS = 0, 1  # streams of random numbers


@dataclass(frozen=True)
class Batch:
    """Some lists: padded ``[b, n]`` with a mask, or flat ``[N]`` with offsets.

    ``network(batch.features, batch.mask)`` gives the scores, in the layout of the labels. A flat
    batch has a mask if its size was rounded up: what comes after the last list is padding, too.
    ``max_length`` is an upper bound of list lengths, known on the host, so that launching a kernel
    does not synchronize.
    """

    features: Float[Tensor, "*items f"]
    labels: Float[Tensor, "*items"]
    mask: Bool[Tensor, "*items"] | None
    offsets: Int[Tensor, " c"] | None
    weights: Float[Tensor, "*items"] | None
    lists: Int[Tensor, " b"]  # which lists of the data set, on the host
    max_length: int

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.lists)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that is needed on the device, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v for k, v in values.items() if isinstance(v, Tensor) and k != "lists"}


@dataclass(frozen=True)
class _Part:
    """The lists of a batch. Tensors lie where its items are gathered, sizes are on the host."""

    lists: Array
    max_length: int  # of the lists, after they are cut
    uncut_max_length: int  # of the lists, before they are cut
    total: int  # items of all lists
    rounded: bool  # whether size is rounded up
    size: int  # items with padding: of the batch if it is flat, of a list if it is padded
    max_length_bound: int  # max_length, rounded up where size is
    starts: Int[Tensor, " b"]  # the lists' first rows
    lengths: Int[Tensor, " b"]  # before they were cut
    offsets: Int[Tensor, " b+1"]
    rows: Int[Tensor, " N"] | None  # of the items of flat batches of uncut lists
    labels: Float[Tensor, " N"] | None  # of the same items, unless size is rounded up


class Batches:
    """The lists of a data set in batches, shuffled for training or in full for evaluation.

    Args:
        dataset: the lists; those without items are left out of training.
        batching: ``"queries"``: ``size`` lists in random order make a batch. ``"documents"``: lists
            of about the same length do, as many as stay within ``documents`` items with padding.
            ``"query"``: each list is a batch.
        size: lists per batch.
        documents: items per batch, padding included; a longer list is a batch by itself.
        list_size: longer lists are cut to this many items, drawn anew each epoch. Never in
            evaluation.
        seed: of the order and the sampled items, together with the epoch.
        flat: give flat items with offsets, for networks that score each item by itself.
        rounded: pad training batches, by an eighth or by eight items at most, to a few sizes that
            recur, as CUDA graphs need.
        device: where batches are needed.
        transform: applied to the features; fitted.
        memory: how many bytes the features may take on the device; None for half of what is free.
            Beyond that they stay where they are and are read ahead.
        trained: ``[B]``, True on the lists that training takes; None for all of them.

    >>> from rankgrad.data import Dataset
    >>> lists = Dataset(np.arange(4)[:, None], [0, 1, 2, 0], [0, 3, 4], ["a", "b"])
    >>> batch = next(Batches(lists, size=2).evaluation())
    >>> batch.labels.tolist(), batch.mask.tolist()
    ([[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]], [[True, False, False], [True, True, True]])
    >>> next(Batches(lists, size=2, flat=True, list_size=2).epoch(0)).offsets
    tensor([0, 2, 3])
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batching: _Batching = "queries",
        size: int = 32,
        documents: int = 8192,
        list_size: int | None = None,
        seed: int = 0,
        flat: bool = False,
        rounded: bool = False,
        device: torch.device | str = "cpu",
        transform: Transform | None = None,
        memory: int | None = None,
        trained: Array | None = None,
    ) -> None:
        check_choice("batching", batching, BATCHINGS)
        self.dataset, self.batching, self.flat, self.seed = dataset, batching, flat, seed
        self.size, self.documents = (1 if batching == "query" else size), documents
        self.list_size, self.rounded = list_size, rounded
        self.device = torch.device(device)
        transform = Pipeline().fit(dataset.features) if transform is None else transform
        needed = 4 * dataset.n_items * transform.n_outputs
        self.resident = needed <= (_free(self.device) // 2 if memory is None else memory)
        # Where the features stay on the host, so does the arithmetic that finds them.
        self._gather_device = self.device if self.resident else torch.device("cpu")
        self._max_length = min(int(dataset.lengths.max(initial=0)), list_size or dataset.n_items)
        self._labels = self._to_gather_device(dataset.labels)
        self._weights = None if dataset.weights is None else self._to_gather_device(dataset.weights)
        self._transform, self._trained = transform, trained
        self._features = self._load() if self.resident else None

    @property
    def is_cut(self) -> bool:
        """Whether some lists are cut in training."""
        return self.list_size is not None and bool((self.dataset.lengths > self.list_size).any())

    def derive(self, inputs: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Replace the features on the device by columns derived from whole lists.

        From then on batches are flat, since an item's columns are all that its score depends on.

        Args:
            inputs: gives the columns ``[b, n, w]`` of features ``[b, n, f]`` and a mask ``[b, n]``.
        """
        assert self.resident
        assert not self.flat
        derived: Tensor | None = None
        for batch in self.evaluation():
            assert batch.mask is not None
            columns = inputs(batch.features, batch.mask)[batch.mask]
            if derived is None:
                derived = columns.new_empty(self.dataset.n_items, columns.shape[-1])
            lists = batch.lists.numpy()
            starts = self._to_gather_device(self.dataset.offsets[:-1][lists])
            derived[self._flat_rows(starts, batch.mask.sum(-1), len(columns))] = columns
        if derived is not None:
            self._features = derived
        self.flat = True

    def steps(self, epoch: int = 0) -> int:
        """The number of batches of an epoch."""
        return len(self._plan(epoch))

    def epoch(
        self, epoch: int, *, rank: int = 0, ranks: int = 1, start: int = 0
    ) -> Iterator[Batch]:
        """The batches of an epoch, from the ``start``-th on; of each, the part of this rank.

        The parts of all ranks together are the batch that one process would get. A part is empty
        where a batch has fewer lists than there are ranks.
        """
        parts = [lists[rank::ranks] for lists in self._plan(epoch)[start:]]
        return self._gather(parts, self._sample_keys(epoch), self.rounded)

    def evaluation(
        self, documents: int | None = None, *, rank: int = 0, ranks: int = 1
    ) -> Iterator[Batch]:
        """All lists in full, in batches of like length; of them, the part of this rank."""
        plan = _like_lengths(self.dataset.lengths, documents or self.documents)
        parts = [lists[rank::ranks] for lists in plan if len(lists) > rank]
        return self._gather(parts, None, rounded=False)

    def _plan(self, epoch: int) -> list[Array]:
        """Which lists make each batch of an epoch."""
        random = np.random.default_rng([self.seed, epoch, _ORDER])
        lengths = self.dataset.lengths
        if self._trained is not None:
            lengths = np.where(self._trained, lengths, 0)
        if self.batching == "documents":
            if self.list_size is not None:
                lengths = np.minimum(lengths, self.list_size)
            plan = _like_lengths(lengths, self.documents, random)
            return [plan[at] for at in random.permutation(len(plan))]
        order = random.permutation(np.flatnonzero(lengths))
        return [order[at : at + self.size] for at in range(0, len(order), self.size)]

    def _sample_keys(self, epoch: int) -> Float[Tensor, " N"] | None:
        """A random number for each item: the smallest of a list are the items it is cut to."""
        if not self.is_cut:
            return None
        random = np.random.default_rng([self.seed, epoch, _ITEMS])
        return self._to_gather_device(random.random(self.dataset.n_items, dtype=np.float32))

    def _gather(self, plan: Sequence[Array], keys: Tensor | None, rounded: bool) -> Iterator[Batch]:
        parts = self._parts(plan, keys is not None, rounded)
        if self.resident:
            return (self._batch(part, keys) for part in parts)

        def read(part: _Part) -> Batch:
            return self._pinned(self._batch(part, keys))

        # A single batch, as in most predictions, needs no thread that reads ahead.
        raw = ordered_map(read, parts, 1 if len(plan) > 1 else 0, "rankgrad-batches")
        return (self._finish(batch) for batch in raw)

    def _parts(self, plan: Sequence[Array], cut: bool, rounded: bool) -> Iterator[_Part]:
        """The lists of each batch, copied to the device at once: then each takes its slice."""
        lists = np.concatenate([np.zeros(0, np.int64), *plan])
        lengths = self.dataset.lengths[lists]
        cut_lengths = np.minimum(lengths, self.list_size) if cut and self.list_size else lengths
        ends = np.concatenate([[0], np.cumsum(cut_lengths)])
        firsts = np.cumsum([0, *map(len, plan)])
        # Offsets of all batches, each aligned to 16 bytes, at which kernels read them faster.
        places = np.cumsum([0, *(len(each) // 2 * 2 + 2 for each in plan)])
        bounds = np.zeros(places[-1], np.int64)
        for place, (first, last) in zip(places, pairwise(firsts), strict=False):
            bounds[place : place + last - first + 1] = ends[first : last + 1] - ends[first]
        arrays = (self.dataset.offsets[:-1][lists], lengths, bounds)
        starts, counts, offsets = (self._to_gather_device(numbers) for numbers in arrays)
        rows = labels = None
        if self.flat and self.resident and not cut:
            rows = self._flat_rows(starts, counts, int(ends[-1]))
            labels = None if rounded else self._labels[rows]
        for place, each, (first, last) in zip(places, plan, pairwise(firsts), strict=False):
            max_length = uncut = int(cut_lengths[first:last].max(initial=0))
            if cut:
                uncut = int(lengths[first:last].max(initial=0))
            total = int(ends[last] - ends[first])
            size, max_length_bound = self._padded_size(len(each), max_length, total, rounded)
            yield _Part(
                lists=each,
                max_length=max_length,
                uncut_max_length=uncut,
                total=total,
                rounded=rounded,
                size=size,
                max_length_bound=max_length_bound,
                starts=starts[first:last],
                lengths=counts[first:last],
                offsets=offsets[place : place + len(each) + 1],
                rows=None if rows is None else rows[ends[first] : ends[last]],
                labels=None if labels is None else labels[ends[first] : ends[last]],
            )

    def _padded_size(
        self, lists: int, max_length: int, total: int, rounded: bool
    ) -> tuple[int, int]:
        """The size of a batch, or of each list if padded, and a bound of list lengths."""
        size = total if self.flat else max_length
        if not rounded:
            return size, max_length
        size, max_length_bound = _round_up(size, 8), min(_round_up(max_length, 2), self._max_length)
        # A flat batch of exactly lists * max_length_bound items is read as one without padding.
        if self.flat and total < size == lists * max_length_bound:
            size += 8
        if not self.flat and self.batching == "documents":
            size = min(size, max(max_length, self.documents // max(1, lists)))
        return size, max_length_bound

    def _batch(self, part: _Part, keys: Tensor | None) -> Batch:
        cut = keys is not None and part.uncut_max_length > part.max_length
        chosen = self._choose(part, keys) if keys is not None and cut else None
        rows, mask = (self._flat if self.flat else self._padded)(part, chosen)
        labels = self._labels[rows] if part.labels is None else part.labels
        weights = self._weights
        return Batch(
            features=self._take(rows, mask),
            labels=labels if mask is None else labels.masked_fill(~mask, 0.0),
            mask=mask,
            offsets=part.offsets if self.flat else None,
            weights=None if weights is None else weights[rows],
            lists=torch.from_numpy(part.lists),
            max_length=part.max_length_bound,
        )

    def _flat_rows(self, starts: Tensor, lengths: Tensor, total: int) -> Int[Tensor, " N"]:
        """The rows of all items of these lists, list after list."""
        shifts = starts - (lengths.cumsum(0) - lengths)  # from places in this order to rows
        shifts = shifts.repeat_interleave(lengths, output_size=total)
        return shifts + torch.arange(total, device=self._gather_device)

    def _flat(
        self, part: _Part, chosen: Tensor | None
    ) -> tuple[Int[Tensor, " N"], Bool[Tensor, " N"] | None]:
        """The rows of the items, list after list; and a mask, if there is padding after them."""
        rows = self._flat_items(part, chosen)
        if not part.rounded:
            return rows, None
        mask = torch.arange(part.size, device=self._gather_device) < part.total
        return F.pad(rows, (0, part.size - part.total)), mask

    def _flat_items(self, part: _Part, chosen: Tensor | None) -> Int[Tensor, " N"]:
        if part.rows is not None:
            return part.rows
        which = torch.arange(len(part.lists), device=self._gather_device)
        which = which.repeat_interleave(part.offsets.diff(), output_size=part.total)
        places = torch.arange(part.total, device=self._gather_device) - part.offsets[which]
        if chosen is not None:
            places = chosen[which, places]
        return part.starts[which] + places

    def _padded(
        self, part: _Part, chosen: Tensor | None
    ) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """The rows of the items and a mask."""
        width = part.size if chosen is None else min(part.size, chosen.shape[1])
        return self._rows(part, part.offsets.diff(), width, chosen)

    def _choose(self, part: _Part, keys: Tensor) -> Int[Tensor, "b k"]:
        """The positions of the items that lists are cut to, in ascending order."""
        rows, mask = self._rows(part, part.lengths, part.uncut_max_length, None)
        keys = keys[rows].masked_fill(~mask, float("inf"))
        # Ties among the keys of padding do not matter: its places come after all real ones.
        smallest: Tensor = keys.topk(self.list_size or 1, dim=-1, largest=False).indices
        return smallest.sort(dim=-1).values

    def _rows(
        self, part: _Part, lengths: Int[Tensor, " b"], width: int, chosen: Tensor | None
    ) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """The rows of this many items of each list and a mask; padding repeats its first row."""
        width = max(1, width)
        places = torch.arange(width, device=self._gather_device).expand(len(part.lists), width)
        mask = places < lengths[:, None]
        if chosen is not None:
            places = chosen[:, :width]
        last = max(0, self.dataset.n_items - 1)
        return (part.starts[:, None] + torch.where(mask, places, 0)).clamp(max=last), mask

    def _take(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        if self._features is None:
            return torch.from_numpy(np.asarray(self.dataset.features[rows.numpy()]))
        features = self._features.index_select(0, rows.flatten())
        features = features.reshape(*rows.shape, features.shape[-1])
        return features if mask is None else features.masked_fill_(~mask[..., None], 0.0)

    def _finish(self, batch: Batch) -> Batch:
        """A batch read on the host, copied to the device and transformed there."""
        moved: dict[str, Any] = {
            name: tensor.to(self.device, non_blocking=True)
            for name, tensor in batch.tensors.items()
        }
        features = self._transform(moved["features"])
        if "mask" in moved:
            features = features.masked_fill(~moved["mask"][..., None], 0.0)
        return replace(batch, **moved | {"features": features})

    def _pinned(self, batch: Batch) -> Batch:
        """The batch in pinned memory, from which a GPU copies without blocking the host."""
        if self.device.type != "cuda":
            return batch
        pinned: dict[str, Any] = {k: tensor.pin_memory() for k, tensor in batch.tensors.items()}
        return replace(batch, **pinned)

    def _to_gather_device(self, array: Array) -> Tensor:
        """An array, where items are gathered."""
        tensor = _tensor(array)
        if self._gather_device.type != "cuda":
            return tensor.to(self._gather_device)
        return tensor.pin_memory().to(self._gather_device, non_blocking=True)

    def _load(self) -> Float[Tensor, "N f"]:
        """All features on the device, transformed once, block by block."""
        raw, transform = self.dataset.features, self._transform.to(self.device)
        loaded = torch.empty(len(raw), transform.n_outputs, device=self.device)
        height = max(1, _BLOCK // max(1, raw.shape[1]))
        for start in range(0, len(raw), height):
            block = _tensor(raw[start : start + height]).to(self.device)
            loaded[start : start + height] = transform.transform(block)
        return loaded


def _like_lengths(
    lengths: Array, documents: int, random: np.random.Generator | None = None
) -> list[Array]:
    """Lists in batches of like length, of at most this many items with padding.

    In training, lists of equal length are shuffled and empty ones left out.
    """
    if random is None:
        order = np.argsort(lengths, kind="stable")
    else:
        order = np.lexsort((random.random(len(lengths)), lengths))
        order = order[lengths[order] > 0]
    sizes = np.maximum(lengths[order], 1)
    batches, start = [], 0
    while start < len(order):
        fit = bisect.bisect_right(
            range(start + 1, len(order) + 1),
            documents,
            key=lambda end: (end - start) * int(sizes[end - 1]),
        )
        fit = max(1, min(fit, _LISTS))
        batches.append(order[start : start + fit])
        start += fit
    return batches


def _round_up(size: int, steps: int) -> int:
    """The next of a few sizes, ``steps`` to each doubling.

    >>> [_round_up(size, 8) for size in (0, 3, 240, 1000, 7744)]
    [0, 3, 240, 1024, 8192]
    """
    step = max(1, (1 << max(0, size.bit_length() - 1)) // steps)
    return -(-size // step) * step


def _tensor(array: Array) -> Tensor:
    """A tensor of an array; a copy where the array is read-only, which PyTorch cannot express."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]).view(np.ndarray))


def process_memory(device: torch.device) -> int:
    """The bytes of a GPU's memory that this process may take.

    All of them, unless ``torch.cuda.set_per_process_memory_fraction`` says otherwise, as it should
    where several processes train on one GPU.

    Args:
        device: the GPU.

    Returns:
        The number of bytes, whether they are free or not.
    """
    total = torch.cuda.get_device_properties(device).total_memory
    return int(torch.cuda.get_per_process_memory_fraction(device) * total)


def _free(device: torch.device) -> int:
    """The bytes of memory that are free on a device, to this process."""
    if device.type == "cuda":
        left = process_memory(device) - torch.cuda.memory_allocated(device)
        return max(0, min(int(torch.cuda.mem_get_info(device)[0]), left))
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not known on this system
        return 4 << 30
