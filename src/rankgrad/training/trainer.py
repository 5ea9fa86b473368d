"""The training loop, on Lightning Fabric: data, model and loss put together by their specs."""

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
from rankgrad.models import Scorer
from rankgrad.training._evaluations import is_over, score, validate
from rankgrad.training._fitted import FitResult, FittedRanker, describe
from rankgrad.training._gpu import AsyncScalars, Finite, Graphs, capturable, own_stream, sums_of
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

_DERIVED = 1 << 27  # values of features of which further columns are derived in memory
_STOP_DELAY = {"cuda": 16}  # steps until a stop request takes effect: nothing waits for a GPU


class Trainer:
    """One training run in one process."""

    def __init__(
        self,
        fabric: Any,
        job: Job,
        folder: RunFolder | None,
        checkpoint: Checkpoint | None,
        random: RandomState,
    ) -> None:
        self.fabric, self.job, self.settings, self.folder = fabric, job, job.settings, folder
        self.rank, self.ranks = fabric.global_rank, fabric.world_size
        settings = job.settings
        self.random = random
        random.seed(_seed(settings.seed))  # the same network in every process
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
        self.graphs = self._graphs()
        self.train, self.vali = self._batches(job.train, _with_loss(self.loss, job.train)), None
        if job.vali is not None:
            self.vali = self._batches(job.vali)
        self.others = {name: self._batches(data) for name, data in job.others.items()}
        self.scorer = self._scorer()
        self.module, self.fabric_optimizer = fabric.setup(self.scorer, self.optimizer)
        self.state = TrainState()
        self.best: dict[str, Tensor] = {}
        self.stop_requested = False  # to stop, in any of the processes
        self.stop_requests: deque[AsyncScalars] = deque()  # what the last steps say of that
        # Lists with a loss since the last step of the optimizer.
        self.lists_since_step = torch.zeros((), dtype=torch.float64, device=fabric.device)
        random.seed(_seed(settings.seed, self.rank))  # but not the same dropout
        if checkpoint is not None:
            self._restore(checkpoint)
        self.resumed_at = self.state.seconds
        self.began = time.perf_counter()

    def run(self) -> FitResult:
        """Train to the end."""
        if self.graphs is None:
            return self._run()
        try:
            with own_stream(self.fabric.device):
                return self._run()
        finally:
            self.graphs = None  # frees their memory at once, not at the next garbage collection

    def _run(self) -> FitResult:
        settings, state = self.settings, self.state
        self.ranker.network.train()
        stopped = self._reason()
        draw = self.random.training(self.ranker.network, self.loss)
        items = self.train.dataset.n_items // max(1, self.train.steps() * self.ranks)
        threads = for_work(passes(self.ranker.network, items))
        logging = callbacks(self.job, enabled=self.rank == 0)
        with Progress(self) as progress, logging as log, Interrupts() as interrupts, draw, threads:
            while stopped is None:
                if self._epoch(progress, interrupts):
                    log(self._finish_epoch(progress))
                stopped = self._reason() or ("interrupted" if self.stop_requested else None)
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

    def _reason(self) -> str | None:
        """Why training is over, or None."""
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
        """The rest of an epoch; False if it was interrupted between two steps."""
        state, every = self.state, self.settings.accumulate
        steps = self.train.steps(state.epoch)
        totals = torch.tensor(
            [state.loss, state.lists, 0.0], dtype=torch.float64, device=self.fabric.device
        )
        batches = self.train.epoch(state.epoch, rank=self.rank, ranks=self.ranks, start=state.step)
        progress.begin(state.epoch, state.step, steps)
        for batch in batches:
            first = state.step // every * every  # of those that make one step of the optimizer
            group = range(first, min(first + every, steps))
            ends_group = state.step == group[-1]
            sums = self._step(batch, steps, group, interrupts.stop_requested)
            state.step += 1
            totals += sums[:3]
            progress.step(totals[:2])
            self.stop_requested = (
                self._any_stop_requested(sums[3:]) if self.ranks > 1 else interrupts.stop_requested
            )
            if self.stop_requested and ends_group:
                break
        while self.stop_requests:
            self.stop_requested |= self.stop_requests.popleft().wait()[0] > 0
        state.loss, state.lists, nan_flag = totals.tolist()
        if math.isnan(nan_flag):
            raise self._diverged()
        return state.step == steps

    def _any_stop_requested(self, request: Tensor) -> bool:
        """Whether any process is asked to stop.

        On GPUs the request takes effect some steps later, at the same step in all processes, so
        that none waits.
        """
        self.stop_requests.append(AsyncScalars(request))
        if len(self.stop_requests) <= _STOP_DELAY.get(request.device.type, 0):
            return False
        return self.stop_requests.popleft().wait()[0] > 0

    def _step(self, batch: Batch, steps: int, group: range, interrupted: bool) -> Tensor:
        """One batch, over all processes.

        The sum of its lists' losses, their number, and NaN if training diverged, else 0; with
        several processes also how many are asked to stop. The batches of a group make one step of
        the optimizer, the one that a single batch of all their lists would make. On a GPU nothing
        here waits for it.
        """
        self._set_rates(group.start / self.settings.accumulate, steps)
        ends_group, single_batch = self.state.step == group[-1], len(group) == 1
        # At the end of the group, by the number of its lists.
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
                self._divide_gradients(self.lists_since_step.clamp(min=1e-12))
                self.lists_since_step = torch.zeros_like(self.lists_since_step)
            if self.settings.clip is not None:
                self.fabric.clip_gradients(
                    self.module,
                    self.fabric_optimizer,
                    max_norm=self.settings.clip,
                    error_if_nonfinite=False,
                )
            self.fabric_optimizer.step()
            self.fabric_optimizer.zero_grad()
            if self.average is not None:
                self.average.update()
        return sums

    def _passes(self, batch: Batch, single_batch: bool = True, interrupted: bool = False) -> Tensor:
        """Forward and backward: gradients at the parameters, and the sums that a step gives."""
        values, defined, sums = self._loss(batch)
        if self.ranks > 1:
            stop_flag = torch.full_like(sums[:1], float(interrupted))
            sums = self.fabric.all_reduce(torch.cat([sums, stop_flag]), reduce_op="sum")
        # Gradients are averaged over the processes, but the loss is the mean over the lists of all
        # of them, those on which it is undefined left out. How many those of a group are is known
        # at its end.
        mean = self.loss.reduction == "mean"
        count = sums[1].clamp(min=1e-12) if mean and single_batch else torch.ones_like(sums[1])
        of_list = self.ranks / count / self.ranker.members
        self.fabric.backward(values, gradient=defined * of_list.to(values.dtype))
        return sums

    def _set_rates(self, step: float, batches: int) -> None:
        """Set the learning rate and the loss's schedules for a step of the optimizer."""
        steps = math.ceil(batches / self.settings.accumulate)
        done = self.state.epoch + step / steps
        self.loss.progress = done / self.settings.epochs
        rate = self.settings.learning_rate * self.lr_schedule.factor(done, self.settings.epochs)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate

    def _divide_gradients(self, divisor: Tensor) -> None:
        for parameter in self.ranker.network.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(divisor)

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The lists' losses, where they are defined, and sums.

        The sums are that of the losses, the number of lists with one and a NaN flag. The flag is
        NaN if training diverged, else 0. On a CPU that raises at once. A GPU is not waited for: it
        goes on to the end of the epoch, with zeros in place of scores that are not finite.
        """
        scores = score(self.module, batch)
        nan_flag = scores.detach().sum(dtype=torch.float64) * 0.0
        if not scores.is_cuda and math.isnan(nan_flag.item()):
            raise self._diverged()
        if len(batch) == 0:  # of another process's batch; all parameters still take part
            values = sum((p.sum() * 0.0 for p in self.module.parameters()), scores.sum())[None]
            defined = torch.zeros_like(values, dtype=torch.bool)
            return values, defined, sums_of(values, defined, nan_flag, 1)
        members = self.ranker.members
        if scores.is_cuda:
            scores = Finite.apply(scores)
        values, defined = self.loss.values(_lists(scores, batch, members))
        return values, defined, sums_of(values, defined, nan_flag, members)

    def _diverged(self) -> ValueError:
        return ValueError(
            f"training diverged in epoch {self.state.epoch + 1}: the network gives scores that "
            "are not finite. Lower learning_rate, or set clip"
        )

    def _finish_epoch(self, progress: Progress) -> dict[str, float]:
        """Validate, choose and save; the new entry of the history."""
        state = self.state
        line = {
            "epoch": state.epoch + 1,
            "loss": state.loss / max(state.lists, 1e-12),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        if not math.isfinite(line["loss"]):
            raise ValueError(
                f"training diverged in epoch {line['epoch']}: the loss is {line['loss']}. Lower "
                "learning_rate, or set clip"
            )
        with self._averaged():
            if self.vali is not None:
                line |= validate(self.scorer, self.vali, self.metrics, self.fabric)
            for name, batches in self.others.items():
                values = validate(self.scorer, batches, self.metrics, self.fabric)
                line |= {f"{name} {metric}": value for metric, value in values.items()}
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

    def _averaged(self) -> AbstractContextManager[None]:
        """A context in which the network has its averaged weights, if there are any."""
        return nullcontext() if self.average is None else self.average.applied()

    def _improved(self, line: Mapping[str, float]) -> bool:
        """Whether this is the best epoch so far; without validation data, the last one is."""
        if self.vali is None:
            return True
        value, best = line[self.settings.metric], self.state.best_value
        if math.isnan(value):
            raise ValueError(
                f"{self.settings.metric} is undefined on every list of the validation data"
            )
        if best is None:
            return True
        return value < best if self.metrics[0].lower_is_better else value > best

    def _save(self, best: bool = False, line: Mapping[str, float] | None = None) -> None:
        """Bring the run folder up to date. ``last/`` comes last: it says how far all of it is."""
        if self.job.folder is None:
            return
        other = self._training_tensors()
        if self.folder is None:
            return
        if best:
            with self._averaged():
                self.folder.save_best(self.ranker)
        if line is not None:
            self.folder.log(line)
        self.state.seconds = self._seconds()
        self.folder.save_last(self.ranker, self.state, other)

    def _training_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state and that of all random numbers, of every process."""
        state = {f"optimizer.{k}": v for k, v in state_tensors(self.optimizer).items()}
        if self.average is not None:
            state |= {f"average.0.{name}": value for name, value in self.average.state().items()}
        for name, generator in self._generators().items():
            gathered = [generator.get_state()]
            if self.ranks > 1:
                on_device = gathered[0].to(self.fabric.device)
                gathered = [torch.empty_like(on_device) for _ in range(self.ranks)]
                distributed.all_gather(gathered, on_device)
            state |= {f"random.{rank}.{name}": each.cpu() for rank, each in enumerate(gathered)}
        return state

    def _generators(self) -> dict[str, torch.Generator]:
        """Everything that draws random numbers in training: the training's own, and the loss's."""
        generators = {"cpu": self.random.generator}
        device = self.fabric.device
        if device.type == "cuda":
            generators["cuda"] = torch.cuda.default_generators[device.index]
        return generators | generators_of(self.loss, device)

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
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

    def _graphs(self) -> Graphs | None:
        """Graphs of the passes, where those of all steps are alike and each makes a whole step."""
        network = self.ranker.network
        single = self.ranks == 1 and self.settings.accumulate == 1
        # Flat items of several members with padding between them are no lists one after the other.
        flat_members = self.ranker.per_item and self.ranker.members > 1
        usable = self.settings.graphs and single and not flat_members
        if usable and capturable(network, self.loss, self.fabric.device):
            return Graphs(self._passes, network)
        return None

    def _scorer(self) -> nn.Module:
        """What is called in each step: the network, or the part of it after its derived inputs.

        Columns that are derived of whole lists, such as ranks within the list, are the same in
        every epoch: where memory suffices, they are derived once.
        """
        network = self.ranker.network
        if not (isinstance(network, Scorer) and network.inputs_score_alone):
            return network
        batches = [self.train, *([] if self.vali is None else [self.vali]), *self.others.values()]
        values = network.n_features * sum(each.dataset.n_items for each in batches)
        plain = self.ranks == 1 and self.settings.precision == "32-true" and self.graphs is None
        plain = plain and self.fabric.device.type == "cpu" and self.settings.memory is None
        fits_in_memory = values <= _DERIVED and all(each.resident for each in batches)
        if network.per_item or not plain or self.train.is_cut or not fits_in_memory:
            return network
        with torch.no_grad():
            for each in batches:
                each.derive(network.inputs)
        return _InputScorer(network)

    def _batches(self, dataset: Dataset, trained: np.ndarray | None = None) -> Batches:
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
        return self.resumed_at + time.perf_counter() - self.began


class _InputScorer(nn.Module):
    """Scores items by their derived inputs: see :meth:`rankgrad.models.Scorer.inputs`."""

    def __init__(self, network: Scorer) -> None:
        super().__init__()
        self.network, self.members = network, getattr(network, "members", 1)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.network.score_inputs(inputs, mask)


def _with_loss(loss: Loss, dataset: Dataset) -> np.ndarray | None:
    """Which lists have a loss; None for all of them.

    Without a label above 0, most losses are undefined, whatever the scores: such lists add nothing
    to the mean, and need not be scored. Losses of the user's own get all lists.
    """
    if not loss.kernel_applies:
        return None
    relevant = np.zeros(len(dataset), bool)
    filled = np.flatnonzero(dataset.lengths)
    relevant[filled] = np.maximum.reduceat(dataset.labels, dataset.offsets[filled]) > 0
    if not len(filled) or not relevant.any() or relevant[filled].all():
        return None
    probe = losses.get(str(loss))
    for randomness in randomness_of(probe).values():
        randomness.fallback = torch.Generator()
    _, defined = probe.values(unchecked_lists(torch.tensor([[0.5, 0.0]]), torch.zeros(1, 2)))
    return None if bool(defined) else relevant


def _lists(scores: Tensor, batch: Batch, members: int) -> Lists:
    """The lists of a batch as scored by each member, member after member."""
    offsets = batch.offsets
    if members > 1 and offsets is not None:
        total = len(batch.labels)
        starts = torch.arange(members, device=offsets.device)[:, None] * total + offsets[:-1]
        offsets = torch.cat([starts.flatten(), members * offsets[-1:]])
    labels, weights = batch.labels, batch.weights
    mask = batch.mask if offsets is None else None  # lists end before the padding of flat batches
    if members > 1:
        labels, mask, weights = (_repeated(each, members) for each in (labels, mask, weights))
    scores = scores.reshape(-1, *batch.labels.shape[1:])
    return unchecked_lists(
        scores, labels, mask, offsets=offsets, max_length=batch.max_length, weights=weights
    )


def _repeated(values: Any, members: int) -> Any:
    return None if values is None else values.repeat(members, *[1] * (values.dim() - 1))


def _seed(*numbers: int) -> int:
    """One seed of several numbers; (1, 0) and (0, 1) give different ones."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
