"""Batches: the lists of a data set, gathered on the training device, step by step.

Which lists make a batch is decided on the host from the seed and the epoch alone, so it is the same
on every device and in every process. The items are then gathered by index arithmetic, without a
loop over lists: out of a copy of the features on the device where that fits, or else out of the
memory map by a thread that reads ahead.
"""

from __future__ import annotations

import bisect
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rankgrad.data.dataset import Dataset
from rankgrad.data.transforms import Pipeline, Transform
from rankgrad.lists import check_choice

Array = NDArray[Any]
Batching = Literal["queries", "documents", "query"]
BATCHINGS: tuple[Batching, ...] = get_args(Batching)

_BLOCK = 1 << 24  # values transformed at a time
_AHEAD = 2  # batches that are read ahead
_ORDER, _ITEMS = 0, 1  # what a stream of random numbers is for


@dataclass(frozen=True)
class Batch:
    """Some lists: padded ``[b, n]`` with a mask, or flat ``[N]`` with offsets (on the host).

    ``network(batch.features, batch.mask)`` gives the scores, in the layout of the labels.
    """

    features: Float[Tensor, "*items f"]
    labels: Float[Tensor, "*items"]
    mask: Bool[Tensor, "b n"] | None
    offsets: Int[Tensor, " c"] | None
    weights: Float[Tensor, "*items"] | None
    lists: Int[Tensor, " b"]  # which lists of the data set, on the host

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.lists)


class Batches:
    """The lists of a data set in batches, shuffled for training or in full for evaluation.

    Args:
        dataset: the lists; those without items are left out of training.
        batching: ``"queries"``: ``size`` lists in random order make a batch. ``"documents"``: lists
            of about the same length do, as many as stay within ``documents`` items with padding.
            ``"query"``: each list is a batch.
        size: lists per batch.
        documents: items per batch, padding included; a longer list is a batch by itself.
        list_size: longer lists are cut to so many items, drawn anew each epoch. Never in
            evaluation.
        seed: of the order and the draws, together with the epoch.
        flat: give flat items with offsets, for networks that score each item by itself.
        device: where batches are needed.
        transform: applied to the features; fitted.
        memory: how many bytes the features may take on the device; None for half of what is free.
            Beyond that they stay where they are and are read ahead.

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
        batching: Batching = "queries",
        size: int = 32,
        documents: int = 8192,
        list_size: int | None = None,
        seed: int = 0,
        flat: bool = False,
        device: torch.device | str = "cpu",
        transform: Transform | None = None,
        memory: int | None = None,
    ) -> None:
        check_choice("batching", batching, BATCHINGS)
        self.dataset, self.batching, self.flat, self.seed = dataset, batching, flat, seed
        self.size, self.documents = (1 if batching == "query" else size), documents
        self.list_size = list_size
        self.device = torch.device(device)
        transform = Pipeline().fit(dataset.features) if transform is None else transform
        needed = 4 * dataset.n_items * transform.n_outputs
        self.resident = needed <= (_free(self.device) // 2 if memory is None else memory)
        # Where the features stay on the host, so does the arithmetic that finds them.
        where = self.device if self.resident else torch.device("cpu")
        self._starts = torch.from_numpy(dataset.offsets[:-1].copy()).to(where)
        self._labels = _tensor(dataset.labels).to(where)
        self._weights = None if dataset.weights is None else _tensor(dataset.weights).to(where)
        self._transform = transform
        self._features = self._load() if self.resident else None

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
        plan = [lists[rank::ranks] for lists in self._plan(epoch)[start:]]
        return self._gather(plan, self._draws(epoch))

    def evaluation(
        self, documents: int | None = None, *, rank: int = 0, ranks: int = 1
    ) -> Iterator[Batch]:
        """All lists in full, in batches of like length; of them, the part of this rank."""
        plan = _like_lengths(self.dataset.lengths, documents or self.documents)
        return self._gather([lists[rank::ranks] for lists in plan if len(lists) > rank], None)

    def _plan(self, epoch: int) -> list[Array]:
        """Which lists make each batch of an epoch."""
        random = np.random.default_rng([self.seed, epoch, _ORDER])
        lengths = self.dataset.lengths
        if self.batching == "documents":
            if self.list_size is not None:
                lengths = np.minimum(lengths, self.list_size)
            plan = _like_lengths(lengths, self.documents, random)
            return [plan[at] for at in random.permutation(len(plan))]
        order = random.permutation(np.flatnonzero(lengths))
        return [order[at : at + self.size] for at in range(0, len(order), self.size)]

    def _draws(self, epoch: int) -> Float[Tensor, " N"] | None:
        """A random number for each item: the smallest of a list are the items it is cut to."""
        if self.list_size is None or (self.dataset.lengths <= self.list_size).all():
            return None
        random = np.random.default_rng([self.seed, epoch, _ITEMS])
        numbers = random.random(self.dataset.n_items, dtype=np.float32)
        return torch.from_numpy(numbers).to(self._starts.device)

    def _gather(self, plan: Sequence[Array], draws: Tensor | None) -> Iterator[Batch]:
        if self.resident:
            return (self._batch(lists, draws) for lists in plan)
        raw = _ahead(plan, lambda lists: self._batch(lists, draws))
        return (self._finish(batch) for batch in raw)

    def _batch(self, lists: Array, draws: Tensor | None) -> Batch:
        lengths, chosen = self.dataset.lengths[lists], None
        if draws is not None and lengths.max(initial=0) > (self.list_size or 0):
            chosen = self._choose(lists, draws)
            lengths = np.minimum(lengths, chosen.shape[-1])
        rows, mask = (self._flat if self.flat else self._padded)(lists, lengths, chosen)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        labels, weights = self._labels[rows], self._weights
        return Batch(
            features=self._take(rows, mask),
            labels=labels if mask is None else labels.masked_fill(~mask, 0.0),
            mask=mask,
            offsets=torch.from_numpy(offsets) if self.flat else None,
            weights=None if weights is None else weights[rows],
            lists=torch.from_numpy(lists),
        )

    def _flat(
        self, lists: Array, lengths: Array, chosen: Tensor | None
    ) -> tuple[Int[Tensor, " N"], None]:
        """The rows of the items, list after list."""
        device, total = self._starts.device, int(lengths.sum())
        counts = torch.from_numpy(lengths).to(device)
        which = torch.arange(len(lists), device=device)
        which = which.repeat_interleave(counts, output_size=total)
        places = torch.arange(total, device=device) - (counts.cumsum(0) - counts)[which]
        if chosen is not None:
            places = chosen[which, places]
        return self._starts[torch.from_numpy(lists).to(device)][which] + places, None

    def _padded(
        self, lists: Array, lengths: Array, chosen: Tensor | None
    ) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
        """The rows of the items and a mask; padding repeats a list's first row."""
        device = self._starts.device
        width = max(1, int(lengths.max(initial=0)))
        places = torch.arange(width, device=device).expand(len(lists), width)
        mask = places < torch.from_numpy(lengths).to(device)[:, None]
        if chosen is not None:
            places = chosen[:, :width]
        starts = self._starts[torch.from_numpy(lists).to(device)][:, None]
        last = max(0, self.dataset.n_items - 1)
        return (starts + torch.where(mask, places, 0)).clamp(max=last), mask

    def _choose(self, lists: Array, draws: Tensor) -> Int[Tensor, "b k"]:
        """The places of the items that lists are cut to, in the order they stand in."""
        lengths = self.dataset.lengths[lists]
        rows, mask = self._padded(lists, lengths, None)
        keys = draws[rows].masked_fill(~mask, float("inf"))
        # Ties among the keys of padding do not matter: its places come after all real ones.
        smallest: Tensor = keys.topk(self.list_size or 1, dim=-1, largest=False).indices
        return smallest.sort(dim=-1).values

    def _take(self, rows: Tensor, mask: Tensor | None) -> Tensor:
        if self._features is None:
            return torch.from_numpy(np.asarray(self.dataset.features[rows.numpy()]))
        features = self._features[rows]
        return features if mask is None else features.masked_fill_(~mask[..., None], 0.0)

    def _finish(self, batch: Batch) -> Batch:
        """A batch read on the host, brought to the device and transformed there."""
        features = self._transform(self._move(batch.features))
        mask = None if batch.mask is None else self._move(batch.mask)
        if mask is not None:
            features = features.masked_fill(~mask[..., None], 0.0)
        return replace(
            batch,
            features=features,
            labels=self._move(batch.labels),
            mask=mask,
            weights=None if batch.weights is None else self._move(batch.weights),
        )

    def _move(self, tensor: Tensor) -> Tensor:
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

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
    """Lists in batches of like length, of at most so many items with padding.

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
        batches.append(order[start : start + max(1, fit)])
        start += max(1, fit)
    return batches


def _ahead(plan: Sequence[Array], read: Callable[[Array], Batch]) -> Iterator[Batch]:
    """What ``read`` gives for each part of a plan, read by a thread that runs a little ahead."""
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(item: Batch | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for lists in plan:
                if stopped.is_set():
                    return
                put(read(lists))
            put(None)
        except BaseException as error:  # carried over to where the batches are used
            put(error)

    thread = threading.Thread(target=work, name="rankgrad-batches", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def _tensor(array: Array) -> Tensor:
    """A tensor of an array; a copy where the array is read-only, which PyTorch cannot express."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]).view(np.ndarray))


def _free(device: torch.device) -> int:
    """The bytes of memory that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not known on this system
        return 4 << 30
