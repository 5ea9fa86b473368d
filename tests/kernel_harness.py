"""Random batches in the flat layout, and kernels held against the eager forms in float64."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from rankgrad import kernels, losses
from rankgrad.inputs import as_lists
from rankgrad.losses import Loss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = ["cpu", "gpu"] if DEVICE == "cpu" else ["gpu"]  # whose kernels run here

#: Kinds of batches for CPU kernels.
KINDS = ("plain", "ragged", "padded", "weighted", "tied", "constant", "extreme", "apart")

Results = tuple[Tensor, Tensor, Tensor]


def kernel_function(backend: str, name: str) -> Any:
    """A function that serves all losses, ``reduce`` or ``scale_by_list``, of a backend."""
    if backend == "gpu":
        pytest.importorskip("triton")
    return getattr(importlib.import_module(f"rankgrad.kernels.{backend}._reduce"), name)


def _patch_language_once() -> None:
    """Triton's interpreter patches the language at every call of a kernel; once is enough."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch, patched = interpreter._patch_lang, set()

    def patch_once(function):
        if len(patched) < 2:
            known = [each for each in function.__globals__.values() if isinstance(each, ModuleType)]
            languages = [each for each in (tl, tl.core) if each in known]
            if not patched.issuperset(languages):
                patch(function)
                patched.update(languages)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_once


def _cache_types() -> None:
    """Triton's interpreter makes the types and shapes of blocks anew for every operation.

    There are few: what is made of the same element type and shape is made once. That is a third of
    the time of a kernel.
    """
    from triton.language import core
    from triton.runtime import interpreter

    @functools.cache
    def block_attributes(element: core.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        made = object.__new__(core.block_type)
        make_block(made, element, list(shape))
        return vars(made)

    @functools.cache
    def tensor_shape(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.constexpr(math.prod(shape)), core.tuple(map(core.constexpr, shape))

    @functools.cache
    def array_type(element: core.dtype) -> Any:
        return array_type_of(element)

    def make_block_once(self, element_ty, shape):
        if isinstance(element_ty, core.pointer_type):  # has no hash
            return make_block(self, element_ty, shape)
        sizes = tuple(s.value if isinstance(s, core.constexpr) else s for s in shape)
        vars(self).update(block_attributes(element_ty, sizes))

    def make_tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = tensor_shape(tuple(type.shape) if type.is_block() else ())

    def array_type_once(kind):
        scalar = kind.scalar
        return array_type_of(kind) if isinstance(scalar, core.pointer_type) else array_type(scalar)

    make_block, core.block_type.__init__ = core.block_type.__init__, make_block_once
    core.tensor.__init__ = make_tensor
    array_type_of, interpreter._get_np_dtype = interpreter._get_np_dtype, array_type_once


if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    _patch_language_once()
    _cache_types()


@dataclass
class FlatBatch:
    """A batch in the flat layout, as kernels take it; padding holds NaN."""

    scores: Tensor
    labels: Tensor
    mask: Tensor | None
    weights: Tensor | None
    offsets: Tensor
    max_length: int

    @classmethod
    def random(
        cls,
        lengths: list[int],
        *,
        masked: bool = False,
        weighted: bool = False,
        ties: bool = False,
        std: float = 1.0,
        grades: int = 4,
        seed: int = 0,
    ) -> FlatBatch:
        """Random lists in float32; masked ones have more padding than items."""
        random = torch.Generator().manual_seed(seed)
        widths = [2 * n + 1 if masked else n for n in lengths]
        items = sum(widths)
        scores = torch.randn(items, generator=random) * std
        if ties:
            scores = scores.mul(2).round() / 2
        labels = torch.randint(0, grades + 1, (items,), generator=random).float()
        weights = torch.randint(1, 4, (items,), generator=random) / 2 if weighted else None
        mask = None
        if masked:
            mask = torch.zeros(items, dtype=torch.bool)
            start = 0
            for n, width in zip(lengths, widths, strict=True):
                mask[start + torch.randperm(width, generator=random)[:n]] = True
                start += width
        offsets = torch.tensor([0, *widths]).cumsum(0)
        batch = cls(scores, labels, mask, weights, offsets, max(widths, default=0))
        batch._fill_padding()
        tensors = [None if x is None else x.to(DEVICE) for x in batch.arguments[:5]]
        return cls(*tensors, batch.max_length)

    @classmethod
    def of_kind(cls, kind: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> FlatBatch:
        """A batch of one of the :data:`KINDS`, on the CPU.

        The bound on lengths is above that of most.
        """
        generator = torch.Generator().manual_seed(seed)
        if kind == "ragged":
            lengths = torch.tensor([0, 1, 2, 3, 17, 1, 61])
            total = int(lengths.sum())
            scores = torch.randn(total, generator=generator, dtype=torch.float64)
            labels = torch.randint(0, 4, (total,), generator=generator).to(dtype)
            offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
            return cls(scores.to(dtype), labels, None, None, offsets, 61)
        b, n = 3, 37
        scores = torch.randn(b, n, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 5, (b, n), generator=generator).double()
        labels *= torch.rand(b, n, generator=generator) < 0.5
        mask = weights = None
        if kind in ("padded", "weighted"):
            mask = torch.rand(b, n, generator=generator) < 0.7
            mask[1] = False
            mask[1, 5] = True
        if kind == "weighted":
            weights = torch.rand(b, n, generator=generator, dtype=torch.float64)
            weights = ((weights * 4).round() / 2).to(dtype).flatten()
        change = {
            "tied": lambda x: (x * 1.5).round(),
            "constant": lambda x: torch.full_like(x, 0.25),
            "extreme": lambda x: x * 5000,
            "apart": lambda x: x.round() * 250,
        }.get(kind, lambda x: x)
        flat = [x.to(dtype).flatten() for x in (change(scores), labels)]
        mask = None if mask is None else mask.flatten()
        batch = cls(*flat, mask, weights, torch.arange(b + 1) * n, 61)
        batch._fill_padding()
        return batch

    def _fill_padding(self) -> None:
        """NaN on padding."""
        if self.mask is not None:
            for tensor in (self.scores, self.labels, self.weights):
                if tensor is not None:
                    tensor[~self.mask] = float("nan")

    @property
    def arguments(self) -> tuple:
        """The first arguments of every operation of a loss."""
        return self.scores, self.labels, self.mask, self.weights, self.offsets, self.max_length

    def lists(self) -> list[tuple[Tensor, Tensor, Tensor | None, Tensor]]:
        """Scores, labels, weights and positions of the real items of each list, in float64."""
        found = []
        for start, end in zip(self.offsets.tolist(), self.offsets.tolist()[1:], strict=False):
            at = torch.arange(start, end)
            if self.mask is not None:
                at = at[self.mask[start:end].cpu()]
            scores, labels = self.scores.cpu()[at].double(), self.labels.cpu()[at].double()
            weights = None if self.weights is None else self.weights.cpu()[at].double()
            found.append((scores, labels, weights, at))
        return found

    def reference(self, loss: Loss | str) -> Results:
        """Values, grad_scores and defined by the eager form, list by list in float64."""
        loss = losses.get(loss) if isinstance(loss, str) else loss
        values, defined = [], []
        grad_scores = torch.zeros(len(self.scores), dtype=torch.float64)
        for scores, labels, weights, at in self.lists():
            if len(at) == 0:
                values.append(0.0)
                defined.append(False)
                continue
            lists = as_lists(scores.requires_grad_(), labels, weights=weights)
            with kernels.using("eager"):
                value, is_defined = loss.per_list(lists)
            defined.append(bool(is_defined))
            values.append(float(value.detach()) if is_defined else 0.0)
            if is_defined and value.requires_grad:
                grad_scores[at] = torch.autograd.grad(value.sum(), scores)[0]
        return torch.tensor(values, dtype=torch.float64), grad_scores, torch.tensor(defined)


def assert_matches(
    batch: FlatBatch,
    result: Results,
    reference: Results,
    rtol: float = 1e-5,
    grad_rtol: float | None = None,
    grad_atol: float | None = None,
) -> None:
    """A kernel's values and gradients against the reference.

    Values are within ``rtol``, gradients within ``grad_rtol`` (ten times that) of their norm plus
    ``grad_atol``, list by list and in the whole batch; they are 0 on padding.
    """
    grad_rtol = 10 * rtol if grad_rtol is None else grad_rtol
    is_double = result[0].dtype == torch.float64
    if grad_atol is None:
        grad_atol = 1e-12 if is_double else 1e-7
    values, grad_scores, defined = (x.cpu() for x in result)
    wanted_values, wanted_grad, wanted_defined = reference
    assert defined.dtype == torch.bool and defined.tolist() == wanted_defined.tolist()
    values = torch.where(defined, values.double(), 0.0)
    atol = rtol if is_double else 1e-6
    torch.testing.assert_close(values, wanted_values, rtol=rtol, atol=atol)
    grad_scores = grad_scores.double().reshape(-1)
    assert grad_scores.isfinite().all()
    ends = zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True)
    for (start, end), is_defined in zip(ends, defined.tolist(), strict=True):
        expected = wanted_grad[start:end]
        error = (grad_scores[start:end] - expected).norm()
        assert error <= grad_rtol * expected.norm() + grad_atol * is_defined, (
            error,
            expected.norm(),
        )
    error = (grad_scores - wanted_grad).norm()
    assert error <= grad_rtol * wanted_grad.norm() + grad_atol, error
    if batch.mask is not None:
        assert (grad_scores[~batch.mask.cpu()] == 0).all()
