"""Lists laid out as the fused operations take them, and the eager answer to hold them against."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from rankgrad.inputs import as_lists
from rankgrad.losses import Loss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROOMS = ["cpu", "gpu"] if DEVICE == "cpu" else ["gpu"]  # of twins that run here


def twin(room: str, name: str) -> Any:
    """The twin in a room, of an operation that its module is named after."""
    if room == "gpu":
        pytest.importorskip("triton")
    return getattr(importlib.import_module(f"rankgrad.kernels.{room}.{name}"), name)


def _interpret_faster() -> None:
    """The interpreter exchanges Triton's language at every call of a kernel function, and back
    after the outermost; once and for all is enough.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    exchange, exchanged = interpreter._patch_lang, set()

    def once(function):
        known = [each for each in function.__globals__.values() if isinstance(each, ModuleType)]
        languages = [each for each in (tl, tl.core) if each in known]
        if not exchanged.issuperset(languages):
            exchange(function)
            exchanged.update(languages)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = once


if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    _interpret_faster()


@dataclass
class Slots:
    """A batch as slots; what padding holds is NaN."""

    scores: Tensor
    labels: Tensor
    mask: Tensor | None
    weights: Tensor | None
    offsets: Tensor
    longest: int

    @classmethod
    def drawn(
        cls,
        lengths: list[int],
        *,
        masked: bool = False,
        weighted: bool = False,
        ties: bool = False,
        spread: float = 1.0,
        grades: int = 4,
        seed: int = 0,
    ) -> Slots:
        """Random lists: flat, or with a mask among as many slots again."""
        random = torch.Generator().manual_seed(seed)
        width = [2 * n + 1 if masked else n for n in lengths]
        slots = sum(width)
        scores = torch.randn(slots, generator=random) * spread
        if ties:
            scores = scores.mul(2).round() / 2
        labels = torch.randint(0, grades + 1, (slots,), generator=random).float()
        weights = torch.randint(1, 4, (slots,), generator=random) / 2 if weighted else None
        mask = None
        if masked:
            mask = torch.zeros(slots, dtype=torch.bool)
            start = 0
            for n, wide in zip(lengths, width, strict=True):
                mask[start + torch.randperm(wide, generator=random)[:n]] = True
                start += wide
            for tensor in (scores, labels, weights):
                if tensor is not None:
                    tensor[~mask] = float("nan")
        offsets = torch.tensor([0, *width]).cumsum(0)
        given = [None if t is None else t.to(DEVICE) for t in (scores, labels, mask, weights)]
        return cls(*given, offsets.to(DEVICE), max(width, default=0))

    @property
    def given(self) -> tuple:
        """The first arguments of every operation of a loss."""
        return self.scores, self.labels, self.mask, self.weights, self.offsets, self.longest

    def lists(self) -> list[tuple[Tensor, Tensor, Tensor | None, Tensor]]:
        """Scores, labels, weights and slots of the real items of each list, in float64."""
        found = []
        for start, end in zip(self.offsets.tolist(), self.offsets.tolist()[1:], strict=False):
            at = torch.arange(start, end)
            if self.mask is not None:
                at = at[self.mask[start:end].cpu()]
            scores, labels = self.scores.cpu()[at].double(), self.labels.cpu()[at].double()
            weights = None if self.weights is None else self.weights.cpu()[at].double()
            found.append((scores, labels, weights, at))
        return found

    def eager(self, loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        """Values, slopes and where it is defined, list by list in float64."""
        values, defined = [], []
        slopes = torch.zeros(len(self.scores), dtype=torch.float64)
        for scores, labels, weights, at in self.lists():
            if len(at) == 0:
                values.append(0.0)
                defined.append(False)
                continue
            scores.requires_grad_()
            lists = as_lists(scores, labels, weights=weights)
            assert lists.scores.requires_grad
            value, there = loss.per_list(lists)
            defined.append(bool(there))
            values.append(float(value.detach()) if there else 0.0)
            if there and value.requires_grad:
                slopes[at] = torch.autograd.grad(value.sum(), scores)[0]
        return torch.tensor(values).double(), slopes, torch.tensor(defined)


def check(
    slots: Slots,
    found: tuple[Tensor, Tensor, Tensor],
    wanted: tuple[Tensor, Tensor, Tensor],
    rtol: float = 1e-5,
) -> None:
    """Values within 1e-5 and slopes within 1e-4, list by list; nothing on padding."""
    values, slopes, defined = (t.cpu() for t in found)
    values_, slopes_, defined_ = wanted
    assert defined.dtype == torch.bool and defined.tolist() == defined_.tolist()
    values = torch.where(defined, values.double(), 0.0)
    torch.testing.assert_close(values, values_, rtol=rtol, atol=1e-6)
    for (start, end), there in zip(
        torch.stack([slots.offsets[:-1], slots.offsets[1:]], -1).tolist(), defined, strict=True
    ):
        ours, right = slopes[start:end].double(), slopes_[start:end]
        assert ours.isfinite().all()
        error = (ours - right).norm()
        assert error <= 10 * rtol * right.norm() + 1e-7 * bool(there), (error, right.norm())
    if slots.mask is not None:
        assert (slopes[~slots.mask.cpu()] == 0).all()
