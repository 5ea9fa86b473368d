"""The default by the data: what is left open follows the size of the training data.

``rankgrad train`` and :class:`rankgrad.Ranker` train one network with one loss. On few items it is
the default of :class:`~rankgrad.training.Settings`; on many, a network that takes in more, with a
learning rate that falls to 0. Measured effect of the rules: ``docs/results/simulated.md``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from rankgrad.data.batches import process_memory
from rankgrad.data.dataset import Dataset
from rankgrad.training.settings import Settings

#: From this many training items on, the model is ``medium`` or ``large``.
MANY_ITEMS = 50_000
#: Up to this many training lists they have 20 epochs, from there on 10.
MANY_LISTS = 10_000
#: Settings that rules may change, or that keep rules of training from applying.
RULED = ("model", "learning_rate", "schedule", "epochs", "patience")

_ITEM_BYTES = 300_000  # of GPU memory that a training step of ``large`` takes for an item


def for_data(
    settings: Settings, train: Dataset, explicit: Collection[str]
) -> tuple[Settings, list[str]]:
    """Settings with rules applied to what was not given, and sentences on those that were applied.

    Args:
        settings: with defaults where nothing was given.
        train: training lists, those held out of them included.
        explicit: names of settings that stay as they are. Rules of training apply only where the
            model is left open, too: they were measured with it.

    >>> import numpy as np
    >>> from rankgrad.data import Dataset
    >>> from rankgrad.training.defaults import for_data
    >>> features, offsets = np.zeros((60000, 2), np.float32), np.arange(0, 60001, 100)
    >>> lists = Dataset(features, np.zeros(60000), offsets, np.arange(600).astype(str))
    >>> settings, notes = for_data(Settings(device="cpu"), lists, explicit={"device"})
    >>> settings.schedule, settings.epochs
    ('cosine', 20)
    >>> print(*notes)
    60,000 training items and no GPU: model medium, cosine schedule of 20 epochs (model=small is \
for fewer)
    >>> for_data(Settings(), lists, explicit={"model"})[1]
    []
    """
    if train.n_items < MANY_ITEMS or "model" in explicit:
        return settings, []
    model, why = _model(settings, train)
    changes: dict[str, Any] = {"model": model}
    what = f"model {model}"
    if not set(RULED) & set(explicit):
        epochs = 20 if len(train) <= MANY_LISTS else 10
        changes |= {"schedule": "cosine", "epochs": epochs, "patience": None}
        what += f", cosine schedule of {epochs} epochs"
    note = f"{train.n_items:,} training items{why}: {what} (model=small is for fewer)"
    return Settings(**settings.model_dump() | changes), [note]


def _model(settings: Settings, train: Dataset) -> tuple[str, str]:
    """The model for many items, and what of the machine decides it."""
    if settings.device == "cpu" or not torch.cuda.is_available():
        return "medium", " and no GPU"
    longest = min(int(train.lengths.max()), settings.list_size or train.n_items)
    needed = _ITEM_BYTES * settings.batch_size * longest
    if 2 * needed > process_memory(torch.device("cuda")):
        return "medium", f" in lists of up to {longest:,}, too long for large on this GPU"
    return "large", " and a GPU"
