"""TabM: members that are trained apart and averaged, and its dropout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rankgrad import models
from rankgrad.models._dropout import FastDropout, draw_from
from rankgrad.models._perceptrons import Perceptrons
from rankgrad.models.tabm import TabMNet, _MemberLinear

SHARED_PARTS = ["adapters", "nothing"]


def build(share: str, members: int = 3) -> TabMNet:
    torch.manual_seed(0)
    net = models.get(f"tabm(hidden=[8, 4], members={members}, share={share})").build(5)
    assert isinstance(net, TabMNet)
    return net.double()


def items(n: int = 6) -> torch.Tensor:
    return torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("share", SHARED_PARTS)
def test_training_gives_each_members_scores_and_evaluation_their_mean(share: str) -> None:
    net, features = build(share), items()
    each = net.train()(features)
    assert each.shape == (3, 6)
    assert not torch.allclose(each[0], each[1])
    torch.testing.assert_close(net.eval()(features), each.mean(0))
    mask = torch.tensor([[True, False, True], [True, True, True]])
    padded = net.train()(features.reshape(2, 3, 5), mask)
    torch.testing.assert_close(padded[:, mask], each.reshape(3, 2, 3)[:, mask])
    assert (padded[:, ~mask] == 0).all()


@pytest.mark.parametrize("share", SHARED_PARTS)
def test_a_member_is_a_perceptron(share: str) -> None:
    net, hidden = build(share).train(), items()
    linear = [layer for layer in net.layers if not isinstance(layer, nn.ReLU)]
    for layer in linear[:-1]:
        state = {name: value.detach() for name, value in layer.named_parameters()}
        weight = state["weight"][1] if state["weight"].dim() == 3 else state["weight"].T
        if share == "adapters":
            weight = state["scale_in"][1].T * weight * state["scale_out"][1]
        hidden = (hidden @ weight + state["bias"][1]).relu()
    scores = hidden @ linear[-1].weight[1] + linear[-1].bias[1]
    torch.testing.assert_close(net(items())[1], scores.squeeze(-1))


def test_a_members_own_weights_are_moved_by_its_own_loss_alone() -> None:
    net = build("nothing").train()
    net(items())[1].square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        assert (parameter.grad[[0, 2]] == 0).all(), name
        assert (parameter.grad[1] != 0).any(), name


def test_adapters_share_their_weights_and_start_as_signs() -> None:
    net = build("adapters", members=16)
    first, _, second, *_ = net.layers
    assert first.weight.shape == (8, 5)
    assert set(first.scale_in.flatten().tolist()) == {-1.0, 1.0}
    assert (second.scale_in == 1).all()
    assert (first.scale_out == 1).all()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(rate: float) -> None:
    torch.manual_seed(0)
    dropout = FastDropout(rate)
    values = dropout(torch.ones(3, 50_001))
    assert (values == 0).double().mean().item() == pytest.approx(rate, abs=0.005)
    assert values.mean().item() == pytest.approx(1, abs=0.03)
    assert values.unique().tolist() == pytest.approx([0, 1 / (1 - rate)], rel=1e-4)
    assert dropout(torch.ones(2, 0)).shape == (2, 0)
    assert torch.equal(dropout.eval()(torch.ones(7)), torch.ones(7))


def test_dropout_drops_the_same_gradients_and_is_drawn_anew() -> None:
    dropout = FastDropout(0.3)
    values = torch.rand(64, 999, requires_grad=True)
    drawn = []
    for seed in (0, 0, 1):
        dropout.generator = torch.Generator().manual_seed(seed)
        drawn += [dropout(values), dropout(values)]
        (gradient,) = torch.autograd.grad(drawn[-1].sum(), values)
        assert torch.equal(gradient * values, drawn[-1])
    assert torch.equal(drawn[0], drawn[2]) and torch.equal(drawn[1], drawn[3])
    kept = torch.stack([(each > 0).double().flatten() for each in (*drawn[:2], *drawn[4:])])
    assert (torch.corrcoef(kept) - torch.eye(4)).abs().max() < 0.02
    neighbors = torch.corrcoef(torch.stack([kept[0, :-1], kept[0, 1:]]))[0, 1]
    assert neighbors.abs() < 0.02


def test_output_layers_are_products_with_vectors() -> None:
    layer, items = _MemberLinear(3, 5, 1).double(), torch.randn(3, 7, 5).double().requires_grad_()
    found, expected = layer(items), torch.baddbmm(layer.bias, items, layer.weight)
    torch.testing.assert_close(found, expected)
    leaves = (items, layer.weight, layer.bias)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), leaves),
        torch.autograd.grad(expected.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("share", SHARED_PARTS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_does_relu_dropout_and_output_at_once_as_the_layers_do(
    share: str, dropout: float
) -> None:
    spec = f"tabm(hidden=[8, 17], members=3, share={share}, dropout={dropout})"
    net, features = models.get(spec).build(5).train(), items(50).float()
    expanded = features.expand(3, 50, 5).clone().requires_grad_()
    leaves = (expanded, *net.layers.parameters())
    found = []
    for forward in (net.layers.forward, super(Perceptrons, net.layers).forward):
        draw_from(net, torch.Generator().manual_seed(0))
        scores = forward(expanded)
        gradients = torch.autograd.grad((scores**2 * torch.arange(50)[:, None]).sum(), leaves)
        found.append((scores, *gradients))
    assert "ReLUDropoutDot" in str(found[0][0].grad_fn)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        net.layers[-1].weight[1] = torch.nan
        expanded[0, 3] = torch.nan  # in the hidden values; those that are kept
    lost = net.layers(expanded).isnan()
    assert lost[1].all() and lost[0, 3] and not lost[2].any() and lost.sum() == 51


def test_mixed_precision_goes_through_the_layers() -> None:
    net = models.get("tabm(hidden=[8], members=2, dropout=0.3)").build(5).train()
    with torch.autocast("cpu", torch.bfloat16):
        assert net(items().float()).isfinite().all()
