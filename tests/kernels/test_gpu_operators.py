"""Relaxed permutations as operators in Triton, and ap, rr, err and hits through them."""

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch, assert_matches

from rankgrad import kernels, sorting
from rankgrad.kernels.ops import backend_kernel
from rankgrad.losses.relaxed import RelaxedMetric

pytest.importorskip("triton")
from together import Together

from rankgrad.kernels.gpu import _permutation_rows, _register_resident, _sinkhorn, _smoothi

#: By name: the module, the operator's options, the relaxation, and the kernel's options.
OPERATORS = {
    "NeuralSortOperator": (
        _permutation_rows,
        (0.7,),
        "neuralsort(temperature=0.7)",
        ("through_rows", "neuralsort", 0.7),
    ),
    "SoftSortOperator": (
        _permutation_rows,
        (0.3,),
        "softsort(temperature=0.3)",
        ("through_rows", "softsort", 0.3),
    ),
    "SmoothIOperator": (
        _smoothi,
        (1.5, 0.1),
        "smoothi(alpha=1.5)",
        ("through_smoothi", 1.5, 0.1, "gain"),
    ),
    "SinkhornOperator": (
        _sinkhorn,
        (0.8, 2, 0.02, False),
        "sinkhorn(base=neuralsort(temperature=0.8), iterations=2, tolerance=0.02)",
        ("through_sinkhorn", 0.8, 2, 0.02, False),
    ),
    "SinkhornOperator, transposed": (
        _sinkhorn,
        (0.8, 2, 1e-6, True),
        "sinkhorn(base=neuralsort(temperature=0.8), iterations=2, transposed=true)",
        ("through_sinkhorn", 0.8, 2, 1e-6, True),
    ),
}
METRICS = {
    "ap": "threshold=2.0",
    "rr": "threshold=2.0",
    "err": "max_grade=2.0",
    "hits": "threshold=1.0",
}


def operator(name, batch, k):
    module, options = OPERATORS[name][:2]
    kind = getattr(module, name.split(",")[0])
    return kind(batch.scores, batch.mask, batch.offsets, batch.max_length, k, *options)


def relative(found, right):
    return float((found.cpu().double() - right).norm() / right.norm().clamp(min=1e-30))


@pytest.fixture(params=["short", "long"])
def way(request, monkeypatch):
    """Lists as they are, and as long ones are treated."""
    if request.param == "long":
        monkeypatch.setattr(_permutation_rows, "COUNTED", 0)
        monkeypatch.setattr(_permutation_rows, "_CHUNK", 16)
        monkeypatch.setattr(_smoothi, "_MAX_LENGTH", 0)
        monkeypatch.setattr(_smoothi, "_TILE", 16)
        monkeypatch.setattr(_register_resident, "RESIDENT", {})
        monkeypatch.setattr(_sinkhorn, "_ROWS", 8)
        monkeypatch.setattr(_sinkhorn, "_COLUMNS", 16)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("k", [0, 4])
def test_apply_and_adjoint(way, name, k):
    batch = FlatBatch.random(
        [3, 1, 0, 18 if OPERATORS[name][0] is _permutation_rows else 8], masked=k == 0, ties=k == 0
    )
    random = torch.Generator().manual_seed(1)
    several = torch.randn(2, len(batch.scores), generator=random)  # of no sign, and one after other
    grad = torch.randn(len(batch.scores), generator=random)
    if batch.mask is not None:
        several[:, ~batch.mask.cpu()] = float("nan")
    mine = operator(name, batch, k)
    relaxation = sorting.get(OPERATORS[name][2])
    arguments = [values.to(DEVICE) for values in several]
    sorted_values = [mine.apply(values) for values in arguments]
    for values, found, at_rank in zip(several, arguments, sorted_values, strict=True):
        grad_scores = mine.adjoint(found, grad.to(DEVICE))
        assert (grad_scores.isfinite()).all() and (at_rank.isfinite()).all()
        for (scores, _, _, items), start in zip(
            batch.lists(), batch.offsets.tolist(), strict=False
        ):
            if len(items) == 0:
                continue
            ranks = min(k or len(items), len(items))
            leaf = scores.requires_grad_()
            mask = torch.ones(1, len(items), dtype=torch.bool)
            right = relaxation.sort(values[items].double()[None, None], leaf[None], mask, ranks)
            assert relative(at_rank[start : start + ranks], right.detach().flatten()) < 2e-6
            (result,) = torch.autograd.grad(
                (right.flatten() * grad[start : start + ranks]).sum(), leaf
            )
            if len(items) > 1:
                assert relative(grad_scores[items.to(DEVICE)], result) < 5e-5
            else:
                assert (grad_scores[items.to(DEVICE)] == 0).all()
    if batch.mask is not None:
        assert (grad_scores[~batch.mask] == 0).all()


@pytest.mark.parametrize("name", OPERATORS)
def test_ranks_past_the_last_are_zero(name):
    batch = FlatBatch.random([9, 3])
    at_rank = operator(name, batch, 5).apply(torch.ones_like(batch.scores))
    assert (at_rank > 0.9).tolist() == [True] * 5 + [False] * 4 + [True] * 3
    assert (at_rank[5:9] == 0).all()


def test_expected_ranks_of_smoothi(way):
    batch = FlatBatch.random([4, 1, 0, 7], masked=True, ties=True)
    mine = _smoothi.SmoothIRanks(
        batch.scores, batch.mask, batch.offsets, batch.max_length, 1.5, 0.1
    )
    grad = torch.randn(len(batch.scores), generator=torch.Generator().manual_seed(1))
    grad_scores = mine.adjoint(grad.to(DEVICE))
    assert (mine.ranks[~batch.mask] == 0).all() and (grad_scores[~batch.mask] == 0).all()
    for scores, _, _, items in batch.lists():
        leaf = scores.requires_grad_()
        mask = torch.ones(1, len(items), dtype=torch.bool)
        if len(items):
            right = sorting.get("smoothi(alpha=1.5)").rank(leaf[None], mask)[0]
            (result,) = torch.autograd.grad((right * grad[items]).sum(), leaf)
            assert relative(mine.ranks[items.to(DEVICE)], right.detach()) < 2e-6
            assert relative(grad_scores[items.to(DEVICE)], result) < 5e-5 or len(items) == 1


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("metric", METRICS)
def test_metric_through_operator(name, metric):
    weighted = metric in ("ap", "err")
    batch = FlatBatch.random([7, 1, 0, 3], weighted=weighted, masked=metric == "err", seed=2)
    k = 0 if metric in ("ap", "err") else 4
    relaxation, (kernel, *options) = OPERATORS[name][2:]
    named = METRICS[metric]
    threshold = float(named.split("=")[1])
    found = backend_kernel(kernel, "gpu")(
        *batch.arguments, *options, metric, k, "exponential", threshold, 0.8
    )
    at = f"@{k}" if k else ""
    loss = RelaxedMetric(f"{metric}{at}({named})", relaxation)
    with kernels.using("eager"):
        wanted = batch.reference(loss)
    assert_matches(batch, found, wanted, rtol=5e-6)  # and gradients within 5e-5
    torch.testing.assert_close(found[0].cpu().double(), wanted[0], rtol=0, atol=2e-6)


@pytest.mark.skipif(DEVICE != "cpu", reason="done by as many programs on a GPU")
@pytest.mark.parametrize("form", ["resident", "banded"])
@pytest.mark.parametrize("transposed", [False, True])
def test_programs_that_share_a_list(form, transposed, monkeypatch):
    """The forward and the backward launch each count their own arrivals at barriers."""
    module = _register_resident if form == "resident" else _sinkhorn
    name = "_scale_resident" if form == "resident" else "_scale"
    monkeypatch.setattr(module, name, Together(getattr(module, name)))
    monkeypatch.setattr(module, "at_once", lambda scores: 4)
    shared = {32: (2, 4, 128)} if form == "resident" else {}
    monkeypatch.setattr(_register_resident, "RESIDENT", shared)
    monkeypatch.setattr(_sinkhorn, "_ROWS", 8)
    monkeypatch.setattr(_sinkhorn, "_COLUMNS", 16)
    batch = FlatBatch.random([19, 3], weighted=True)
    found = backend_kernel("through_sinkhorn", "gpu")(
        *batch.arguments, 1.0, 1, 1e-6, transposed, "ap", 0, "exponential", 3.0, 0.8
    )
    option = str(transposed).lower()
    loss = RelaxedMetric("ap(threshold=3.0)", f"sinkhorn(iterations=1, transposed={option})")
    with kernels.using("eager"):
        assert_matches(batch, found, batch.reference(loss))
