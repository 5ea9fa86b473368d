"""Lists for the tests of fused operations, and what the eager losses say on them in float64."""

import torch

from rankgrad import losses
from rankgrad.inputs import as_lists

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def slots(lengths, *, spread=1.0, levels=5, tied=False, weighted=False, padded=False, seed=0):
    """Random lists as slots: scores, labels, mask, weights, offsets, longest."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(lengths)
    if padded:
        width = int(lengths.max()) + 3
        mask = torch.rand(len(lengths), width, generator=generator).argsort(-1).argsort(-1)
        mask = (mask < lengths[:, None]).flatten()
        offsets = torch.arange(len(lengths) + 1) * width
        longest = width
    else:
        mask = None
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        longest = int(lengths.max())
    total = int(offsets[-1])
    scores = torch.randn(total, generator=generator) * spread
    if tied:
        scores = (scores / spread * 1.5).round() * spread
    labels = torch.randint(0, levels, (total,), generator=generator).float()
    weights = torch.rand(total, generator=generator) if weighted else None
    if mask is not None:  # what padding holds is never looked at
        scores[~mask], labels[~mask] = float("nan"), -7.0
        if weights is not None:
            weights[~mask] = float("nan")
    given = (scores, labels, mask, weights, offsets)
    return (*(None if x is None else x.to(DEVICE) for x in given), longest)


def eager(spec, scores, labels, mask, weights, offsets, longest):
    """Values, slopes and defined of a loss by its eager form, in float64."""
    lists = len(offsets) - 1
    rows = torch.zeros(lists, longest, dtype=torch.long)
    inside = torch.zeros(lists, longest, dtype=torch.bool)
    for at, (begin, end) in enumerate(
        zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ):
        rows[at, : end - begin] = torch.arange(begin, end)
        inside[at, : end - begin] = True
    real = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask

    def padded(flat):
        return torch.where(real, flat, 0).double().cpu()[rows] * inside

    if mask is not None:
        inside &= mask.cpu()[rows]
    leaf = padded(scores).requires_grad_()
    batch = as_lists(
        leaf, padded(labels), inside, weights=None if weights is None else padded(weights)
    )
    values, defined = losses.get(spec).per_list(batch)
    torch.where(defined, values, 0.0).sum().backward()
    slopes = torch.zeros(len(scores), dtype=torch.float64)
    slopes[rows[inside]] = leaf.grad[inside]
    return values.detach(), slopes, defined


def check(found, expected, values=1e-5, slopes=1e-4):
    """Values to 1e-5 and gradients to 1e-4, list by list where they are defined."""
    defined = expected[2]
    assert found[2].cpu().equal(defined)
    torch.testing.assert_close(
        found[0].double().cpu()[defined], expected[0][defined], rtol=values, atol=values
    )
    assert bool(found[1].isfinite().all())
    error = (found[1].double().cpu() - expected[1]).norm()
    assert error <= slopes * expected[1].norm(), (error / expected[1].norm()).item()
