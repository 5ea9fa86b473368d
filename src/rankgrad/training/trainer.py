"""Trainer: the training loop of networks, on Lightning Fabric.

:func:`rankgrad.training.fit` makes one :class:`Trainer` per process and calls :meth:`Trainer.run`.
An epoch is a sequence of batches; ``settings.accumulate`` batches, a group, make one step of the
optimizer. (``TrainState.step`` and ``Batches.steps`` count batches.) After each epoch the trainer
validates, remembers the best weights and saves a checkpoint.

A network may have several members, as TabM has. In training each of them scores every list, and has
its own loss.

On a GPU the loop never waits for results during an epoch: sums of losses stay on the device, and a
loss that is not finite is noticed at the end of the epoch.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, distributed, nn

from rankgrad._threads import for_work, passes
from rankgrad.data._dataset import Dataset
from rankgrad.data.batches import Batch, Batches
from rankgrad.inputs import unchecked_lists
from rankgrad.lists import Lists
from rankgrad.losses import Loss, losses
from rankgrad.losses._base import generators_of, randomness_of
from rankgrad.metrics import metrics
from rankgrad.metrics._base import undefined_message
from rankgrad.models import Scorer
from rankgrad.training._evaluations import is_over, score, validate
from rankgrad.training._fitted import FitResult, FittedRanker, describe
from rankgrad.training._gpu import AsyncScalars, Finite, Graphs, capturable, loss_sums, own_stream
from rankgrad.training._loggers import Progress, callbacks
from rankgrad.training._optimizers import (
    WeightAverage,
    learning_rates,
    load_state_tensors,
    optimizers,
    state_tensors,
)
from rankgrad.training._processes import Interrupts
from rankgrad.training.run import Checkpoint, Job, RunFolder, TrainState

if TYPE_CHECKING:
    from rankgrad.training._fitting import RandomState

__all__ = ["Trainer"]

_MAX_DERIVED = 1 << 27  # values of features up to which derived columns are computed in advance
_STOP_DELAY = {"cuda": 16}  # batches after which a stop request takes effect, by device
_MIN_COUNT = 1e-12  # divides sums over no lists, in place of 0


class Trainer:
    """One training run in one process.

    Args:
        fabric: the Fabric of this process, or what stands in for it.
        job: the arguments of ``fit``.
        folder: the run folder, in the first process of a run that is saved.
        checkpoint: what to resume from; None to start.
        random: the random numbers of this training.
    """

    def __init__(
        self,
        fabric: Any,
        job: Job,
        folder: RunFolder | None,
        checkpoint: Checkpoint | None,
        random: RandomState,
    ) -> None:
        self.fabric, self.job, self.settings, self.folder = fabric, job, job.settings, folder
        # The number of this process, and how many there are.
        self.rank, self.ranks = fabric.global_rank, fabric.world_size
        settings = job.settings
        self.random = random
        random.seed(_combine_seeds(settings.seed))  # the same initial weights in every process
        with random.building():
            train = job.train
            ranker = FittedRanker.new(
                settings, train.features, train.offsets, job.network, **describe(train)
            )
            self.ranker = ranker.to(fabric.device)
        self.loss: Loss = losses.get(settings.loss)
        self.metrics = [metrics.get(spec) for spec in settings.logged]
        self.lr_schedule = learning_rates.get(settings.schedule)
        self.optimizer = optimizers.get(settings.optimizer).build(
            self.ranker.network, settings.learning_rate, settings.weight_decay
        )
        decay = settings.average
        self.average = None if decay is None else WeightAverage(self.ranker.network, decay)
        self.graphs = self._make_graphs()
        self.train = self._make_batches(job.train, _lists_with_loss(self.loss, job.train))
        self.vali = None if job.vali is None else self._make_batches(job.vali)
        self.others = {name: self._make_batches(data) for name, data in job.others.items()}
        self.scorer = self._make_scorer()
        self.module, self.fabric_optimizer = fabric.setup(self.scorer, self.optimizer)
        self.state = TrainState()
        self.best: dict[str, Tensor] = {}  # the ranker's tensors after the best epoch
        self.stop_requested = False  # in any process
        # How many processes were asked to stop, for each of the last batches.
        self.stop_requests: deque[AsyncScalars] = deque()
        # The number of lists with a loss since the last step of the optimizer.
        self.lists_since_step = torch.zeros((), dtype=torch.float64, device=fabric.device)
        random.seed(_combine_seeds(settings.seed, self.rank))  # different dropout in each process
        if checkpoint is not None:
            self._restore(checkpoint)
        self.seconds_before = self.state.seconds  # before this run was resumed
        self.began = time.perf_counter()

    def run(self) -> FitResult:
        """Train to the end.

        Returns:
            The trained ranker with the history of its training.
        """
        if self.graphs is None:
            return self._run()
        try:
            with own_stream(self.fabric.device):
                return self._run()
        finally:
            self.graphs = None  # frees their memory now, not at the next garbage collection

    def _run(self) -> FitResult:
        """:meth:`run` on the current stream."""
        settings, state = self.settings, self.state
        self.ranker.network.train()
        stopped = self._stop_reason()
        rng = self.random.training(self.ranker.network, self.loss)
        items_per_batch = self.train.dataset.n_items // max(1, self.train.steps() * self.ranks)
        # A context in which PyTorch uses one thread if the passes over a batch are small work.
        threads = for_work(passes(self.ranker.network, items_per_batch))
        logging = callbacks(self.job, enabled=self.rank == 0)
        with Progress(self) as progress, logging as log, Interrupts() as interrupts, rng, threads:
            while stopped is None:
                if self._epoch(progress, interrupts):
                    log(self._finish_epoch(progress))
                stopped = self._stop_reason() or ("interrupted" if self.stop_requested else None)
            if stopped == "interrupted":
                self._save()
                progress.interrupted()
        model = self.ranker
        if self.best:
            model.load_tensors(self.best)
        model.network.eval()
        return FitResult(
            model=model.to("cpu"),
            history=state.history,
            best_epoch=state.best_epoch,
            best_value=state.best_value,
            settings=settings,
            seconds=self._seconds(),
            stopped=stopped,
        )

    def _stop_reason(self) -> str | None:
        """Why training ends after the epochs so far; None if it goes on."""
        state = self.state
        if state.epoch >= self.settings.epochs:
            return "epochs"
        if self.vali is None:
            return None
        sign = -1 if self.metrics[0].lower_is_better else 1
        values = [sign * line[self.settings.metric] for line in state.history]
        over = is_over(self.settings.patience, values, self.train.steps())
        return "patience" if over else None

    def _epoch(self, progress: Progress, interrupts: Interrupts) -> bool:
        """Train until the end of the epoch; returns False if it was interrupted before.

        A resumed epoch starts at the batch ``state.step``, with the sums of the batches before it.
        """
        state, accumulate = self.state, self.settings.accumulate
        n_batches = self.train.steps(state.epoch)
        # The totals of what _passes returns: the losses, the number of lists, the NaN flag.
        totals = torch.tensor(
            [state.loss, state.lists, 0.0], dtype=torch.float64, device=self.fabric.device
        )
        batches = self.train.epoch(state.epoch, rank=self.rank, ranks=self.ranks, start=state.step)
        progress.begin(state.epoch, n_batches)
        for batch in batches:
            # The batches that make one step of the optimizer.
            first = state.step // accumulate * accumulate
            group = range(first, min(first + accumulate, n_batches))
            ends_group = state.step == group[-1]
            sums = self._step(batch, n_batches, group, interrupts.stop_requested)
            state.step += 1
            totals += sums[:3]
            progress.step(totals[:2])
            self.stop_requested = interrupts.stop_requested
            if self.ranks > 1:
                self.stop_requested = self._any_stop_requested(sums[3:])
            if self.stop_requested and ends_group:
                break
        while self.stop_requests:  # those that have not taken effect yet
            self.stop_requested |= self.stop_requests.popleft().wait()[0] > 0
        state.loss, state.lists, nan_flag = totals.tolist()
        if math.isnan(nan_flag):
            raise self._diverged()
        return state.step == n_batches

    def _any_stop_requested(self, request: Tensor) -> bool:
        """Whether a process was asked to stop, at this batch or some batches ago.

        On GPUs a request takes effect ``_STOP_DELAY`` batches later, when its copy to the host has
        arrived without waiting; it does so at the same batch in all processes.

        Args:
            request: ``[1]``, how many processes were asked to stop.
        """
        self.stop_requests.append(AsyncScalars(request))
        if len(self.stop_requests) <= _STOP_DELAY.get(request.device.type, 0):
            return False
        return self.stop_requests.popleft().wait()[0] > 0

    def _step(self, batch: Batch, n_batches: int, group: range, interrupted: bool) -> Tensor:
        """Train on one batch; at the end of a group, make the step of the optimizer.

        That step is the one that a single batch with all lists of the group would make. Nothing
        here waits for a GPU.

        Args:
            batch: the lists of this process.
            n_batches: the number of batches of the epoch.
            group: the batches that make one step of the optimizer.
            interrupted: whether this process was asked to stop.

        Returns:
            The sums over all processes that :meth:`_passes` returns.
        """
        self._set_rates(group.start / self.settings.accumulate, n_batches)
        ends_group, single_batch = self.state.step == group[-1], len(group) == 1
        # A mean over the lists of a group is divided at its end, when their number is known.
        divide_later = self.loss.reduction == "mean" and not single_batch
        if self.graphs is not None:
            sums = self.graphs(batch)
        else:
            with self.fabric.no_backward_sync(self.module, enabled=not ends_group):
                sums = self._passes(batch, single_batch, interrupted)
        if divide_later:
            self.lists_since_step = self.lists_since_step + sums[1]
        if ends_group:
            if divide_later:
                n_lists = self.lists_since_step.clamp(min=_MIN_COUNT)
                for parameter in self.ranker.network.parameters():
                    if parameter.grad is not None:
                        parameter.grad.div_(n_lists)
                self.lists_since_step = torch.zeros_like(self.lists_since_step)
            if (clip := self.settings.clip) is not None:
                self.fabric.clip_gradients(
                    self.module, self.fabric_optimizer, max_norm=clip, error_if_nonfinite=False
                )
            self.fabric_optimizer.step()
            self.fabric_optimizer.zero_grad()
            if self.average is not None:
                self.average.update()
        return sums

    def _passes(self, batch: Batch, single_batch: bool = True, interrupted: bool = False) -> Tensor:
        """The forward and backward pass over a batch; sets the gradients.

        Args:
            batch: the lists of this process.
            single_batch: whether the batch is a group by itself.
            interrupted: whether this process was asked to stop.

        Returns:
            Sums over all processes, ``[3]``: the losses of the lists, the number of lists with a
            loss, and NaN if training diverged, else 0. With several processes, ``[4]``: also how
            many were asked to stop.
        """
        values, defined, sums = self._loss(batch)
        if self.ranks > 1:
            stop_flag = torch.full_like(sums[:1], float(interrupted))
            sums = self.fabric.all_reduce(torch.cat([sums, stop_flag]), reduce_op="sum")
        # The loss is the mean over the lists of all processes on which it is defined. Fabric
        # averages gradients over the processes, hence the factor ``ranks``. If the group has
        # further batches, _step divides by the number of lists at the end.
        divide_now = self.loss.reduction == "mean" and single_batch
        count = sums[1].clamp(min=_MIN_COUNT) if divide_now else torch.ones_like(sums[1])
        list_weight = self.ranks / count / self.ranker.members
        self.fabric.backward(values, gradient=defined * list_weight.to(values.dtype))
        return sums

    def _set_rates(self, steps_done: float, n_batches: int) -> None:
        """Set the learning rate and the loss's schedules for a step of the optimizer.

        Args:
            steps_done: the number of the optimizer's steps in this epoch before this one.
            n_batches: the number of batches of the epoch.
        """
        steps = math.ceil(n_batches / self.settings.accumulate)
        epochs_done = self.state.epoch + steps_done / steps
        self.loss.progress = epochs_done / self.settings.epochs
        factor = self.lr_schedule.factor(epochs_done, self.settings.epochs)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = self.settings.learning_rate * factor

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The losses of a batch's lists.

        If scores are not finite, training has diverged. On a CPU this raises an error. On a GPU,
        finding that out would wait, so the epoch goes on, with zeros in place of such scores, and
        :meth:`_epoch` raises at its end.

        Returns:
            The loss of each list as scored by each member, ``[members · lists]``; whether it is
            defined, of the same shape; and the sums of
            :func:`~rankgrad.training._gpu.loss_sums`, ``[3]``.
        """
        members = self.ranker.members
        scores = score(self.module, batch, members)
        nan_flag = scores.detach().sum(dtype=torch.float64) * 0.0  # 0 · inf and 0 · NaN are NaN
        if not scores.is_cuda and math.isnan(nan_flag.item()):
            raise self._diverged()
        if len(batch) == 0:  # the other processes have lists, and wait for all gradients
            values = sum((p.sum() * 0.0 for p in self.module.parameters()), scores.sum())[None]
            defined = torch.zeros_like(values, dtype=torch.bool)
            return values, defined, loss_sums(values, defined, nan_flag, 1)
        if scores.is_cuda:
            scores = Finite.apply(scores)
        values, defined = self.loss.values(_member_lists(scores, batch, members))
        return values, defined, loss_sums(values, defined, nan_flag, members)

    def _diverged(self) -> ValueError:
        return ValueError(
            f"training diverged in epoch {self.state.epoch + 1}: the network gives scores that "
            "are not finite. Lower learning_rate, or set clip"
        )

    def _finish_epoch(self, progress: Progress) -> dict[str, float]:
        """Validate, remember the best weights, and save; returns the new entry of the history."""
        state = self.state
        line = {
            "epoch": state.epoch + 1,
            "loss": state.loss / max(state.lists, _MIN_COUNT),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        if not math.isfinite(line["loss"]):
            raise ValueError(
                f"training diverged in epoch {line['epoch']}: the loss is {line['loss']}. Lower "
                "learning_rate, or set clip"
            )
        try:
            line |= self._evaluate()
        except FloatingPointError:
            raise self._diverged() from None
        state.epoch, state.step, state.loss, state.lists = state.epoch + 1, 0, 0.0, 0.0
        improved = self._improved(line)
        state.seconds = line["seconds"] = round(self._seconds(), 3)
        line = {name: value for name, value in line.items() if not math.isnan(value)}
        state.history.append(line)
        if improved:
            state.best_epoch = state.epoch
            state.best_value = line.get(self.settings.metric)
            with self._averaged():
                self.best = {k: v.detach().clone() for k, v in self.ranker.tensors().items()}
        self._save(best=improved, line=line)
        progress.end(line)
        return line

    def _evaluate(self) -> dict[str, float]:
        """The metrics on the validation data; and on each of the others, with its name in front."""
        values: dict[str, float] = {}
        with self._averaged():
            if self.vali is not None:
                values |= validate(self.scorer, self.vali, self.metrics, self.fabric)
            for name, batches in self.others.items():
                of_others = validate(self.scorer, batches, self.metrics, self.fabric)
                values |= {f"{name} {metric}": value for metric, value in of_others.items()}
        return values

    def _averaged(self) -> AbstractContextManager[None]:
        """A context in which the network has its averaged weights, if there are any."""
        return nullcontext() if self.average is None else self.average.applied()

    def _improved(self, line: Mapping[str, float]) -> bool:
        """Whether this is the best epoch so far; without validation data, the last one is."""
        if self.vali is None:
            return True
        value, best = line[self.settings.metric], self.state.best_value
        if math.isnan(value):
            raise ValueError(undefined_message(self.settings.metric))
        if best is None:
            return True
        return value < best if self.metrics[0].lower_is_better else value > best

    def _save(self, best: bool = False, line: Mapping[str, float] | None = None) -> None:
        """Update ``last/`` in the run folder, ``best/`` if ``best``, and the history by ``line``.

        ``last/`` is written last: resuming trusts its state, and cuts the history back to it.
        """
        if self.job.folder is None:
            return
        training_tensors = self._training_tensors()  # gathered from all processes
        if self.folder is None:  # only the first process writes
            return
        if best:
            with self._averaged():
                self.folder.save_best(self.ranker)
        if line is not None:
            self.folder.log(line)
        self.state.seconds = self._seconds()
        self.folder.save_last(self.ranker, self.state, training_tensors)

    def _training_tensors(self) -> dict[str, Tensor]:
        """The states of the optimizer, the averaged weights and all processes' generators."""
        state = {f"optimizer.{k}": v for k, v in state_tensors(self.optimizer).items()}
        if self.average is not None:
            state |= {f"average.0.{name}": value for name, value in self.average.state().items()}
        for name, generator in self._generators().items():
            gathered = [generator.get_state()]
            if self.ranks > 1:
                on_device = gathered[0].to(self.fabric.device)
                gathered = [torch.empty_like(on_device) for _ in range(self.ranks)]
                distributed.all_gather(gathered, on_device)
            state |= {f"random.{rank}.{name}": s.cpu() for rank, s in enumerate(gathered)}
        return state

    def _generators(self) -> dict[str, torch.Generator]:
        """The generators that training draws from, by name: its own, the GPU's and the loss's."""
        generators = {"cpu": self.random.generator}
        device = self.fabric.device
        if device.type == "cuda":
            generators["cuda"] = torch.cuda.default_generators[device.index]
        return generators | generators_of(self.loss, device)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint."""
        self.state, self.best = checkpoint.state, checkpoint.best
        self.ranker.load_tensors(checkpoint.model)
        other = checkpoint.other.items()
        saved_state = {k[len("optimizer.") :]: v for k, v in other if k.startswith("optimizer.")}
        load_state_tensors(self.optimizer, saved_state)
        if self.average is not None:
            self.average.restore({k.removeprefix("average.0."): v for k, v in other})
        for name, generator in self._generators().items():
            saved = checkpoint.other.get(f"random.{self.rank}.{name}")
            if saved is None:
                raise ValueError("the run was started with other devices: resume with the same")
            generator.set_state(saved)

    def _make_graphs(self) -> Graphs | None:
        """CUDA graphs of the passes, if all steps are alike and each batch is a group by itself."""
        network = self.ranker.network
        single = self.ranks == 1 and self.settings.accumulate == 1
        # Graphs pad flat batches to a few sizes. With several members the padding would be between
        # the members' items, but in flat layout each list begins where the previous one ends.
        flat_members = self.ranker.per_item and self.ranker.members > 1
        usable = self.settings.graphs and single and not flat_members
        if usable and capturable(network, self.loss, self.fabric.device):
            return Graphs(self._passes, network)
        return None

    def _make_scorer(self) -> nn.Module:
        """The module that scores batches: the network, or its part after the derived inputs.

        Columns derived within lists, such as ranks, are the same in every epoch. If memory
        suffices, they are computed once, here, and the batches contain them.
        """
        network = self.ranker.network
        if not (isinstance(network, Scorer) and network.inputs_score_alone):
            return network
        batches = [self.train, *([] if self.vali is None else [self.vali]), *self.others.values()]
        n_values = network.n_features * sum(part.dataset.n_items for part in batches)
        fits_in_memory = n_values <= _MAX_DERIVED and all(part.resident for part in batches)
        plain_cpu = self.fabric.device.type == "cpu" and self.ranks == 1 and self.graphs is None
        default_settings = self.settings.precision == "32-true" and self.settings.memory is None
        if not (fits_in_memory and plain_cpu and default_settings):
            return network
        # Nothing is derived, or each epoch cuts the lists anew, which changes the derived columns.
        if network.per_item or self.train.is_cut:
            return network
        with torch.no_grad():
            for part in batches:
                part.derive(network.inputs)
        return _InputScorer(network)

    def _make_batches(self, dataset: Dataset, trained: np.ndarray | None = None) -> Batches:
        """Batches of a data set; ``trained`` says which lists training uses, None for all."""
        settings = self.settings
        return Batches(
            dataset,
            batching=settings.batching,
            size=settings.batch_size,
            documents=settings.documents,
            list_size=settings.list_size,
            seed=settings.seed,
            flat=self.ranker.per_item,
            rounded=self.graphs is not None,
            device=self.fabric.device,
            transform=self.ranker.transform,
            memory=settings.memory,
            trained=trained,
        )

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began


class _InputScorer(nn.Module):
    """Scores batches whose features are already the inputs that ``network.inputs`` derives."""

    def __init__(self, network: Scorer) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.network.score_inputs(inputs, mask)


def _lists_with_loss(loss: Loss, dataset: Dataset) -> np.ndarray | None:
    """Which lists have a loss, ``[B]`` booleans; None for all of them.

    Most losses are undefined on a list without a label above 0, whatever the scores. Such lists add
    nothing to the mean and need not be scored. A user's own loss gets all lists.
    """
    if not loss.kernel_applies:
        return None
    relevant = np.zeros(len(dataset), bool)
    nonempty = np.flatnonzero(dataset.lengths)
    relevant[nonempty] = np.maximum.reduceat(dataset.labels, dataset.offsets[nonempty]) > 0
    if not len(nonempty) or not relevant.any() or relevant[nonempty].all():
        return None
    # Try a list without a label above 0, with a copy of the loss: ``loss`` itself must not draw
    # random numbers here.
    probe = losses.get(str(loss))
    for randomness in randomness_of(probe).values():
        randomness.fallback = torch.Generator()
    _, defined = probe.values(unchecked_lists(torch.tensor([[0.5, 0.0]]), torch.zeros(1, 2)))
    return None if bool(defined) else relevant


def _member_lists(scores: Tensor, batch: Batch, members: int) -> Lists:
    """The lists of a batch as scored by each member: ``members`` times as many lists.

    Args:
        scores: ``[members, ...]``, or ``[...]`` of a single member, where ``...`` is the shape of
            the batch's labels.
        batch: padded or flat.
        members: the number of members.
    """
    offsets = batch.offsets
    if members > 1 and offsets is not None:
        total = len(batch.labels)
        starts = torch.arange(members, device=offsets.device)[:, None] * total + offsets[:-1]
        offsets = torch.cat([starts.flatten(), members * offsets[-1:]])
    labels, weights = batch.labels, batch.weights
    mask = batch.mask if offsets is None else None  # the padding of flat batches is in no list
    if members > 1:
        labels, mask, weights = (_repeat(part, members) for part in (labels, mask, weights))
    scores = scores.reshape(-1, *batch.labels.shape[1:])
    return unchecked_lists(
        scores, labels, mask, offsets=offsets, max_length=batch.max_length, weights=weights
    )


def _repeat(values: Any, members: int) -> Any:
    """The values of the lists, ``[n, ...]``, once for each member: ``[members · n, ...]``."""
    return None if values is None else values.repeat(members, *[1] * (values.dim() - 1))


def _combine_seeds(*numbers: int) -> int:
    """One seed below 2^63 from several numbers; (1, 0) and (0, 1) give different ones."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
