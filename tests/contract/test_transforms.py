"""Every loss under transforms of ``torch.func``, batched gradients and ``torch.compile``."""

import pytest
import torch
from devices import DEVICE
from registry import is_random, loss_specs, make_loss

from rankgrad import losses, metrics, sorting
from rankgrad.losses import RelaxedMetric

every_loss = pytest.mark.parametrize("spec", loss_specs())


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 7, generator=generator)
    labels = torch.randint(0, 4, (3, 7), generator=generator).float()
    mask = torch.rand(3, 7, generator=generator) < 0.8
    return tuple(tensor.to(DEVICE) for tensor in (scores, labels, mask))


@every_loss
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_give_the_gradient(spec, batch):
    scores, labels, mask = batch
    loss = make_loss(spec)

    def gradient(some):
        leaf = some.clone().requires_grad_()
        return torch.autograd.grad(loss(leaf, labels, mask), leaf)[0]

    def value(some):
        return loss(some, labels, mask)

    alone = torch.func.grad(value)(scores[0])
    several = torch.func.vmap(torch.func.grad(value), randomness="different")(scores)
    assert several.isfinite().all()
    leaf = scores[0].clone().requires_grad_()
    factors = torch.tensor([1.0, 2.0], device=DEVICE)
    single, double = torch.autograd.grad(value(leaf), leaf, factors, is_grads_batched=True)[0]
    torch.testing.assert_close(double, 2 * single)
    if not is_random(spec):
        wanted = torch.stack([gradient(some) for some in scores])
        torch.testing.assert_close(alone, wanted[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(several, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("relaxation", ["approx", "lapsum", "neural", "smoothi", "softsort"])
def test_scores_that_are_no_numbers_stay_in_their_list(relaxation, batch):
    """A metric of one's own goes through the operators, where ``torch.func`` checks no values."""

    class Own(metrics.NDCG):
        def discount(self, ranks):
            return 1 / ranks

    scores, labels, mask = batch
    scores = scores[0].clone()
    scores[0, mask[0].nonzero()[0, 0]] = float("nan")
    loss = RelaxedMetric(Own(), relaxation, reduction="none")
    gradient = torch.func.grad(lambda some: loss(some, labels, mask)[1:].sum())(scores)
    assert gradient[1:].isfinite().all() and gradient[1:].abs().sum() > 0
    with pytest.raises(ValueError, match="finite"):
        Own().relaxed(sorting.get(relaxation), scores.nan_to_num(float("inf")), labels, mask)


@pytest.mark.parametrize("spec", ["approx_ap", "lambdaloss", "neural_ndcg", "softmax"])
def test_a_second_transform_is_refused(spec, batch):
    scores, labels, mask = batch
    loss = losses.get(spec)
    first = torch.func.grad(lambda some: loss(some, labels, mask))
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.func.grad(lambda some: first(some).square().sum())(scores[0])


@every_loss
def test_a_cutoff_has_a_gradient_where_all_scores_tie(spec):
    if "@" not in spec or is_random(spec):
        pytest.skip("no cutoff, or noise breaks the ties")
    loss = losses.get(spec.replace("@3", "@10"))
    labels = torch.zeros(1, 240)
    labels[0, torch.arange(0, 240, 60)] = torch.tensor([1.0, 2.0, 0.0, 3.0])
    tied = torch.zeros(1, 240, requires_grad=True)
    loss(tied, labels).backward()
    apart = torch.randn(1, 240, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss(apart, labels).backward()
    assert tied.grad.abs().max() > 1e-6 * apart.grad.abs().max() > 0
    assert tied.grad[0, labels[0] > 0].sum() < 0 < tied.grad[0, labels[0] == 0].sum()
