"""Gradient caching: the exact gradient of a loss over a long list, in the memory of a mini-batch.

The scores of a list are computed in mini-batches without a graph, the loss is differentiated by
the scores alone, and each mini-batch is run again with its part of that gradient (GradCache, Gao et
al. 2021). Peak memory is that of one mini-batch, however long the list. The second pass repeats the
random numbers and the autocast of the first, so that dropout draws the same masks.

- :func:`cached_backward` for your own training loop;
- :func:`cached_scores` where somebody else calls ``loss.backward()``: a trainer, a gradient scaler.
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
    as those of batch normalization, see most mini-batches twice. Where gradients are disabled, the
    plain loss is returned and nothing else is done.

    Args:
        score_fn: returns the scores ``[m]`` of a mini-batch.
        batches: the mini-batches, of any type; those of all lists together.
        loss: returns the scalar loss of all scores ``[N]``, in the order of the batches. It has the
            labels and offsets of the lists. Its own parameters get gradients, too.
        scale: a factor of the gradient, not of the value returned: ``1 / steps`` for gradient
            accumulation, ``scaler.get_scale()`` for a ``GradScaler``.
        no_sync: under DDP the wrapped module's ``no_sync`` (with Fabric, ``lambda:
            fabric.no_backward_sync(module)``): gradients are synchronized in the last backward pass
            only, and processes may have different numbers of mini-batches. DDP's
            ``static_graph=True`` is not supported.

    Returns:
        The loss, detached: a scalar.

    Raises:
        ValueError: there is no mini-batch, or scores are not ``[m]``.
        RuntimeError: no score requires a gradient, or the second pass gave other shapes.

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
    scores = passes.first()
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
    passes.second(scores.grad)
    return value.detach()


def cached_scores(
    score_fn: Callable[[Batch], Tensor],
    batches: Iterable[Batch],
    *,
    no_sync: NoSync | None = None,
) -> Tensor:
    """The scores ``[N]`` of all mini-batches, whose backward pass runs the mini-batches again.

    For trainers that call ``backward`` themselves: compute any loss of these scores and return it.
    Whatever the trainer multiplies it by reaches the parameters, and the second pass enters the
    autocast of the first by itself. Requirements as in :func:`cached_backward`.

    Args:
        score_fn: gives the scores ``[m]`` of a mini-batch.
        batches: the mini-batches, of any type; those of all lists together.
        no_sync: under DDP the wrapped module's ``no_sync``, as in :func:`cached_backward`.

    Returns:
        Scores attached to the graph; plain scores where gradients are disabled, or where no
        parameter requires any. Only first derivatives exist, and ``backward`` runs once. The
        gradients of parameters are added to their ``grad``: ``torch.autograd.grad`` of a loss by
        parameters raises or, with ``allow_unused=True``, gives None, as the graph has none of them.

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
    scores = passes.first()
    if not torch.is_grad_enabled() or not passes.trainable:
        return scores
    anchor = torch.zeros((), device=scores.device, requires_grad=True)
    attached: Tensor = _SecondPass.apply(anchor, scores, passes)
    return attached


class _TwoPasses:
    """Mini-batches scored without a graph, then again with one.

    The last mini-batch of the first pass keeps its graph until the second pass begins with it: no
    other graph exists in between, and a forward pass is saved.
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
        self._last: Tensor | None = None  # with its graph

    @property
    def trainable(self) -> bool:
        return self._last is not None and self._last.requires_grad

    def first(self) -> Tensor:
        """All scores, detached. Saves what the second pass needs, unless gradients are disabled."""
        if not torch.is_grad_enabled():
            return torch.cat(
                [self.scores(index).detach().clone() for index in range(len(self.batches))]
            )
        scores = []
        with torch.no_grad(), warnings.catch_warnings():
            # Reentrant gradient checkpointing warns of the missing graph, which comes later.
            warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
            for index in range(len(self.batches) - 1):
                self._states.append(_RandomState())
                # A copy: CUDA graphs of compiled models give the same memory again.
                scores.append(self._states[-1].checked(self._first_scores(index)).clone())
        # Older versions of PyTorch cache the weights that autocast has cast without a graph, and no
        # gradient would arrive there (its issue 112583).
        torch.clear_autocast_cache()
        is_single = len(self.batches) == 1
        with nullcontext() if is_single else self.no_sync():
            self._last = self.scores(-1)
        scores.append(self._last.detach().clone())
        self._autocast = _autocast_contexts(scores[0].device)
        self._sizes = [len(batch_scores) for batch_scores in scores]
        return torch.cat(scores)

    def second(self, grad_scores: Tensor) -> None:
        """Run each mini-batch's backward pass with its part of the scores' gradient."""
        if self._last is None:
            raise RuntimeError("the graph of these scores was used already: backward runs once")
        *rest, last = grad_scores.split(self._sizes)
        is_single = not rest
        with nullcontext() if is_single else self.no_sync():
            self._backward(self._last, last)
        self._last = None
        with ExitStack() as stack:
            for context in self._autocast:
                stack.enter_context(context)
            for index, grad in enumerate(rest):
                final = index == len(rest) - 1
                with nullcontext() if final else self.no_sync():
                    self._backward(self._second_scores(index, len(grad)), grad)

    def _second_scores(self, index: int, size: int) -> Tensor:
        """Scores with a graph, by the random numbers of the first pass."""
        with torch.enable_grad(), self._states[index].restored():
            scores = self.scores(index)
        if len(scores) != size:
            raise RuntimeError(
                f"mini-batch {index} had {size} scores in the first pass and has {len(scores)} in "
                "the second: score_fn must repeat itself"
            )
        return scores

    def _first_scores(self, index: int) -> Tensor:
        """Scores without a graph."""
        # DDP communicates in the first forward pass of a step that has a graph: it rebuilds its
        # buckets, then broadcasts buffers. Processes with a single mini-batch have a graph at once,
        # so the others do, too, and drop it.
        with torch.set_grad_enabled(self.distributed and index == 0), self.no_sync():
            return self.scores(index).detach()

    def scores(self, index: int) -> Tensor:
        """The scores of a mini-batch, as ``score_fn`` gives them."""
        scores = self._score_fn(self.batches[index])
        if scores.ndim != 1:
            raise ValueError(f"score_fn must give scores of shape [m], found {list(scores.shape)}")
        return scores

    def _backward(self, scores: Tensor, grad: Tensor) -> None:
        # Backward passes do not belong under autocast; on a CPU it would lower their precision.
        with torch.autocast(scores.device.type, enabled=False):
            torch.autograd.backward(scores, grad.to(scores.dtype))


class _SecondPass(torch.autograd.Function):
    """Scores in and out; the backward pass runs the mini-batches again."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, scores: Tensor, passes: _TwoPasses) -> Tensor:
        # The anchor requires a gradient, so the output does; parameters are not arguments.
        ctx.passes = passes
        return scores.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_scores: Tensor) -> tuple[None, None, None]:
        ctx.passes.second(grad_scores)
        return None, None, None


class _RandomState:
    """The states of PyTorch's default generators: of the CPU, and of every device in use.

    All devices rather than those of the inputs: inputs may still be on the CPU when a mini-batch
    begins, and dropout draws on the device that the model is on.
    """

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._module: Any = _device_module()
        self._devices: Any = None
        if self._module is not None:  # that of Apple's GPU has one device
            self._devices = getattr(self._module, "get_rng_state_all", self._module.get_rng_state)()

    def checked(self, scores: Tensor) -> Tensor:
        """``scores``, if the state of their device was saved before they were computed."""
        if scores.device.type != "cpu" and self._devices is None:
            raise RuntimeError(
                f"score_fn was the first to use {scores.device}, whose random state could not be "
                "saved: move the model to its device before"
            )
        return scores

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A context in which random numbers are drawn from this state."""
        outside = _RandomState()
        self._set()
        try:
            yield
        finally:
            outside._set()

    def _set(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._devices is not None:
            getattr(self._module, "set_rng_state_all", self._module.set_rng_state)(self._devices)


def _device_module() -> ModuleType | None:
    """``torch.cuda`` or its like, if it is in use."""
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    in_use = getattr(module, "is_initialized", lambda: True)()
    return module if in_use else None


def _autocast_contexts(device: torch.device) -> list[torch.autocast]:
    """Autocast as it is now, for a device and for the CPU, to be entered later."""
    cache = torch.is_autocast_cache_enabled()
    return [
        torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache)
        for kind in sorted({"cpu", device.type})
    ]
