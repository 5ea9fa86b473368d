"""Training of a text ranker on the candidates of queries: the loop, the best epoch, resuming.

``rankgrad.experiments`` calls :func:`fit` for ``rankgrad text train``. Rankers of features have a
loop of their own, in ``rankgrad.training``.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankgrad.losses import Loss, losses
from rankgrad.losses._base import randomness_of
from rankgrad.metrics import metrics
from rankgrad.metrics._base import undefined_message
from rankgrad.text._cached import cached_backward
from rankgrad.text._candidates import Candidates
from rankgrad.text._teachers import MixedLoss
from rankgrad.text._text_ranker import TextRanker, autocast
from rankgrad.text._text_run import TextRun
from rankgrad.text._text_settings import TextSettings
from rankgrad.text._tokens import PairInputs, to_device
from rankgrad.training._fitting import isolated
from rankgrad.training.run import EpochState

Lists = NDArray[np.int64]  # indices of lists, [b]
LossFunction = Callable[..., Tensor]


@dataclass
class TextData:
    """The lists that a ranker is trained and validated on.

    Attributes:
        candidates: all lists.
        inputs: the tokens of the candidates, in the same order.
        train: indices of the training lists, ``[b]``.
        vali: indices of the validation lists, ``[b]``; None to train without validation.
    """

    candidates: Candidates
    inputs: PairInputs
    train: Lists
    vali: Lists | None = None


@dataclass(frozen=True)
class TextFitResult:
    """The result of training.

    Attributes:
        ranker: the ranker of the best epoch or, without validation, of the last.
        state: the history of training.
        stopped: why training ended: ``"epochs"``, ``"patience"`` or ``"interrupted"``.
    """

    ranker: TextRanker
    state: EpochState
    stopped: str


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called while a ranker is trained.

    Attributes:
        on_epoch: called with the values of each finished epoch.
        on_step: called after each step with the finished fraction of the epoch.
        interrupted: called after each step; True stops training, and the unfinished epoch is lost.
    """

    on_epoch: Callable[[dict[str, float]], None] = lambda values: None
    on_step: Callable[[float], None] = lambda fraction: None
    interrupted: Callable[[], bool] = lambda: False


def fit(
    ranker: TextRanker,
    data: TextData,
    settings: TextSettings,
    *,
    loss: LossFunction | None = None,
    run: TextRun | None = None,
    callbacks: Callbacks | None = None,
) -> TextFitResult:
    """Train a ranker in place. At the end it has the weights of the best epoch.

    PyTorch's random state is restored afterwards.

    Args:
        ranker: the ranker, on the same device as the tokens of ``data``.
        data: the lists to train and to validate on.
        settings: how to train; ``model`` and the settings of the ranker itself are ignored.
        loss: used instead of ``settings.loss``: a function of scores, labels and offsets.
        run: a run folder, in which each epoch is saved, and from which training resumes.
        callbacks: functions that are called during training.

    Raises:
        ValueError: there is nothing to train on, or training diverged.
    """
    # custom: as a user's own module, the model draws dropout from PyTorch's shared generators.
    with isolated(ranker.device, custom=True):
        return _Training(ranker, data, settings, loss, run).train(callbacks or Callbacks())


class _Training:
    """The state of a training, and its loop."""

    def __init__(
        self,
        ranker: TextRanker,
        data: TextData,
        settings: TextSettings,
        loss: LossFunction | None,
        folder: TextRun | None,
    ) -> None:
        self.ranker, self.data, self.settings = ranker, data, settings
        self.folder = folder
        candidates = data.candidates
        # The labels to train on, [N]; [N, 2] for a mix of grades and teacher's labels.
        self.targets = candidates.targets
        if candidates.teacher is not None and settings.teacher_weight < 1 and loss is None:
            self.targets = np.stack([candidates.labels, candidates.teacher], 1)
        self.loss: Any = self._loss_of_settings() if loss is None else loss
        self.lists = data.train[candidates.lengths[data.train] > 0]
        if not len(self.lists):
            raise ValueError("no query to train on has candidates")
        self.steps_per_epoch = math.ceil(len(self.lists) / settings.lists_per_step)
        self.optimizer = _optimizer(ranker, settings)
        self.state, self.best_weights = EpochState(), dict[str, Tensor]()
        if folder is not None:
            self.state, self.best_weights = folder.restore(ranker, self.optimizer)
        self.device_targets = torch.from_numpy(self.targets).to(ranker.device)

    def _loss_of_settings(self) -> Loss | MixedLoss:
        """The loss of the settings."""
        settings = self.settings
        if self.targets.ndim == 2:
            return MixedLoss(settings.loss, settings.teacher_weight, settings.teacher_loss)
        has_teacher = self.data.candidates.teacher is not None
        if has_teacher and settings.teacher_loss is not None:
            return losses.get(settings.teacher_loss)
        return losses.get(settings.loss)

    def train(self, callbacks: Callbacks) -> TextFitResult:
        """Train until there is a reason to stop, and load the best weights."""
        start = time.perf_counter() - self.state.seconds  # a resumed run adds to its earlier time
        stopped = self._stop_reason()
        while stopped is None:
            loss = self._train_epoch(callbacks)
            if loss is None:
                stopped = "interrupted"
                break
            values = {"epoch": self.state.epoch + 1, "loss": loss, **self._validate()}
            values = {name: value for name, value in values.items() if not math.isnan(value)}
            self.state.epoch += 1
            self.state.seconds = values["seconds"] = round(time.perf_counter() - start, 3)
            self.state.history.append(values)
            self._record_epoch(values)
            callbacks.on_epoch(dict(values))
            stopped = self._stop_reason()
        if self.best_weights:
            self.ranker.load_state_dict(self.best_weights)
        self.ranker.eval()
        return TextFitResult(self.ranker, self.state, stopped)

    def _stop_reason(self) -> str | None:
        """Why training is over, as in ``TextFitResult.stopped``; None if it goes on."""
        state, settings = self.state, self.settings
        if state.epoch >= settings.epochs:
            return "epochs"
        if settings.patience is not None and self.data.vali is not None and state.epoch:
            return "patience" if state.epoch - state.best_epoch >= settings.patience else None
        return None

    def _train_epoch(self, callbacks: Callbacks) -> float | None:
        """Train one epoch, and return the mean loss of its steps; None if it was interrupted.

        Random numbers are seeded by the epoch, so that an epoch that is repeated after a crash is
        the same.
        """
        random = np.random.default_rng([self.settings.seed, self.state.epoch])
        torch.manual_seed(int(random.integers(2**62)))
        self._seed_loss()
        self.ranker.train()
        step_losses = []
        shuffled, size = random.permutation(self.lists), self.settings.lists_per_step
        for step in range(self.steps_per_epoch):
            self._apply_schedules(step)
            step_losses.append(self._train_step(shuffled[step * size : (step + 1) * size], random))
            callbacks.on_step((step + 1) / self.steps_per_epoch)
            if callbacks.interrupted():
                return None
        loss = float(torch.stack(step_losses).mean())
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss}")
        return loss

    def _diverged(self, sign: str) -> ValueError:
        """The error of a training that diverged; ``sign`` says what shows it."""
        return ValueError(
            f"training diverged in epoch {self.state.epoch + 1}: {sign}. Lower learning_rate and "
            "head_learning_rate"
        )

    def _seed_loss(self) -> None:
        """Reseed a loss that has a seed of its own, by this seed and the epoch."""
        is_mixed = isinstance(self.loss, MixedLoss)
        parts = [self.loss.loss, self.loss.teacher_loss] if is_mixed else [self.loss]
        sources = [randomness_of(loss).values() for loss in parts if isinstance(loss, Loss)]
        for randomness in itertools.chain.from_iterable(sources):
            if randomness.seed is not None:
                generator = randomness.generator(self.device_targets.device)
                assert generator is not None
                seeds = np.random.default_rng([randomness.seed, self.state.epoch])
                generator.manual_seed(int(seeds.integers(2**62)))

    def _train_step(self, lists: Lists, random: np.random.Generator) -> Tensor:
        """Take a step of the optimizer on some ``lists`` ``[b]``, and return the loss."""
        settings, device = self.settings, self.device_targets.device
        items_of_lists = [self._sample_items(index, random) for index in lists]
        items = np.concatenate(items_of_lists)
        labels = self.device_targets[to_device(items, device)]
        offsets = to_device(np.cumsum([0, *map(len, items_of_lists)]), device)
        batches = list(self.data.inputs.batches(items, settings.mini_batch_size))
        # Scores come in the order of the mini-batches, shortest documents first;
        # scores[positions] are in the order of items.
        batch_order = np.concatenate([batch.indices for batch in batches])
        positions = to_device(np.argsort(batch_order, kind="stable"), device)

        def loss(scores: Tensor) -> Tensor:
            value: Tensor = self.loss(scores[positions], labels, offsets=offsets)
            return value

        precision = autocast(self.ranker.device, settings.precision)
        if settings.cache and len(batches) > 1:
            with precision:
                value = cached_backward(self.ranker, batches, loss)
        else:
            with precision:
                scores = torch.cat([self.ranker(batch) for batch in batches])
            value = loss(scores)
            value.backward()
        if settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.ranker.parameters(), settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return value.detach()

    def _sample_items(self, index: int, random: np.random.Generator) -> NDArray[np.int64]:
        """The items of a list that a step trains on, ``[n]``: all, or a sample.

        Up to half of a sample are relevant items, at least one, or more if others are too few.
        """
        first, last = self.data.candidates.offsets[index : index + 2]
        items, max_documents = np.arange(first, last), self.settings.documents
        if max_documents is None or len(items) <= max_documents:
            return items
        targets = self.targets[items]
        is_relevant = (targets if targets.ndim == 1 else targets[:, 0]) > 0
        relevant = random.permutation(items[is_relevant])
        others = random.permutation(items[~is_relevant])
        count = min(len(relevant), max(1, max_documents // 2, max_documents - len(others)))
        return np.concatenate([relevant[:count], others[: max_documents - count]])

    def _apply_schedules(self, step: int) -> None:
        """Set the learning rates and the loss's progress for a step of the present epoch."""
        total = self.steps_per_epoch * self.settings.epochs
        steps_done = self.state.epoch * self.steps_per_epoch + step
        if hasattr(self.loss, "progress"):
            self.loss.progress = steps_done / total
        warmup_steps = self.settings.warmup * total
        factor = min(1.0, (steps_done + 1) / warmup_steps) if warmup_steps else 1.0
        if self.settings.schedule == "linear" and steps_done >= warmup_steps:
            factor = (total - steps_done) / max(1.0, total - warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group["highest"] * factor

    def _validate(self) -> dict[str, float]:
        """The means of the metrics on the validation lists; {} without validation.

        A metric that is undefined on all of them is NaN, which is an error for the one that chooses
        the best epoch.
        """
        vali, candidates = self.data.vali, self.data.candidates
        if vali is None:
            return {}
        scores = self.ranker.score(
            self.data.inputs,
            candidates.items(vali),
            batch_size=4 * self.settings.mini_batch_size,  # no activations are kept for gradients
            precision=self.settings.precision,
        )
        if not np.isfinite(scores).all():
            raise self._diverged("a score is not a number")
        means = dict(candidates.select(vali).evaluate(scores, self.settings.logged).values.mean)
        if math.isnan(means[self.settings.metric]):
            raise ValueError(undefined_message(self.settings.metric))
        return means

    def _record_epoch(self, values: dict[str, float]) -> None:
        """Record whether the epoch is the best so far, and save it.

        Without validation every epoch counts as the best, so that the last one is.
        """
        state, improved = self.state, True
        if self.data.vali is not None:
            value, best = values[self.settings.metric], state.best_value
            lower_is_better = metrics.get(self.settings.metric).lower_is_better
            improved = best is None or (value < best if lower_is_better else value > best)
            state.best_value = value if improved else best
        if improved:
            state.best_epoch = state.epoch
            self.best_weights = {k: v.detach().clone() for k, v in self.ranker.state_dict().items()}
        if self.folder is not None:
            self.folder.save(self.ranker, self.optimizer, state, improved=improved)


def _optimizer(ranker: TextRanker, settings: TextSettings) -> torch.optim.AdamW:
    """AdamW with a learning rate for the encoder and one for the head.

    Weight decay is for weights only, not for biases and norms, whose parameters have one dimension.
    Schedules scale the rate ``highest`` of each group.
    """
    head = {id(parameter) for parameter in ranker.head_parameters()}
    groups: dict[tuple[bool, bool], list[Tensor]] = {}
    for parameter in ranker.parameters():
        if parameter.requires_grad:
            groups.setdefault((id(parameter) in head, parameter.ndim > 1), []).append(parameter)
    rates = {True: settings.head_learning_rate, False: settings.learning_rate}
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "lr": rates[is_head],
                "highest": rates[is_head],
                "weight_decay": settings.weight_decay if decays else 0.0,
            }
            for (is_head, decays), parameters in groups.items()
        ],
        fused=ranker.device.type == "cuda",
    )
