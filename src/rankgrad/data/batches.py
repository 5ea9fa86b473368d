"""Batches: the lists of a data set, gathered on the training device, step by step.

The trainer iterates over :class:`Batches`. The seed and the epoch alone decide which lists make a
batch, so it is the same on every device and in every process. The items of a batch are gathered by
index arithmetic, without a loop over lists: from a copy of the features on the device if that fits
in its memory, otherwise from the memory map, by a thread that reads ahead.

Index arrays are copied to the device once per epoch, and the sizes of each batch are known on the
host (:class:`_BatchPlan`). So gathering a batch never waits for the device.
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
_MAX_LISTS = (1 << 16) - 1  # in a batch; attention on GPUs takes no more at a time
_ORDER_STREAM, _SAMPLE_STREAM = 0, 1  # of random numbers: order of lists, items of cut lists


@dataclass(frozen=True)
class Batch:
    """Some lists: padded ``[b, n]`` with a mask, or flat ``[N]`` with offsets.

    ``network(batch.features, batch.mask)`` gives the scores, in the layout of the labels. A flat
    batch has a mask if its size was rounded up: the items after its last list are padding.
    ``max_length`` is an upper bound of list lengths, known on the host, so that launching a kernel
    does not synchronize.
    """

    features: Float[Tensor, "*items f"]
    labels: Float[Tensor, "*items"]
    mask: Bool[Tensor, "*items"] | None
    offsets: Int[Tensor, " c"] | None  # c = b + 1; None if padded
    weights: Float[Tensor, "*items"] | None
    lists: Int[Tensor, " b"]  # which lists of the data set, on the host
    max_length: int

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.lists)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are needed on the device, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v for k, v in values.items() if isinstance(v, Tensor) and k != "lists"}


@dataclass(frozen=True)
class _BatchPlan:
    """Which items make a batch, and how large its tensors are.

    Training may cut long lists to a sample of their items: all lengths and offsets are those of the
    cut lists, except the two that are called uncut. Numbers are on the host, tensors on the device
    where items are gathered. A row is the index of an item in the data set.

    Attributes:
        lists: ``[b]``, the indices of the lists in the data set.
        starts: ``[b]``, the row of each list's first item.
        offsets: ``[b + 1]``, of the lists in a flat batch.
        total: the number of items, without padding.
        max_length: the length of the longest list.
        uncut_lengths: ``[b]``.
        uncut_max_length: the length of the longest list before it is cut.
        rounded: whether the next two are rounded up, so that few different sizes occur.
        padded_size: items with padding: of the whole batch if it is flat, of each list if it is
            padded.
        max_length_bound: ``max_length`` of the finished batch.
        rows: ``[N]``, the rows of the items, list after list; None if they must be computed.
        labels: ``[N]``, the labels of these rows; None if they must be gathered.
    """

    lists: Array
    starts: Int[Tensor, " b"]
    offsets: Int[Tensor, " b+1"]
    total: int
    max_length: int
    uncut_lengths: Int[Tensor, " b"]
    uncut_max_length: int
    rounded: bool
    padded_size: int
    max_length_bound: int
    rows: Int[Tensor, " N"] | None
    labels: Float[Tensor, " N"] | None


class Batches:
    """The lists of a data set in batches, shuffled for training or in full for evaluation.

    Args:
        dataset: the lists; those without items are left out of training.
        batching: what makes a batch. ``"queries"``: ``size`` lists in random order.
            ``"documents"``: lists of about the same length, as many as have at most ``documents``
            items with padding. ``"query"``: a single list.
        size: lists per batch.
        documents: items per batch, padding included; a longer list is a batch by itself.
        list_size: in training, longer lists are cut to this many items, sampled anew each epoch.
        seed: with the epoch, it determines the order of lists and the sampled items.
        flat: give flat items with offsets, for networks that score each item by itself.
        rounded: pad training batches, by at most an eighth or eight items, so that few different
            sizes occur, as CUDA graphs need.
        device: of the batches.
        transform: a fitted transform of the features.
        memory: how many bytes the features may take on the device; None for half of its free
            memory. Features that need more stay on the host and are read ahead.
        trained: ``[B]``, True on the lists to train on; None for all of them.

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
        # The bytes of the features in float32.
        needed = 4 * dataset.n_items * transform.n_outputs
        self.resident = needed <= (_free_memory(self.device) // 2 if memory is None else memory)
        # If the features stay on the host, the index arithmetic does too.
        self._gather_device = self.device if self.resident else torch.device("cpu")
        self._max_length = min(int(dataset.lengths.max(initial=0)), list_size or dataset.n_items)
        self._labels = self._to_gather_device(dataset.labels)
        self._weights = None if dataset.weights is None else self._to_gather_device(dataset.weights)
        self._transform, self._trained = transform, trained
        self._features = self._load_features() if self.resident else None

    @property
    def is_cut(self) -> bool:
        """Whether training cuts some lists."""
        return self.list_size is not None and bool((self.dataset.lengths > self.list_size).any())

    def derive(self, inputs: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Replace the features on the device by columns that are computed from whole lists.

        From then on batches are flat, since the score of an item depends on its own columns only.

        Args:
            inputs: maps features ``[b, n, f]`` and a mask ``[b, n]`` to columns ``[b, n, w]``.
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
        """The number of batches of an epoch.

        Args:
            epoch: its number; lists are in another order in each.

        Returns:
            The number, the same on all ranks.
        """
        return len(self._plan_epoch(epoch))

    def epoch(
        self, epoch: int, *, rank: int = 0, ranks: int = 1, start: int = 0
    ) -> Iterator[Batch]:
        """The batches of an epoch, from index ``start`` on; of each batch, this rank's lists.

        The lists of all ranks together are the batch that one process would get. A rank has none if
        a batch has fewer lists than there are ranks.

        Args:
            epoch: its number, which with the seed determines the order.
            rank: the index of this process, from 0.
            ranks: the number of processes.
            start: the index of the first batch, to resume within an epoch.

        Returns:
            The batches, on the device.
        """
        parts = [lists[rank::ranks] for lists in self._plan_epoch(epoch)[start:]]
        return self._gather(parts, self._sample_keys(epoch), self.rounded)

    def evaluation(
        self, documents: int | None = None, *, rank: int = 0, ranks: int = 1
    ) -> Iterator[Batch]:
        """All lists, uncut, in batches of similar length; of each batch, this rank's lists.

        A batch has at most ``documents`` items with padding; by default ``self.documents``.

        Args:
            documents: items per batch, padding included; a longer list is a batch by itself.
            rank: the index of this process, from 0.
            ranks: the number of processes.

        Returns:
            The batches, on the device; those without a list of this rank are left out.
        """
        groups = _group_by_length(self.dataset.lengths, documents or self.documents)
        parts = [lists[rank::ranks] for lists in groups if len(lists) > rank]
        return self._gather(parts, None, rounded=False)

    def _plan_epoch(self, epoch: int) -> list[Array]:
        """The lists of each batch of an epoch."""
        random = np.random.default_rng([self.seed, epoch, _ORDER_STREAM])
        lengths = self.dataset.lengths
        if self._trained is not None:
            lengths = np.where(self._trained, lengths, 0)
        if self.batching == "documents":
            if self.list_size is not None:
                lengths = np.minimum(lengths, self.list_size)
            groups = _group_by_length(lengths, self.documents, random)
            return [groups[i] for i in random.permutation(len(groups))]
        order = random.permutation(np.flatnonzero(lengths))
        return [order[start : start + self.size] for start in range(0, len(order), self.size)]

    def _sample_keys(self, epoch: int) -> Float[Tensor, " N"] | None:
        """A random number for each item; a list is cut to the items with the smallest."""
        if not self.is_cut:
            return None
        random = np.random.default_rng([self.seed, epoch, _SAMPLE_STREAM])
        return self._to_gather_device(random.random(self.dataset.n_items, dtype=np.float32))

    def _gather(self, groups: list[Array], keys: Tensor | None, rounded: bool) -> Iterator[Batch]:
        """Gather a batch for each group of lists; with ``keys``, long lists are cut."""
        plans = self._plans(groups, keys is not None, rounded)
        if self.resident:
            return (self._batch(plan, keys) for plan in plans)

        def read(plan: _BatchPlan) -> Batch:
            return self._pin(self._batch(plan, keys))

        # A single batch, as in most predictions, needs no thread to read ahead.
        raw = ordered_map(read, plans, 1 if len(groups) > 1 else 0, "rankgrad-batches")
        return (self._to_device(batch) for batch in raw)

    def _plans(self, groups: Sequence[Array], cut: bool, rounded: bool) -> Iterator[_BatchPlan]:
        """The plan of each batch. Index arrays are copied to the device once, and then sliced."""
        lists = np.concatenate([np.zeros(0, np.int64), *groups])
        uncut = self.dataset.lengths[lists]
        lengths = np.minimum(uncut, self.list_size) if cut and self.list_size else uncut
        # Group g is lists[firsts[g]:firsts[g + 1]], and list i has the items
        # item_offsets[i]:item_offsets[i + 1] of all batches together.
        firsts = np.cumsum([0, *map(len, groups)])
        item_offsets = np.concatenate([[0], np.cumsum(lengths)])
        list_slices = [slice(first, last) for first, last in pairwise(firsts)]
        batch_offsets, offset_slices = _aligned_offsets([lengths[part] for part in list_slices])
        arrays = (self.dataset.offsets[:-1][lists], uncut, batch_offsets)
        starts, uncut_lengths, offsets = (self._to_gather_device(numbers) for numbers in arrays)
        rows = labels = None
        if self.flat and self.resident and not cut:
            rows = self._flat_rows(starts, uncut_lengths, int(item_offsets[-1]))
            labels = None if rounded else self._labels[rows]
        for group, in_lists, in_offsets in zip(groups, list_slices, offset_slices, strict=True):
            in_items = slice(int(item_offsets[in_lists.start]), int(item_offsets[in_lists.stop]))
            total = in_items.stop - in_items.start
            max_length = int(lengths[in_lists].max(initial=0))
            padded_size, max_length_bound = self._sizes(len(group), max_length, total, rounded)
            yield _BatchPlan(
                lists=group,
                starts=starts[in_lists],
                offsets=offsets[in_offsets],
                total=total,
                max_length=max_length,
                uncut_lengths=uncut_lengths[in_lists],
                uncut_max_length=int(uncut[in_lists].max(initial=0)),
                rounded=rounded,
                padded_size=padded_size,
                max_length_bound=max_length_bound,
                rows=None if rows is None else rows[in_items],
                labels=None if labels is None else labels[in_items],
            )

    def _sizes(self, lists: int, max_length: int, total: int, rounded: bool) -> tuple[int, int]:
        """``padded_size`` and ``max_length_bound`` of a :class:`_BatchPlan`."""
        size = total if self.flat else max_length
        if not rounded:
            return size, max_length
        size, max_length_bound = _round_up(size, 8), min(_round_up(max_length, 2), self._max_length)
        # Kernels take a flat batch of lists * max_length_bound items for lists that all have
        # this length (FlatLists.max_length). This batch ends with padding, so it must be larger.
        if self.flat and total < size == lists * max_length_bound:
            size += 8
        if not self.flat and self.batching == "documents":
            size = min(size, max(max_length, self.documents // max(1, lists)))
        return size, max_length_bound

    def _batch(self, plan: _BatchPlan, keys: Tensor | None) -> Batch:
        """Gather a batch on the device of gathering; with ``keys``, long lists are cut."""
        cut = keys is not None and plan.uncut_max_length > plan.max_length
        sampled = self._sample_items(plan, keys) if keys is not None and cut else None
        if self.flat:
            rows, mask = self._flat_index(plan, sampled)
        else:
            rows, mask = self._padded_index(plan, plan.offsets.diff(), plan.padded_size, sampled)
        labels = self._labels[rows] if plan.labels is None else plan.labels
        weights = self._weights
        return Batch(
            features=self._take_features(rows, mask),
            labels=labels if mask is None else labels.masked_fill(~mask, 0.0),
            mask=mask,
            offsets=plan.offsets if self.flat else None,
            weights=None if weights is None else weights[rows],
            lists=torch.from_numpy(plan.lists),
            max_length=plan.max_length_bound,
        )

    def _flat_rows(self, starts: Tensor, lengths: Tensor, total: int) -> Int[Tensor, " N"]:
        """The rows of all items of these lists, list after list."""
        shifts = starts - (lengths.cumsum(0) - lengths)  # from positions in the result to rows
        shifts = shifts.repeat_interleave(lengths, output_size=total)
        return shifts + torch.arange(total, device=self._gather_device)

    def _flat_index(
        self, plan: _BatchPlan, sampled: Tensor | None
    ) -> tuple[Int[Tensor, " N"], Bool[Tensor, " N"] | None]:
        """The rows of the items, list after list; and a mask, if the size is rounded up."""
        rows, total, device = plan.rows, plan.total, self._gather_device
        if rows is None:
            item_lists = torch.arange(len(plan.lists), device=device)
            item_lists = item_lists.repeat_interleave(plan.offsets.diff(), output_size=total)
            positions = torch.arange(total, device=device) - plan.offsets[item_lists]
            if sampled is not None:
                positions = sampled[item_lists, positions]
            rows = plan.starts[item_lists] + positions
        if not plan.rounded:
            return rows, None
        return F.pad(rows, (0, plan.padded_size - total)), torch.arange(
            plan.padded_size, device=device
        ) < total

    def _sample_items(self, plan: _BatchPlan, keys: Tensor) -> Int[Tensor, "b k"]:
        """The positions, in their lists, of the items that lists are cut to; ascending."""
        rows, mask = self._padded_index(plan, plan.uncut_lengths, plan.uncut_max_length, None)
        keys = keys[rows].masked_fill(~mask, float("inf"))
        # It does not matter which padding is among the smallest: it comes after all real items.
        smallest: Tensor = keys.topk(self.list_size or 1, dim=-1, largest=False).indices
        return smallest.sort(dim=-1).values

    def _padded_index(
        self, plan: _BatchPlan, lengths: Int[Tensor, " b"], width: int, sampled: Tensor | None
    ) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """The rows of the first ``width`` items of each list, or of those sampled; and a mask.

        Padding has the row of the list's first item.
        """
        width = max(1, width if sampled is None else min(width, sampled.shape[1]))
        positions = torch.arange(width, device=self._gather_device).expand(len(plan.lists), width)
        mask = positions < lengths[:, None]
        if sampled is not None:
            positions = sampled[:, :width]
        # An empty list at the end of the data set starts after the last row.
        last = max(0, self.dataset.n_items - 1)
        return (plan.starts[:, None] + torch.where(mask, positions, 0)).clamp(max=last), mask

    def _take_features(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        """The features ``[*items, f]`` of rows: from the device, transformed and 0 on padding.

        Features read on the host are raw; :meth:`_to_device` transforms them and clears padding.
        """
        if self._features is None:
            return torch.from_numpy(np.asarray(self.dataset.features[rows.numpy()]))
        features = self._features.index_select(0, rows.flatten())
        features = features.reshape(*rows.shape, features.shape[-1])
        return features if mask is None else features.masked_fill_(~mask[..., None], 0.0)

    def _to_device(self, batch: Batch) -> Batch:
        """Copy a batch that was read on the host to the device, and transform it there."""
        moved: dict[str, Any] = {
            name: tensor.to(self.device, non_blocking=True)
            for name, tensor in batch.tensors.items()
        }
        features = self._transform(moved["features"])
        if "mask" in moved:
            features = features.masked_fill(~moved["mask"][..., None], 0.0)
        return replace(batch, **moved | {"features": features})

    def _pin(self, batch: Batch) -> Batch:
        """Move a batch to pinned memory, from which a GPU copies without blocking the host."""
        if self.device.type != "cuda":
            return batch
        pinned: dict[str, Any] = {k: tensor.pin_memory() for k, tensor in batch.tensors.items()}
        return replace(batch, **pinned)

    def _to_gather_device(self, array: Array) -> Tensor:
        """Copy an array to the device where items are gathered."""
        tensor = _tensor(array)
        if self._gather_device.type != "cuda":
            return tensor.to(self._gather_device)
        return tensor.pin_memory().to(self._gather_device, non_blocking=True)

    def _load_features(self) -> Float[Tensor, "N f"]:
        """All features on the device, transformed once, block by block."""
        raw, transform = self.dataset.features, self._transform.to(self.device)
        loaded = torch.empty(len(raw), transform.n_outputs, device=self.device)
        height = max(1, _BLOCK // max(1, raw.shape[1]))
        for start in range(0, len(raw), height):
            block = _tensor(raw[start : start + height]).to(self.device)
            loaded[start : start + height] = transform.transform(block)
        return loaded


def _group_by_length(
    lengths: Array, documents: int, random: np.random.Generator | None = None
) -> list[Array]:
    """Group lists of similar length into batches of at most ``documents`` items with padding.

    With ``random``, for training, lists of equal length are shuffled and empty ones left out.
    """
    if random is None:
        order = np.argsort(lengths, kind="stable")
    else:
        order = np.lexsort((random.random(len(lengths)), lengths))
        order = order[lengths[order] > 0]
    sizes = np.maximum(lengths[order], 1)  # an empty list takes one item of padding
    batches, start = [], 0
    while start < len(order):
        # With padding, lists start:end have (end - start) * (length of the last) items: lengths
        # ascend, so this does too.
        n_lists = bisect.bisect_right(
            range(start + 1, len(order) + 1),
            documents,
            key=lambda end: (end - start) * int(sizes[end - 1]),
        )
        n_lists = max(1, min(n_lists, _MAX_LISTS))
        batches.append(order[start : start + n_lists])
        start += n_lists
    return batches


def _aligned_offsets(lengths: Sequence[Array]) -> tuple[Array, list[slice]]:
    """The offsets of several batches in one array, and the slice of each batch.

    The offsets of a batch begin at a multiple of 16 bytes (two int64), where kernels read them
    faster: for the n + 1 offsets of n lists, an even number of places is reserved.

    Args:
        lengths: of the lists, one array for each batch.

    >>> offsets, slices = _aligned_offsets([np.array([3, 1]), np.array([2])])
    >>> [offsets[part].tolist() for part in slices], [part.start for part in slices]
    ([[0, 3, 4], [0, 2]], [0, 4])
    """
    slices, end = [], 0
    for batch in lengths:
        slices.append(slice(end, end + len(batch) + 1))
        end += len(batch) // 2 * 2 + 2
    offsets = np.zeros(end, np.int64)
    for batch, part in zip(lengths, slices, strict=True):
        np.cumsum(batch, out=offsets[part][1:])
    return offsets, slices


def _round_up(size: int, steps: int) -> int:
    """Round up to one of a few sizes, of which there are ``steps`` in each doubling.

    >>> [_round_up(size, 8) for size in (0, 3, 240, 1000, 7744)]
    [0, 3, 240, 1024, 8192]
    """
    step = max(1, (1 << max(0, size.bit_length() - 1)) // steps)
    return -(-size // step) * step


def _tensor(array: Array) -> Tensor:
    """An array as a tensor; read-only arrays are copied, as PyTorch has no read-only tensors."""
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


def _free_memory(device: torch.device) -> int:
    """The bytes of a device's memory that this process may still allocate."""
    if device.type == "cuda":
        remaining = process_memory(device) - torch.cuda.memory_allocated(device)
        return max(0, min(int(torch.cuda.mem_get_info(device)[0]), remaining))
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not known on this system
        return 4 << 30  # 4 GiB
