"""TabM: members that are trained apart and averaged, and its dropout."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankgrad import models
from rankgrad.models import _dropout, _perceptrons
from rankgrad.models._dropout import FastDropout, _Drop, draw_from
from rankgrad.models._encoding import PeriodicEncoding
from rankgrad.models._perceptrons import Perceptrons
from rankgrad.models.tabm import TabMNet, _MemberLinear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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


@pytest.mark.parametrize(
    ("option", "of_option"),
    [
        ("scale_rate", lambda net: [net.layers[0].input_scales]),
        ("encoding_rate", lambda net: net.encoding.coefficients),
    ],
)
def test_a_higher_rate_moves_only_its_own_parameters_farther(
    option: str, of_option: Callable[[TabMNet], Sequence[Tensor]]
) -> None:
    def after_a_step(rate: float) -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(0)
        spec = f"tabm(hidden=[8, 4], members=3, periodic=2, {option}={rate})"
        net = models.get(spec).build(5).double()
        before, scores = [value.detach().clone() for value in of_option(net)], net(items())
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-30)
        scores.square().sum().backward()
        optimizer.step()
        moved = [after - value for after, value in zip(of_option(net), before, strict=True)]
        others = {"scale_rate": "encoding", "encoding_rate": "layers"}[option]
        same = [value for name, value in net.named_parameters() if name.startswith(others)]
        return moved, [*same, net.layers[-1].weight, scores]

    moved, others = after_a_step(1.0)
    moved_farther, same = after_a_step(6.0)
    torch.testing.assert_close(moved_farther, [6 * value for value in moved])
    torch.testing.assert_close(same, others)


def test_a_periodic_encoding_is_its_formula() -> None:
    torch.manual_seed(0)
    encoding, features = PeriodicEncoding(n_features=5, size=3).double(), items()
    frequency, weight, bias = (value.detach().numpy() for value in encoding.parameters())
    for feature in range(5):
        angles = 2 * np.pi * features[:, feature, None].numpy() * frequency[feature]
        waves = np.concatenate([np.sin(angles), np.cos(angles)], -1)
        expected = np.maximum(waves @ weight[feature] + bias[feature], 0)
        outputs = encoding(features)[:, 3 * feature : 3 * feature + 3]
        np.testing.assert_allclose(outputs.detach().numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1, 64, 100])
def test_the_cpu_kernel_of_a_periodic_encoding_equals_its_eager_form(n: int) -> None:
    torch.manual_seed(0)
    exact = PeriodicEncoding(n_features=5, size=3, rate=4.0).double()
    exact.frequency.data.mul_(20)  # several turns
    kernel = copy.deepcopy(exact).float()
    features, weights = items(n).float(), torch.randn(n, 15)
    for encoding, dtype in ((exact, torch.float64), (kernel, torch.float32)):
        (encoding(features.to(dtype)) * weights).sum().backward()
    torch.testing.assert_close(
        kernel(features).double(), exact(features.double()), rtol=0, atol=5e-6
    )
    for own, other in zip(kernel.parameters(), exact.parameters(), strict=True):
        assert own.grad is not None
        assert other.grad is not None
        error = (own.grad - other.grad).norm() / other.grad.norm()
        assert error < 5e-6
    features[0, 1] = float("nan")
    is_nan = kernel(features).isnan().view(n, 5, 3)
    assert is_nan[0, 1].all()
    assert is_nan.sum() == 3


def test_a_periodic_encoding_in_float64_is_not_rounded_by_features_in_float32() -> None:
    encoding, features = PeriodicEncoding(n_features=5, size=3).double(), items().float()
    torch.testing.assert_close(encoding(features), encoding(features.double()))


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


@pytest.mark.parametrize("rate", [1.0, 0.999999])  # the second rounds to 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_of_all_values_gives_zeros(rate: float, dtype: torch.dtype) -> None:
    values = torch.ones(40, dtype=dtype, requires_grad=True)
    dropped = FastDropout(rate)(values)
    (gradient,) = torch.autograd.grad(dropped.sum(), values)
    assert not dropped.any() and not gradient.any()


def test_a_rate_that_rounds_to_one_gives_constant_scores() -> None:
    net = models.get("tabm(hidden=[8], members=2, dropout=0.999999)").build(5).train()
    scores = net(items().float())
    assert torch.equal(scores, net.layers[-1].bias.squeeze(-1).expand_as(scores))


def test_positions_wrap_in_32_bits_as_on_a_gpu() -> None:
    seed = (5 << 32) | (2**32 - 40)
    x = np.arange(100, dtype=np.uint32) + np.uint32(seed & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D) ^ np.uint32(seed >> 32)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    kept = _dropout._drop(torch.ones(2, 5, 10), seed, 2**15) > 0
    assert kept.flatten().tolist() == ((x >> np.uint32(16)) >= 2**15).tolist()
    hidden, scores = torch.empty(2, 5, 10).numpy(), torch.empty(2, 5, 1).numpy()
    items, weight = torch.ones(2, 5, 10).numpy(), torch.ones(2, 10, 1).numpy()
    numbers = np.uint64(seed), np.uint32(2**15), np.float32(2)
    _perceptrons._compiled(_perceptrons._forward)(items, weight, *numbers, hidden, scores)
    assert ((hidden > 0) == kept.numpy()).all()


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


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [nn.Identity(), nn.ReLU(), nn.SiLU(), nn.GELU()])
def test_gpus_drop_the_same_values_of_an_activation(
    activation: nn.Module, dtype: torch.dtype
) -> None:
    from rankgrad.models._gpu_dropout import KINDS, ActivationDropout

    torch.manual_seed(0)
    seed, dropped = 2**40 + 7, round(0.3 * 2**16)
    values, grad = torch.randn(70, 3, 33).to(dtype), torch.randn(3, 70, 33).to(dtype)
    values[0, 0, 0] = 0
    found, expected = [], []
    for device, results in ((DEVICE, found), ("cpu", expected)):
        leaf = values.to(device).requires_grad_()
        items = leaf.transpose(0, 1)  # the members of an item lie side by side
        if results is found:
            number, kind = torch.tensor(seed, device=device), KINDS[type(activation)]
            results.append(ActivationDropout.apply(items, number, dropped, kind))
        else:
            results.append(_Drop.apply(activation(items.float()), seed, dropped).to(dtype))
        results.append(torch.autograd.grad(results[0], leaf, grad.to(device))[0])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)
        assert torch.equal(one.cpu() == 0, other == 0)
    assert not ActivationDropout.apply(items.to(DEVICE), number, 2**16, kind).any()
    empty = values[:0].transpose(0, 1).to(DEVICE)
    assert ActivationDropout.apply(empty, number, dropped, kind).shape == (3, 0, 33)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_networks_are_the_same_on_a_gpu(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastDropout, "draw", lambda _, device: torch.tensor(7, device=device))
    spec = f"tabm(hidden=[40, 24], members=16, activation=silu, dropout={dropout})"
    net, features, gradients = models.get(spec).build(5), items(50).float(), []
    for device in ("cpu", "cuda"):
        net.to(device).zero_grad()
        net(features.to(device)).square().sum().backward()
        gradients.append([each.grad.cpu().clone() for each in net.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


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
    parts = features[:, :2].clone(), features[:, 2:].clone().requires_grad_()
    leaves = (parts[1], *net.layers.parameters())
    found = []
    for forward in (
        lambda: net.layers(*parts),
        lambda: super(Perceptrons, net.layers).forward(torch.cat(parts, -1).expand(3, 50, 5)),
    ):
        draw_from(net, torch.Generator().manual_seed(0))
        scores = forward()
        gradients = torch.autograd.grad((scores**2 * torch.arange(50)[:, None]).sum(), leaves)
        found.append((scores, *gradients))
    assert "ReLUDropoutDot" in str(found[0][0].grad_fn)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        net.layers[-1].weight[1] = torch.nan
        parts[0][3] = torch.nan  # in the hidden values; those that are kept
    lost = net.layers(*parts).isnan()
    assert lost[1].all() and lost[:, 3].all() and lost.sum() == 52


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("share", SHARED_PARTS)
def test_mixed_precision_goes_through_the_layers(share: str, dropout: float) -> None:
    spec = f"tabm(hidden=[8], members=2, share={share}, dropout={dropout})"
    net = models.get(spec).build(5).train()
    with torch.autocast("cpu", torch.bfloat16):
        scores = net(items().float())
    scores.float().square().sum().backward()
    assert scores.isfinite().all()
    assert all(each.grad.isfinite().all() for each in net.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dropout_keeps_the_type(dtype: torch.dtype) -> None:
    dropped = FastDropout(0.3)(torch.ones(1000, dtype=dtype))
    assert dropped.dtype == dtype
    factor = torch.tensor(2**16 / (2**16 - round(0.3 * 2**16)), dtype=dtype)
    assert dropped.unique().tolist() == [0, factor.item()]
    net = models.get("tabm(hidden=[8], members=2, dropout=0.3, input_dropout=0.2)").build(5)
    assert net.to(dtype)(items().to(dtype)).dtype == dtype
