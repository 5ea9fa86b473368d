"""Cases on which a twin must agree with the eager form of its loss in float64."""

import torch

from rankgrad import kernels, losses
from rankgrad.inputs import as_lists


def batch(kind, dtype=torch.float64, seed=0):
    """Scores, labels, mask, weights (None, unless the kind says) and offsets of slots."""
    generator = torch.Generator().manual_seed(seed)
    b, n = (3, 37)
    scores = torch.randn(b, n, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 5, (b, n), generator=generator).double()
    labels *= torch.rand(b, n, generator=generator) < 0.5
    mask = weights = None
    if kind == "ragged":
        lengths = torch.tensor([0, 1, 2, 3, 17, 1, 61])
        total = int(lengths.sum())
        scores = torch.randn(total, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 4, (total,), generator=generator).double()
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        return scores.to(dtype), labels.to(dtype), None, None, offsets
    if kind in ("padded", "weighted"):
        mask = torch.rand(b, n, generator=generator) < 0.7
        mask[1] = False
        mask[1, 5] = True
    if kind == "weighted":
        weights = torch.rand(b, n, generator=generator, dtype=torch.float64)
        weights = (weights * 4).round() / 2
    if kind == "tied":
        scores = (scores * 1.5).round()
    if kind == "constant":
        scores = torch.full_like(scores, 0.25)
    if kind == "extreme":
        scores = scores * 5000
    if kind == "apart":
        scores = scores.round() * 250
    if mask is not None:
        scores[~mask] = float("nan")
        labels[~mask] = float("nan")
        if weights is not None:
            weights[~mask] = float("nan")
    offsets = torch.arange(b + 1) * n
    some = [x if x is None else x.to(dtype).reshape(-1) for x in (scores, labels, weights)]
    return some[0], some[1], None if mask is None else mask.reshape(-1), some[2], offsets


KINDS = ("plain", "ragged", "padded", "weighted", "tied", "constant", "extreme", "apart")


def eager(spec, scores, labels, mask, weights, offsets):
    """Values, slopes and defined of a loss, list by list, by autograd in float64."""
    values, slopes, defined = [], torch.zeros_like(scores, dtype=torch.float64), []
    loss = losses.get(spec)
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        some = slice(first, last)
        here = torch.ones(last - first, dtype=torch.bool) if mask is None else mask[some]
        given = [x if x is None else x[some][here].double() for x in (scores, labels, weights)]
        own = given[0].clone().requires_grad_()
        lists = as_lists(own, given[1], weights=given[2])
        with kernels.using("eager"):
            value, real = loss.per_list(lists)
        real = real & (lists.lengths > 0)
        if bool(real) and value.requires_grad:
            (value * real).sum().backward()
            back = torch.zeros(last - first, dtype=torch.float64)
            back[here] = own.grad
            slopes[some] = back
        values.append(float(value.detach()) if bool(real) else 0.0)
        defined.append(bool(real))
    return torch.tensor(values, dtype=torch.float64), slopes, torch.tensor(defined)


def check(found, wanted, value=1e-5, slope=1e-4):
    """The twin's results against the eager ones: values relative, slopes by the norm of a list."""
    values, slopes, defined = (x.double() if x.is_floating_point() else x for x in found)
    torch.testing.assert_close(defined.cpu(), wanted[2])
    values = torch.where(wanted[2], values.cpu(), 0.0)
    torch.testing.assert_close(values, wanted[0], rtol=value, atol=value)
    slopes = slopes.cpu().reshape(-1)
    assert slopes.isfinite().all()
    off = (slopes - wanted[1]).norm()
    assert off <= slope * wanted[1].norm() + 1e-12, float(off / wanted[1].norm())
