"""Attention to similar items of a list, and TabM networks with it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rankgrad import losses, models
from rankgrad.models import _similar_items
from rankgrad.models._similar_items import SimilarItems
from rankgrad.models.tabm import TabMNet

SPEC = "tabm(hidden=[8], members=2, heads=2)"
SCALED = "tabm(hidden=[8], members=2, in_list=[rank], heads=2, periodic=2, scale_rate=6.0)"


def build(spec: str = SPEC, n_features: int = 5) -> TabMNet:
    torch.manual_seed(0)
    net = models.get(spec).build(n_features)
    assert isinstance(net, TabMNet)
    return net


def by_formula(layer: SimilarItems, items: Tensor) -> Tensor:
    """The formula of the docstring for one list ``[n, w]``, item by item."""
    linear, _, norm = layer.hidden
    outputs = []
    for i in range(len(items)):
        differences, similarities = [], []
        for head, alpha in enumerate(layer.log_sharpness.exp().flatten()):
            queries, values = [], []
            for item in items if layer.scale_in is None else items * layer.rate * layer.scale_in:
                z = (linear.weight @ item + linear.bias).clamp(min=0)
                z = (z - z.mean()) / (z.var(correction=0) + norm.eps).sqrt()
                z = z * norm.weight + norm.bias
                of_head = slice(24 * head, 24 * head + 24)
                query = (layer.query.weight @ z + layer.query.bias)[of_head]
                queries.append(query / query.square().sum().sqrt())
                values.append((layer.value.weight @ z + layer.value.bias)[of_head])
            s = [
                queries[i] @ query if j != i else -torch.ones(()) for j, query in enumerate(queries)
            ]
            p = [(alpha * s_j).exp() for s_j in s]
            weighted = sum(p_j / sum(p) * value for p_j, value in zip(p, values, strict=True))
            differences.append(weighted - values[i])
            similarities.append(max(s))
        outputs.append(torch.cat([*differences, torch.stack(similarities).to(items.dtype)]))
    return torch.stack(outputs)


@pytest.mark.parametrize("rate", [1.0, 4.0])
def test_the_formula(rate: float) -> None:
    torch.manual_seed(0)
    layer = SimilarItems(n_inputs=5, heads=3, rate=rate).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    items, mask = torch.randn(2, 6, 5).double(), torch.ones(2, 6, dtype=torch.bool)
    mask[0, [1, 4]] = False
    mask[1, 1:] = False  # a list of one item
    found = layer(items.masked_fill(~mask[..., None], math.nan), mask)
    for row, real, values in zip(items, mask, found, strict=True):
        torch.testing.assert_close(values[real], by_formula(layer, row[real]))
    assert (found[1, 0, :-3] == 0).all() and (found[1, 0, -3:] == -1).all()
    padded = layer._attend_padded(items, mask)  # as on a GPU
    torch.testing.assert_close(padded[mask], found[mask])
    leaves = tuple(layer.parameters())
    assert torch.autograd.gradcheck(lambda *_: layer(items, mask)[mask], leaves, fast_mode=True)


@pytest.mark.parametrize("padding", [math.nan, math.inf, -math.inf, 1e30])
def test_padding_counts_for_nothing(padding: float) -> None:
    net, items = build().double(), torch.randn(3, 4, 5).double()
    expected = net(items)
    for width in (5, 60):
        padded = torch.full((3, width, 5), padding).double()
        mask = torch.arange(width) >= width - 4
        padded[:, mask] = items
        scores = net(padded, mask.expand(3, width))
        torch.testing.assert_close(scores[..., mask], expected)
        net.zero_grad()
        scores.sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in net.parameters())


def test_copies_of_an_item_are_tied() -> None:
    spec = "tabm(hidden=[8], members=2, share=nothing, in_list=[rank, ties], heads=2)"
    net = build(spec).eval()
    for n in range(8, 60, 7):
        items = torch.randn(2, n, 5)
        items[:, [n // 2, n - 1]] = items[:, :1]
        with torch.inference_mode():
            scores = net(items, torch.ones(2, n, dtype=torch.bool))
        assert torch.equal(scores[:, [n // 2, n - 1]], scores[:, [0, 0]])


@pytest.mark.parametrize("n_similarities", [1, 2 * 9 * 4])  # of one item, or of four of nine
def test_long_lists_are_predicted_in_parts(
    n_similarities: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, items = build().eval(), torch.randn(3, 9, 5)
    expected = net(items)
    monkeypatch.setattr(_similar_items, "_MAX_SIMILARITIES", n_similarities)
    with torch.no_grad():
        torch.testing.assert_close(net(items), expected)
        assert net.attention is not None
        _, query, value = net.attention._project(items[0])
        n_rows = [len(rows) for rows in net.attention._attend_list(query, value)]
    assert n_rows == ([1] * 9 if n_similarities == 1 else [4, 4, 1])


def test_with_a_scale_rate_the_network_starts_without_attention() -> None:
    net, items = build(SCALED), torch.randn(3, 4, 5)
    attention, first = net.attention, net.layers[0]
    assert attention is not None and attention.scale_in is not None
    assert (attention.rate * attention.scale_in == 1).all()
    outputs = slice(10, 10 + attention.width)  # after 5 features and their ranks
    scales = first.input_scales.detach()
    assert (scales[..., outputs] == 0).all()
    assert (scales[..., :10].abs() == 1).all() and (scales[..., outputs.stop :].abs() == 1).all()
    scores = net(items)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    torch.testing.assert_close(net(items), scores)
    net(items).square().sum().backward()
    assert (first.scale_in.grad[..., outputs] != 0).any()
    others = {name for name, _ in build(SCALED.replace("6.0", "1.0")).named_parameters()}
    assert {name for name, _ in net.named_parameters()} == others | {"attention.scale_in"}


def test_scaled_attention_is_equivariant_and_loads_from_its_state() -> None:
    net, again, items = (
        build(SCALED).double().eval(),
        build(SCALED).double().eval(),
        torch.randn(3, 7, 5),
    )
    items, scores = items.double(), net(items.double())
    for parameter in (*net.attention.parameters(), net.layers[0].scale_in):
        torch.nn.init.normal_(parameter)
    assert not torch.allclose(net(items), scores)
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(items), net(items))
    order = torch.randperm(7)
    torch.testing.assert_close(net(items[:, order]), net(items)[:, order])


def test_lists_in_any_number_of_dimensions() -> None:
    net, items = build().eval(), torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(net(items).flatten(0, 1), net(items.flatten(0, 1)))
    mask = torch.rand(2, 3, 4) < 0.5
    flat = net(items.flatten(0, 1), mask.flatten(0, 1))
    torch.testing.assert_close(net(items, mask).flatten(0, 1), flat)


def test_a_network_without_heads_has_no_attention() -> None:
    plain, attentive = build("tabm(hidden=[8], members=2)"), build()
    assert plain.inputs_score_alone and plain.per_item
    assert not (attentive.inputs_score_alone or attentive.per_item)
    assert not any("attention" in name for name in plain.state_dict())


@pytest.mark.parametrize("heads", [0, 1])
def test_attention_learns_what_a_copy_elsewhere_in_the_list_says(heads: int) -> None:
    """Two items agree in three features; the sign of the fourth is the label of the other one."""
    net = build(f"tabm(hidden=[16], members=2, in_list=[rank, ties], heads={heads})", 4)
    loss, optimizer = losses.get("bce"), torch.optim.Adam(net.parameters(), 0.02)
    values = []
    for _ in range(100):  # of new lists each time, which cannot be memorized
        same, sign = torch.randn(32, 5, 3).repeat(1, 2, 1), torch.randn(32, 10, 1)
        labels = (sign.roll(5, 1) > 0).float().squeeze(-1)
        value = sum(loss(scores, labels) for scores in net(torch.cat([same, sign], -1))) / 2
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    if heads:
        assert max(values[-10:]) < 0.2
    else:
        assert min(values[-10:]) > 0.6  # that of constant scores is log 2, 0.69
