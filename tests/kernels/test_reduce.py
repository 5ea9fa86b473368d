"""The fused mean and sum over lists, against the composed one."""

import pytest
import torch
from kernel_harness import BACKENDS, DEVICE, kernel_function

from rankgrad import kernels, losses
from rankgrad.inputs import as_lists
from rankgrad.losses._base import reduce


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lists", [1, 7, 1500])
def test_against_the_composed_one(backend, reduction, weighted, lists):
    generator = torch.Generator().manual_seed(lists)
    values = torch.randn(lists, generator=generator).to(DEVICE).requires_grad_()
    defined = (torch.rand(lists, generator=generator) < 0.7).to(DEVICE)
    weights = torch.rand(lists, generator=generator).to(DEVICE) if weighted else None
    batch = as_lists(torch.zeros(lists, 2).to(DEVICE), torch.zeros(lists, 2), weights=weights)
    wanted = reduce(values, defined, batch, reduction)
    wanted.backward()
    result, normalized_weights = kernel_function(backend, "reduce")(
        values.detach(), defined, weights, reduction == "mean"
    )
    torch.testing.assert_close(result, wanted.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(normalized_weights, values.grad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mean", [True, False])
def test_values_of_undefined_lists_are_not_read(backend, mean):
    values = torch.tensor([float("nan"), 2.0, float("inf")], device=DEVICE)
    defined = torch.tensor([False, True, False], device=DEVICE)
    result, normalized_weights = kernel_function(backend, "reduce")(values, defined, None, mean)
    assert result.item() == 2 and normalized_weights.tolist() == [0, 1, 0]
    weights = torch.tensor([float("inf"), 1.0, float("nan")], device=DEVICE)
    result, normalized_weights = kernel_function(backend, "reduce")(values, defined, weights, mean)
    assert result.item() == 2 and normalized_weights.tolist() == [0, 1, 0]
    result, normalized_weights = kernel_function(backend, "reduce")(
        values, torch.zeros_like(defined), None, mean
    )
    assert result.item() == 0 and normalized_weights.tolist() == [0, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_lists(backend):
    empty = torch.zeros(0, device=DEVICE)
    result, normalized_weights = kernel_function(backend, "reduce")(empty, empty.bool(), None, True)
    assert result.item() == 0 and normalized_weights.shape == (0,)


SPECS = [
    "approx_ndcg@3",
    "fastsort_ndcg",
    "lambdaloss",
    "ranknet",
    "listmle(ties=stable)",
    "listnet",
    "softmax",
    "softsort_ndcg",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_reduce_as_their_eager_forms(spec, weighted, reduction):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(4, 6, generator=generator).to(DEVICE)
    labels = torch.randint(0, 3, (4, 6), generator=generator).to(DEVICE)
    labels[2] = 0  # undefined for most
    weights = torch.tensor([1.0, 0.5, 2.0, 0.0], device=DEVICE) if weighted else None
    loss = losses.get(spec)
    loss.reduction = reduction
    results = []
    for mode in ("eager", "auto"):
        leaf = scores.clone().requires_grad_()
        with kernels.using(mode):
            value = loss(leaf, labels, weights=weights)
        (3 * value).sum().backward()
        results.append((value.detach(), leaf.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_without_a_defined_list_the_loss_is_0_and_attached():
    scores = torch.randn(2, 3, device=DEVICE, requires_grad=True)
    value = losses.get("approx_ndcg")(scores, torch.zeros(2, 3, device=DEVICE))
    value.backward()
    assert value.item() == 0 and scores.grad.eq(0).all()


def test_a_second_backward_gives_the_same():
    scores = torch.randn(2, 3, device=DEVICE, requires_grad=True)
    labels = torch.tensor([[0.0, 1, 2], [1, 0, 0]], device=DEVICE)
    value = losses.get("approx_ndcg")(scores, labels)
    (once,) = torch.autograd.grad(value, scores, retain_graph=True)
    (again,) = torch.autograd.grad(value, scores, torch.tensor(2.0, device=DEVICE))
    assert once.abs().sum() > 0 and again.equal(2 * once)


def test_several_gradients_at_once():
    scores = torch.randn(2, 3, device=DEVICE, requires_grad=True)
    labels = torch.tensor([[0.0, 1, 2], [1, 0, 0]], device=DEVICE)
    value = losses.get("approx_ndcg")(scores, labels)
    (one,) = torch.autograd.grad(value, scores, retain_graph=True)
    grads = torch.tensor([1.0, 2.0], device=DEVICE)
    (both,) = torch.autograd.grad(value, scores, grads, is_grads_batched=True)
    torch.testing.assert_close(both, torch.stack([one, 2 * one]))


def test_learned_list_weights_have_their_gradient():
    scores = torch.randn(2, 3, device=DEVICE)
    labels = torch.tensor([[0.0, 1, 2], [1, 0, 0]], device=DEVICE)
    weights = torch.ones(2, device=DEVICE, requires_grad=True)
    losses.get("approx_ndcg")(scores, labels, weights=weights).backward()
    assert weights.grad.abs().sum() > 0


def test_twice_is_said():
    scores = torch.randn(2, 3, device=DEVICE, requires_grad=True)
    labels = torch.tensor([[0.0, 1, 2], [1, 0, 0]], device=DEVICE)
    value = losses.get("approx_ndcg")(scores, labels)
    with pytest.raises(RuntimeError, match="once only"):
        torch.autograd.grad(value, scores, create_graph=True)
