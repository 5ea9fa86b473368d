"""Gradient caching: the exact gradient of a loss over a long list, in the memory of a mini-batch.

GradCache (Gao et al. 2021) has three steps:

1. Score all mini-batches without a graph.
2. Differentiate the loss by the scores alone.
3. Score each mini-batch again, with a graph, and backpropagate its part of that gradient.

Peak memory is that of one mini-batch, however long the list. The second pass repeats the random
numbers and the autocast of the first, so that dropout draws the same masks.

- :func:`cached_backward` is for your own training loop;
- :func:`cached_scores` is for code in which a trainer or a gradient scaler calls ``backward()``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Batch = TypeVar("Batch")
NoSync = Callable[[], AbstractContextManager[Any]]


def cached_backward(
    score_fn: Callable[[Batch], Tensor],
    batches: Iterable[Batch],
    loss: Callable[[Tensor], Tensor],
    *,
    scale: float | Tensor = 1.0,
    no_sync: NoSync | None = None,
) -> Tensor:
    """Backpropagate ``scale * loss(all scores)``, one mini-batch at a time; return the loss.

    The same as ``loss(torch.cat([score_fn(batch) for batch in batches])).backward()``, dropout
    included, but only one mini-batch has a graph at any time. The last mini-batch is scored once,
    the others twice; so a single mini-batch costs what a plain step costs.

    The model may be compiled, partly frozen, or use gradient checkpointing. It must be on its
    device before the call; ``score_fn`` may move the batches. Random numbers must come from
    PyTorch's default generators, whose state is saved before each mini-batch. Running statistics,
    such as those of batch normalization, are updated twice by most mini-batches. Where gradients
    are disabled, the loss is returned without a backward pass.

    Args:
        score_fn: returns the scores ``[m]`` of a mini-batch.
        batches: the mini-batches, of any type; those of all lists together.
        loss: returns the scalar loss of all scores ``[N]``, which are in the order of the batches.
            The function itself knows the labels and offsets. Its own parameters get gradients, too.
        scale: a factor of the gradient, not of the returned value: ``1 / steps`` for gradient
            accumulation, ``scaler.get_scale()`` for a ``GradScaler``.
        no_sync: under DDP the wrapped module's ``no_sync`` (with Fabric, ``lambda:
            fabric.no_backward_sync(module)``). Gradients are then synchronized in the last backward
            pass only, and processes may have different numbers of mini-batches. DDP's
            ``static_graph=True`` is not supported.

    Returns:
        The loss, detached: a scalar.

    Raises:
        ValueError: there is no mini-batch, or scores are not ``[m]``.
        RuntimeError: no score requires a gradient, or a mini-batch has another number of scores in
            the second pass than in the first.

    >>> model = torch.nn.Linear(2, 1)
    >>> documents, labels = torch.randn(5, 2), torch.tensor([2.0, 0.0, 1.0, 0.0, 0.0])
    >>> ndcg = losses.get("neural_ndcg@3")
    >>> value = cached_backward(
    ...     lambda batch: model(batch).squeeze(-1),
    ...     documents.split(2),
    ...     lambda scores: ndcg(scores, labels),
    ... )
    >>> value.requires_grad, model.weight.grad.shape
    (False, torch.Size([1, 2]))
    """
    passes = _TwoPasses(score_fn, batches, no_sync)
    scores = passes.run_first()
    if not torch.is_grad_enabled():
        return loss(scores)
    if not passes.trainable:
        raise RuntimeError("the scores require no gradient: every parameter is frozen")
    scores.requires_grad_()
    value = loss(scores)
    with torch.autocast(scores.device.type, enabled=False):
        (value * scale).backward()
    if scores.grad is None:
        raise RuntimeError("the loss does not depend on the scores")
    passes.run_second(scores.grad)
    return value.detach()


def cached_scores(
    score_fn: Callable[[Batch], Tensor],
    batches: Iterable[Batch],
    *,
    no_sync: NoSync | None = None,
) -> Tensor:
    """The scores ``[N]`` of all mini-batches, whose backward pass runs the mini-batches again.

    For trainers that call ``backward`` themselves: compute any loss of these scores and return it.
    A factor that the trainer applies to the loss also scales the parameters' gradients. The second
    pass runs under the autocast of the first. The requirements are those of
    :func:`cached_backward`.

    Args:
        score_fn: gives the scores ``[m]`` of a mini-batch.
        batches: the mini-batches, of any type; those of all lists together.
        no_sync: under DDP the wrapped module's ``no_sync``, as in :func:`cached_backward`.

    Returns:
        Scores attached to the graph; plain scores where gradients are disabled, or where no
        parameter requires one. Only first derivatives exist, and ``backward`` runs once. It adds
        the gradients of parameters to their ``grad``. The parameters are not in the graph of the
        scores, so ``torch.autograd.grad`` of a loss by them raises or, with ``allow_unused=True``,
        returns None.

    Raises:
        ValueError: there is no mini-batch, or scores are not ``[m]``.

    >>> model = torch.nn.Linear(2, 1)
    >>> scores = cached_scores(lambda x: model(x).squeeze(-1), torch.randn(5, 2).split(2))
    >>> losses.get("softmax")(scores, torch.tensor([2, 0, 1, 0, 0])).backward()
    >>> model.weight.grad.shape
    torch.Size([1, 2])
    """
    passes = _TwoPasses(score_fn, batches, no_sync)
    if len(passes.batches) == 1:
        return passes.scores(0)
    scores = passes.run_first()
    if not torch.is_grad_enabled() or not passes.trainable:
        return scores
    # Parameters are not arguments of the autograd function, so the anchor requires the gradient.
    anchor = torch.zeros((), device=scores.device, requires_grad=True)
    attached: Tensor = _SecondPass.apply(anchor, scores, passes)
    return attached


class _TwoPasses:
    """Mini-batches that are scored without a graph, then again with one.

    The last mini-batch is scored once: it has a graph in the first pass already, and the second
    pass begins with its backward pass. So still only one graph exists at any time.
    """

    def __init__(
        self, score_fn: Callable[[Any], Tensor], batches: Iterable[Any], no_sync: NoSync | None
    ) -> None:
        self.batches = list(batches)
        if not self.batches:
            raise ValueError("batches is empty: expected at least one mini-batch of documents")
        self.distributed = no_sync is not None
        self.no_sync = nullcontext if no_sync is None else no_sync
        self._score_fn = score_fn
        self._states: list[_RandomState] = []
        self._sizes: list[int] = []
        self._last_scores: Tensor | None = None  # of the last mini-batch, with their graph

    @property
    def trainable(self) -> bool:
        """Whether the scores of the first pass require a gradient."""
        return self._last_scores is not None and self._last_scores.requires_grad

    def run_first(self) -> Tensor:
        """Compute all scores ``[N]``, detached.

        Unless gradients are disabled, the random states, the autocast and the graph of the last
        mini-batch are saved for the second pass.
        """
        if not torch.is_grad_enabled():
            indices = range(len(self.batches))
            return torch.cat([self.scores(index).detach().clone() for index in indices])
        scores = []
        with torch.no_grad(), warnings.catch_warnings():
            # Reentrant gradient checkpointing warns that there is no graph, as is intended.
            warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
            for index in range(len(self.batches) - 1):
                self._states.append(_RandomState())
                # In the first forward pass with a graph of each step, DDP rebuilds its buckets and
                # broadcasts buffers, which all processes must do together. A process with a single
                # mini-batch has a graph in its first forward pass, so here the first one has a
                # graph too, which is dropped.
                with torch.set_grad_enabled(self.distributed and index == 0), self.no_sync():
                    batch_scores = self.scores(index).detach()
                self._states[-1].check_was_saved(batch_scores.device)
                # A copy: CUDA graphs of compiled models reuse the memory of their outputs.
                scores.append(batch_scores.clone())
        # Older versions of PyTorch would reuse the weights that autocast has cast without a graph,
        # and these pass no gradient on (issue 112583 of PyTorch).
        torch.clear_autocast_cache()
        is_single = len(self.batches) == 1
        with nullcontext() if is_single else self.no_sync():
            self._last_scores = self.scores(-1)
        scores.append(self._last_scores.detach().clone())
        self._autocast = _autocast_contexts(scores[0].device)
        self._sizes = [len(batch_scores) for batch_scores in scores]
        return torch.cat(scores)

    def run_second(self, grad_scores: Tensor) -> None:
        """Run each mini-batch's backward pass with its part of the scores' gradient ``[N]``."""
        if self._last_scores is None:
            raise RuntimeError("the graph of these scores was used already: backward runs once")
        *rest, last = grad_scores.split(self._sizes)
        is_single = not rest
        with nullcontext() if is_single else self.no_sync():
            self._backward(self._last_scores, last)
        self._last_scores = None
        with ExitStack() as stack:
            for context in self._autocast:
                stack.enter_context(context)
            for index, grad in enumerate(rest):
                is_last = index == len(rest) - 1
                with nullcontext() if is_last else self.no_sync():
                    self._backward(self._second_scores(index, len(grad)), grad)

    def _second_scores(self, index: int, size: int) -> Tensor:
        """Scores ``[m]`` with a graph, computed with the random numbers of the first pass."""
        with torch.enable_grad(), self._states[index].restored():
            scores = self.scores(index)
        if len(scores) != size:
            raise RuntimeError(
                f"mini-batch {index} had {size} scores in the first pass and has {len(scores)} in "
                "the second: score_fn must repeat itself"
            )
        return scores

    def scores(self, index: int) -> Tensor:
        """The scores ``[m]`` of a mini-batch, with or without a graph as the caller has set."""
        scores = self._score_fn(self.batches[index])
        if scores.ndim != 1:
            raise ValueError(f"score_fn must give scores of shape [m], found {list(scores.shape)}")
        return scores

    def _backward(self, scores: Tensor, grad: Tensor) -> None:
        # PyTorch advises against backward passes under autocast: on a CPU they lose precision.
        with torch.autocast(scores.device.type, enabled=False):
            torch.autograd.backward(scores, grad.to(scores.dtype))


class _SecondPass(torch.autograd.Function):
    """The identity of the scores, whose backward pass runs the mini-batches again."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, scores: Tensor, passes: _TwoPasses) -> Tensor:
        ctx.passes = passes
        return scores.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_scores: Tensor) -> tuple[None, None, None]:
        ctx.passes.run_second(grad_scores)
        return None, None, None


class _RandomState:
    """The states of PyTorch's default generators: of the CPU, and of every device in use.

    All devices are saved, not only those of the inputs: inputs may be on the CPU before a
    mini-batch is scored, while dropout draws on the model's device.
    """

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._module: Any = _device_module()
        self._devices: Any = None
        if self._module is not None:  # torch.mps has one device, and no get_rng_state_all
            self._devices = getattr(self._module, "get_rng_state_all", self._module.get_rng_state)()

    def check_was_saved(self, device: torch.device) -> None:
        """Raise if ``device`` was not yet in use when the states were saved."""
        if device.type != "cpu" and self._devices is None:
            raise RuntimeError(
                f"score_fn was the first to use {device}, whose random state could not be "
                "saved: move the model to its device before"
            )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A context in which random numbers are drawn from this state."""
        previous = _RandomState()
        self._set()
        try:
            yield
        finally:
            previous._set()

    def _set(self) -> None:
        """Continue all generators from the saved states."""
        torch.set_rng_state(self._cpu)
        if self._devices is not None:
            getattr(self._module, "set_rng_state_all", self._module.set_rng_state)(self._devices)


def _device_module() -> ModuleType | None:
    """The PyTorch module of the accelerator, such as ``torch.cuda``; None if it is not in use."""
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    in_use = getattr(module, "is_initialized", lambda: True)()
    return module if in_use else None


def _autocast_contexts(device: torch.device) -> list[torch.autocast]:
    """Contexts that restore the present autocast of a device and of the CPU."""
    cache = torch.is_autocast_cache_enabled()
    return [
        torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache)
        for kind in sorted({"cpu", device.type})
    ]
