import numpy as np
import pytest
import torch
from torch import nn

from rankgrad.data import Dataset
from rankgrad.models import models
from rankgrad.training import Settings, fit
from rankgrad.training._optimizers import FusedAdam, learning_rates, optimizers
from rankgrad.training._processes import SingleProcess


@pytest.mark.parametrize("name", optimizers.names())
def test_each_optimizer_brings_a_loss_down(name):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    features = torch.randn(32, 3)
    optimizer = optimizers.get(name).build(network, 0.05, 0.001)
    before = after = network(features).square().mean()
    for _ in range(20):
        optimizer.zero_grad()
        after = network(features).square().mean()
        after.backward()
        optimizer.step()
    assert after < before
    assert str(optimizers.get(str(optimizers.get(name)))) == name


@pytest.mark.parametrize("name", ["adam", "adamw(beta1=0.8)"])
def test_the_kernel_alone_makes_the_steps_of_the_optimizer(name):
    """The same bits, also where a parameter has no gradient at some step."""
    found = []
    for wrap in (lambda optimizer: optimizer, FusedAdam):
        torch.manual_seed(0)
        network = nn.Linear(3, 4)
        optimizer = optimizers.get(name).build(network, 0.05, 0.1)
        steps = wrap(optimizer)
        for step in range(4):
            network(torch.randn(8, 3)).square().mean().backward()
            if step == 2:
                network.bias.grad = None
            optimizer.param_groups[0]["lr"] *= 0.5
            steps.step()
            steps.zero_grad()
            assert all(each.grad is None for each in network.parameters())
        state = [optimizer.state[each] for each in network.parameters()]
        found.append([*network.parameters(), *(each[key] for each in state for key in each)])
    assert len(found[0]) == 8
    assert all(map(torch.equal, *found))


def test_the_steps_of_a_subclass_of_adam_are_its_own():
    class Halved(torch.optim.AdamW):
        pass

    network = nn.Linear(3, 4)
    for kind, expected in ((torch.optim.AdamW, FusedAdam), (Halved, Halved)):
        _, optimizer = SingleProcess().setup(network, kind(network.parameters()))
        assert type(optimizer) is expected


PENALIZED = "tabm(hidden=[4], members=2, in_list=[rank], heads=1, periodic=2, scale_rate=6.0)"


def test_the_l1_penalty_moves_scales_of_inputs_to_zero_and_nothing_else():
    """By learning rate times l1, whatever the gradient; here it is 0. The kernel does the same."""
    for wrap in (lambda optimizer: optimizer, FusedAdam):
        network = models.get(PENALIZED).build(n_features=5)
        names = {p: name for name, p in network.named_parameters()}
        before = {name: p.detach().clone() for p, name in names.items()}
        optimizer = optimizers.get("adamw(l1=0.3)").build(network, 0.1, 0.0)
        numbered = [p for group in optimizer.param_groups for p in group["params"]]
        assert numbered == sorted(network.parameters(), key=lambda p: p.dim() <= 1)
        steps = wrap(optimizer)
        for step in (1, 2, 3, 4, 5, 6):  # as parameters, scales start at 1 / 6 or at 0
            for parameter in network.parameters():
                parameter.grad = torch.zeros_like(parameter)
            steps.step()
            moved = 0.03 * step
            for parameter, name in names.items():
                is_scale = name in ("layers.0.scale_in", "attention.scale_in")
                size = (before[name].abs() - moved * is_scale).clamp(min=0.0)
                torch.testing.assert_close(parameter.detach(), before[name].sign() * size)
        assert network.attention.scale_in.count_nonzero() == 0


def test_a_network_with_an_l1_penalty_ignores_features_that_do_not_help():
    random = np.random.default_rng(0)
    features = random.normal(size=(2000, 12)).astype(np.float32)
    labels = (features[:, 3] + 0.3 * random.normal(size=2000) > 0.8).astype(np.float32)
    data = Dataset(features, labels, np.arange(0, 2001, 20), np.arange(100).astype(str))
    model = "tabm(hidden=[8], members=1, scale_rate=6.0)"
    chosen = {"optimizer": "adamw(l1=1.0)", "learning_rate": 0.01, "batch_size": 10, "epochs": 20}
    ranker = fit(Settings(model=model, schedule="cosine", patience=None, **chosen), data).model
    scales = ranker.network.layers[0].input_scales.flatten().abs()
    assert scales.argmax() == 3 and (scales == 0).sum() >= 8


def test_l1_needs_scales_of_inputs():
    with pytest.raises(ValueError, match="this network has none"):
        optimizers.get("adamw(l1=0.1)").build(models.get("small").build(3), 0.1, 0.0)
    with pytest.raises(ValueError, match="l1 must be a number of at least 0"):
        optimizers.get("adamw(l1=-0.1)")


def test_biases_do_not_decay():
    groups = optimizers.get("adamw").build(nn.Linear(3, 2), 0.1, 0.5).param_groups
    assert [(g["params"][0].dim(), g["weight_decay"]) for g in groups] == [(2, 0.5), (1, 0.0)]


def test_weights_and_scales_of_inputs_decay_and_nothing_else_does():
    """Biases of members have three axes. At 0 a frequency is lost, and attention is not sharp."""
    model = "tabm(hidden=[4, 3], members=2, in_list=[rank], heads=1, periodic=2, scale_rate=6.0)"
    network = models.get(model).build(n_features=5)
    groups = optimizers.get("adamw").build(network, 0.1, 0.5).param_groups
    names = {p: name for name, p in network.named_parameters()}
    decayed = {names[p] for group in groups for p in group["params"] if group["weight_decay"]}
    weights = {f"layers.{number}.weight" for number in (0, 2, 4)}
    scales = {"layers.0.scale_in", "layers.2.scale_in"}
    assert decayed == {*weights, *scales, "attention.value.weight"}
    numbered = [p for group in groups for p in group["params"]]
    assert numbered == sorted(network.parameters(), key=lambda p: p.dim() <= 1)


def test_the_step_schedule_of_the_papers():
    schedule = learning_rates.get("step")
    assert [schedule.factor(epoch, 100) for epoch in (0, 49.9, 50, 99)] == [1, 1, 0.1, 0.1]


def test_cosine_ends_where_it_says():
    schedule = learning_rates.get("cosine(end=0.1, warmup=2.0)")
    factors = [schedule.factor(epoch, 10) for epoch in (0, 1, 2, 6, 10)]
    assert factors == pytest.approx([0, 0.5, 1, 0.55, 0.1])
