"""The fused operations, entered with PyTorch, so that autograd and ``torch.compile`` know them.

All take lists as *slots*, flat memory in which list ``b`` is ``offsets[b]:offsets[b + 1]``. Padded
``[b, n]`` tensors are slots as they lie, with ``offsets = 0, n, 2n, ...`` and a ``mask`` that is
False on padding. ``longest`` bounds the number of slots of a list and is known on the host, so that
nothing waits for the device; if lists times that is all slots, every list has so many. Labels and
weights are of the scores' type. What padding holds is never looked at, nor are slots that come
after the last list, where results are not written either.

An operation of a loss gives, in one pass, for each list its value and whether the loss is defined
there, and for each slot the derivative of its list's value (0 on padding, and throughout lists on
which the loss is undefined): the way back is one product.

A metric is said by ``metric`` (``ndcg``, ``dcg``, ``precision``, ``recall``, ``rbp`` or ``arp``),
``k`` (0 for none), ``gain`` (``exponential`` or ``linear``), ``threshold`` and ``persistence``, as
in :mod:`rankgrad.metrics`, whose eager forms say what is computed here.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor

from rankgrad.kernels.arguments import FlatLists, MetricOptions
from rankgrad.kernels.cpu.guard import guarded_loss, guarded_product, guarded_ranks

_SLOTS = "Tensor scores, Tensor labels, Tensor? mask, Tensor? weights, Tensor offsets, int longest"
_METRIC = "str metric, int k, str gain, float threshold, float persistence"
_VALUES = "(Tensor values, Tensor slopes, Tensor defined)"

#: Losses: each gives values [b], slopes [slots] and defined [b]. In which module the twins stand.
LOSSES = {
    # 1 - metric through relaxed ranks; relaxation "sigmoid" (sharpness alpha), "lapsum" (1 / τ),
    # "fastsort" or "fastsort_entropic" (1 / strength).
    "through_ranks": (
        "ranks",
        f"({_SLOTS}, str relaxation, float sharpness, float beta, {_METRIC}) -> {_VALUES}",
    ),
    # 1 - metric through the rows of a relaxed permutation: "neuralsort" or "softsort".
    "through_rows": (
        "rows",
        f"({_SLOTS}, str relaxation, float temperature, {_METRIC}) -> {_VALUES}",
    ),
    # The same through NeuralSort with Sinkhorn scaling.
    "through_sinkhorn": (
        "sinkhorn",
        f"({_SLOTS}, float temperature, int iterations, float tolerance, bool transposed, "
        f"{_METRIC}) -> {_VALUES}",
    ),
    # The same through SmoothI's indicators, stop-gradient; expect "gain" or "label".
    "through_smoothi": (
        "smoothi",
        f"({_SLOTS}, float alpha, float delta, str expect, {_METRIC}) -> {_VALUES}",
    ),
    # The same through entropic optimal transport.
    "through_ot": (
        "ot",
        f"({_SLOTS}, float epsilon, int iterations, float tolerance, {_METRIC}) -> {_VALUES}",
    ),
    # Sums over pairs: "ranknet", "hinge" (sigma is the margin), "lambdarank", "ndcg_loss1",
    # "ndcg_loss2" or "ndcg_loss2++", for NDCG. Half: RankNet's pairs of equal labels, too. Of
    # other metrics ("precision", "recall", "ap", "rr", "arp": binary ones from a threshold on):
    # "lambdarank", or "ndcg_loss2" for LambdaLoss.
    "pairs": (
        "pairs",
        f"({_SLOTS}, str kind, int k, float sigma, str gain, str truncation, float mu, bool half, "
        f'str metric="ndcg", float threshold=1.0) -> {_VALUES}',
    ),
    # ListMLE; ties in labels by a hash of the seed (one int64 on the device) and the place of the
    # item among the real ones, or in input order without a seed.
    "listmle": ("listmle", f"({_SLOTS}, Tensor? seed) -> {_VALUES}"),
    # Cross-entropies; the target is the "label" itself, as for softmax, or the labels' "softmax",
    # as for ListNet.
    "cross_entropy": ("cross_entropy", f"({_SLOTS}, str target) -> {_VALUES}"),
    # Means over items: "mse"; "rmse" and "ordinal", where number is the levels; "bce", where it is
    # the threshold.
    "pointwise": ("pointwise", f"({_SLOTS}, str kind, float number) -> {_VALUES}"),
}

#: Relaxed ranks [slots], 0 on padding, and the vector-Jacobian product by scores.
RANKS = {
    "sigmoid_ranks": (
        "ranks",
        "(Tensor scores, Tensor? mask, Tensor offsets, int longest, float alpha) -> Tensor",
        "(Tensor grad, Tensor scores, Tensor? mask, Tensor offsets, int longest, float alpha) "
        "-> Tensor",
    ),
    "lapsum_ranks": (
        "lapsum",
        "(Tensor scores, Tensor? mask, Tensor offsets, int longest, float temperature) -> Tensor",
        "(Tensor grad, Tensor scores, Tensor? mask, Tensor offsets, int longest, "
        "float temperature) -> Tensor",
    ),
}

#: Exact metrics, which nothing differentiates or compiles: a plain function of the module.
METRICS = {"exact_metrics": ("metrics",)}

#: Up to which labels the gain 2^y - 1 and sums of it are safe in float32.
LARGEST_LABEL = 100.0

#: Looks at the values of lists, likewise.
CHECKS = {"look": ("check",)}

_library = torch.library.Library("rankgrad", "DEF")
_HERE: AbstractContextManager[Any] = nullcontext()


class _Twin:
    """The twin of an operation on a kind of device, imported when it is first needed."""

    def __init__(self, name: str, module: str, room: str) -> None:
        self.name, self.place = name, f"rankgrad.kernels.{room}.{module}"
        self.found: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self.found is None:
            self.found = self._find()
        return self.found(*arguments)

    def _find(self) -> Callable[..., Any]:
        found = getattr(importlib.import_module(self.place), self.name)
        return _grouped(found, self.name) if self.name in LOSSES else found

    def on_device(self, first: Tensor, *arguments: Any) -> Any:
        """The same on the device of the first tensor: PyTorch's registry does not go there."""
        with _on(first):
            return self(first, *arguments)


class _ReplayedTwin(_Twin):
    """A twin of which calls that come again are replayed."""

    def _find(self) -> Callable[..., Any]:
        return _replayed(super()._find())


def _grouped(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A kernel of a loss as a function of the operation's arguments, which PyTorch has in a row."""
    has_metric = _METRIC in LOSSES[name][1]

    def call(*arguments: Any) -> Any:
        lists, options = FlatLists(*arguments[:6]), arguments[6:]
        if has_metric:
            return kernel(lists, *options[:-5], MetricOptions(*options[-5:]))
        return kernel(lists, *options)

    return call


def backend_kernel(name: str, room: str) -> Callable[..., Any]:
    """The CPU or GPU kernel of an operation, as a function of the operation's arguments."""
    return _twins[name, {"cpu": "cpu", "gpu": "cuda"}[room]]._find()


def _replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that launches on GPUs, where calls that come again are replayed."""
    room = importlib.import_module("rankgrad.kernels.gpu.replay")
    found: Callable[..., Any] = room.replayed(function)
    return found


_twins: dict[tuple[str, str], _Twin] = {
    ("look", "cpu"): _Twin("look", "check", "cpu"),
    ("look", "cuda"): _Twin("look", "check", "gpu"),
    ("exact_metrics", "cpu"): _Twin("exact_metrics", "metrics", "cpu"),
    ("exact_metrics", "cuda"): _Twin("exact_metrics", "metrics", "gpu"),
}


def _enter(name: str, module: str, schema: str, guard: Any = None) -> None:
    """Enter an operation; a guard of its twin on CPUs is for callers that do not look at values."""
    _library.define(name + schema)
    for device, room in (("cpu", "cpu"), ("cuda", "gpu")):
        kind = _ReplayedTwin if room == "gpu" else _Twin
        twin = _twins[name, device] = kind(name, module, room)
        run = guard(twin.on_device) if guard and room == "cpu" else twin.on_device
        _library.impl(name, run, device.upper())


def loss(name: str, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Values and defined of one of :data:`LOSSES`.

    The same as ``torch.ops.rankgrad.NAME``, without the way through PyTorch's registry where nobody
    looks on: that costs as much as a small loss itself.
    """
    if torch.compiler.is_compiling():
        values, _, defined = getattr(torch.ops.rankgrad, name)(*arguments)
        return values, defined
    found: tuple[Tensor, Tensor] = _Direct.apply(arguments[0], name, arguments[1:])
    return found


def reduced(name: str, mean: bool, list_weights: Tensor | None, *arguments: Any) -> Tensor:
    """The mean or the sum over lists of one of :data:`LOSSES`, as one step of autograd.

    As :func:`rankgrad.lists.reduce`: lists on which the loss is undefined are left out. List
    weights are not differentiated.
    """
    if torch.compiler.is_compiling():
        values, _, defined = getattr(torch.ops.rankgrad, name)(*arguments)
        result: Tensor = torch.ops.rankgrad.reduce(values, defined, list_weights, mean)[0]
        return result
    result = _Reduced.apply(arguments[0], name, mean, list_weights, arguments[1:])
    return result


# Below, the scores alone stand among the arguments of `apply`, which looks at each of them.
class _Direct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, name: str, others: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor]:
        with _on(scores):
            values, slopes, defined = _twin(name, scores)(scores, *others)
        ctx.save_for_backward(slopes, others[3])
        ctx.longest = others[4]
        ctx.mark_non_differentiable(defined)
        ctx.set_materialize_grads(False)
        return values, defined

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        _only_once()
        slopes, offsets = ctx.saved_tensors
        return _twin("spread", slopes)(grad, slopes, offsets, ctx.longest), None, None


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        name: str,
        mean: bool,
        list_weights: Tensor | None,
        others: tuple[Any, ...],
    ) -> Tensor:
        with _on(scores):
            give = _reduced_on_gpu() if scores.is_cuda else _reduce_lists
            result, shares, slopes = give(scores, name, mean, list_weights, *others)
        ctx.save_for_backward(shares, slopes, others[3])
        ctx.longest = others[4]
        found: Tensor = result
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        _only_once()
        shares, slopes, offsets = ctx.saved_tensors
        spread = _twin("spread", slopes)
        if is_functorch_wrapped_tensor(grad) or is_legacy_batchedtensor(grad):
            product = spread(shares, slopes, offsets, ctx.longest) * grad  # of several at once
        else:
            product = spread(shares, slopes, offsets, ctx.longest, grad)
        return product, None, None, None, None


def _reduce_lists(
    scores: Tensor, name: str, mean: bool, list_weights: Tensor | None, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean or the sum, the share of each list in it, and the slopes of each list's value."""
    values, slopes, defined = _twin(name, scores)(scores, *others)
    result, shares = _twin("reduce", scores)(values, defined, list_weights, mean)
    return result, shares, slopes


@functools.cache
def _reduced_on_gpu() -> Callable[..., Any]:
    return _replayed(_reduce_lists)


def look(scores: Tensor, *others: Tensor | None) -> Callable[[], bool]:
    """Begin to look at values, and give what waits for the verdict, to be called once.

    That is whether scores are finite, weights finite and not negative, and labels not large either.
    After the scores: labels, mask, weights and list weights, all flat.
    """
    with _on(scores):
        verdict: Callable[[], bool] = _twin("look", scores)(scores, *others)
    return verdict


def too_large(labels: Tensor, mask: Tensor | None, most: float) -> Tensor:
    """Which labels are too large to take ``2^y`` of them, as an operation of compiled code.

    On a CPU, one that is too large is an error.
    """
    found: Tensor = torch.ops.rankgrad.too_large(labels, mask, most)
    return found


def refuse_large(labels: Tensor, mask: Tensor | None, most: float) -> None:
    """An error if a label is too large to take ``2^y`` of it."""
    real = labels.detach() if mask is None else labels.detach().where(mask, 0)
    highest = float(real.max())
    if highest > most:
        raise ValueError(
            f"a label of {highest:g} is too large for the gain 2^y - 1, which ends at {most:g} in "
            f"{labels.dtype}: use labels on a small scale, or gain=linear where the metric has it"
        )


def exact_metrics(scores: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """The values of metrics ``[metrics, lists]``, and whether a list has an item that counts.

    After the scores: labels, mask, weights, offsets and the length of the longest list, as above;
    and the metrics, as :mod:`rankgrad.kernels.cpu.metrics` describes them.
    """
    with _on(scores):
        found: tuple[Tensor, Tensor] = _twin("exact_metrics", scores)(scores, *others)
    return found


def _twin(name: str, tensor: Tensor) -> Any:
    """The twin for the device of a tensor."""
    twin = _twins[name, tensor.device.type]
    return twin.found or twin


def _on(tensor: Tensor) -> AbstractContextManager[Any]:
    """The tensor's device as the present one, where kernels are launched."""
    if not tensor.is_cuda or _one_device() or tensor.get_device() == torch.cuda.current_device():
        return _HERE
    return torch.cuda.device_of(tensor)


@functools.cache
def _one_device() -> bool:
    return torch.cuda.device_count() == 1


def _empty_values(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    lists = arguments[3].shape[0] - 1
    values = scores.new_empty(lists)
    return values, torch.empty_like(scores), torch.empty_like(values, dtype=torch.bool)


def _keep_slopes(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[1], inputs[4])
    ctx.longest, ctx.inputs = inputs[5], len(inputs)
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def _spread_back(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    slopes, offsets = ctx.saved_tensors
    spread = None
    if grad is not None:
        _only_once()
        spread = torch.ops.rankgrad.spread(grad, slopes, offsets, ctx.longest)
    return (spread, *[None] * (ctx.inputs - 1))


def _only_once() -> None:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError("rankgrad's losses and relaxations can be differentiated once only")


for _name, (_module, _schema) in LOSSES.items():
    _enter(_name, _module, _schema, guarded_loss)
    torch.library.register_fake(f"rankgrad::{_name}", _empty_values, lib=_library)
    torch.library.register_autograd(
        f"rankgrad::{_name}", _spread_back, setup_context=_keep_slopes, lib=_library
    )


def _rank_gradient(name: str) -> Any:
    def back(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        _only_once()
        scores, mask, offsets = ctx.saved_tensors
        product = getattr(torch.ops.rankgrad, f"{name}_vjp")
        return product(grad, scores, mask, offsets, *ctx.rest), None, None, None, None

    return back


def _keep_scores(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.rest = inputs[3:]


for _name, (_module, _schema, _product) in RANKS.items():
    _enter(_name, _module, _schema, guarded_ranks)
    _enter(f"{_name}_vjp", _module, _product, guarded_product)
    for _each in (_name, f"{_name}_vjp"):
        torch.library.register_fake(
            f"rankgrad::{_each}", lambda first, *_: torch.empty_like(first), lib=_library
        )
    torch.library.register_autograd(
        f"rankgrad::{_name}", _rank_gradient(_name), setup_context=_keep_scores, lib=_library
    )


def _too_large(labels: Tensor, mask: Tensor | None, most: float) -> Tensor:
    if labels.numel() and not labels.is_cuda:
        refuse_large(labels, mask, most)
    return labels > most if mask is None else (labels > most) & mask


_library.define("too_large(Tensor labels, Tensor? mask, float most) -> Tensor")
_library.impl("too_large", _too_large, "CompositeExplicitAutograd")
torch.library.register_fake(
    "rankgrad::too_large",
    lambda labels, *_: torch.empty_like(labels, dtype=torch.bool),
    lib=_library,
)

# A number for each list times those of its slots, and times one for all if there is such.
_enter(
    "spread",
    "spread",
    "(Tensor grad, Tensor slopes, Tensor offsets, int longest, Tensor? factor=None) -> Tensor",
)
torch.library.register_fake(
    "rankgrad::spread", lambda grad, slopes, *_: torch.empty_like(slopes), lib=_library
)


def _reduce_back(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
    (shares,) = ctx.saved_tensors
    return grad * shares, None, None, None


def _keep_shares(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


# The weighted sum or mean over lists, and the share of each in it.
_enter(
    "reduce",
    "reduce",
    "(Tensor values, Tensor defined, Tensor? list_weights, bool mean) "
    "-> (Tensor result, Tensor shares)",
)
torch.library.register_fake(
    "rankgrad::reduce",
    lambda values, *_: (values.new_empty(()), torch.empty_like(values)),
    lib=_library,
)
torch.library.register_autograd(
    "rankgrad::reduce", _reduce_back, setup_context=_keep_shares, lib=_library
)
