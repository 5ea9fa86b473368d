"""The contract of subclasses: what a user's class overrides is computed, kernel or not."""

import dataclasses
import inspect

import pytest
import torch
from registry import clone, relaxation_classes

from rankgrad import kernels, losses, metrics, sorting
from rankgrad.kernels import DeclaresKernel
from rankgrad.losses import RelaxedMetric
from rankgrad.losses.pairwise import PairwiseLoss
from rankgrad.losses.pointwise import PointwiseLoss
from rankgrad.losses.relaxed import GridLoss, grid_metrics
from rankgrad.metrics._cascade import CascadeMetric
from rankgrad.metrics.linear import LinearGradedMetric, LinearMetric

OPTIONS = {"listmle": {"ties": "stable"}, "relaxed": {"metric": "ndcg@3", "relaxation": "approx"}}
#: What names, checks or draws, and declarations of kernels: no part of a value.
OTHERS = {
    *("spec", "is_stationary", "forms", "stochastic", "at", "sample_scores", "check_relaxed"),
    *("kernel", "kernel_call", "kernel_options"),
}
#: The documented ways to extend: an override of one must change the loss.
HOOKS = {
    losses.Loss: {"per_list"},
    PairwiseLoss: {"term", "pair_weights"},
    PointwiseLoss: {"terms"},
    losses.LambdaLoss: {"lambdas"},
    losses.LambdaRank: {"lambdas"},
    metrics.Metric: {"gains"},
    LinearMetric: {"discount"},
    CascadeMetric: {"discount"},
}


def changed(value):
    """Something else of the same kind."""
    match value:
        case torch.Tensor():
            if value.is_floating_point():
                return 0.75 * value + 0.05
            return ~value if value.dtype == torch.bool else value.flip(-1)
        case tuple():
            return (changed(value[0]), *value[1:])
        case float():
            return 1.5 * value
        case _ if dataclasses.is_dataclass(value):
            first = dataclasses.fields(value)[0].name
            return dataclasses.replace(value, **{first: changed(getattr(value, first))})
        case _ if callable(value):
            return lambda *args: changed(value(*args))
    return value


def overridable(cls):
    """The methods of a class that a subclass may override, and that a value can depend on."""
    bases = [base for base in cls.__mro__ if issubclass(base, DeclaresKernel)]
    names = {name for base in bases[:-1] for name, own in vars(base).items() if is_method(own)}
    return sorted(names - OTHERS)


def is_method(attribute):
    named = getattr(attribute, "__name__", "__")
    return inspect.isfunction(attribute) and not named.startswith("__") and named != "forward"


def overriding(cls, name):
    def override(self, *args, **kwargs):
        return changed(getattr(super(sub, self), name)(*args, **kwargs))

    sub = type(f"Own{cls.__name__}", (cls,), {name: override})
    return sub


def outcome(make):
    """Value and gradient, or the words of the error."""
    scores = clone(torch.tensor([[0.3, 1.4, -0.2, 0.8, 0.1], [0.5, -1.0, 0.2, 0.9, 1.1]]).double())
    labels = torch.tensor([[2.0, 0.0, 1.0, 0.0, 3.0], [0.0, 1.0, 0.0, 0.0, 2.0]]).double()
    try:
        value = make()(scores, labels).sum()
    except (TypeError, ValueError) as error:
        return str(error)
    (gradient,) = torch.autograd.grad(value, scores)
    return torch.cat([value.detach()[None], gradient.flatten()])


def check(cls, make):
    """Each override has its effect, the same by default as eagerly."""
    with kernels.using("eager"):
        plain = outcome(lambda: make(cls))
    effective = set()
    for name in overridable(cls):
        sub = overriding(cls, name)
        found = outcome(lambda sub=sub: make(sub))
        with kernels.using("eager"):
            expected = outcome(lambda sub=sub: make(sub))
        if isinstance(expected, str):
            assert found == expected, name
            continue
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10, msg=f"{cls} {name}")
        if not torch.equal(expected, plain):
            effective.add(name)
    expected = {name for base, names in HOOKS.items() if issubclass(cls, base) for name in names}
    assert effective >= expected - ({"gains"} if cls is metrics.Spearman else set())
    assert effective


def loss_classes():
    return sorted(
        {type(losses.get(name)) for name in losses.names()} - {GridLoss},
        key=lambda cls: cls.__name__,
    )


@pytest.mark.parametrize("cls", loss_classes())
def test_losses(cls):
    options = {} if issubclass(cls, GridLoss) else OPTIONS.get(cls.name, {})
    check(cls, lambda sub: sub(**options))


@pytest.mark.parametrize("relaxation", ["approx", "neural", "smoothi"])
@pytest.mark.parametrize("name", [n for n in grid_metrics() if n != "spearman"])
def test_relaxed_metrics(name, relaxation):
    check(type(metrics.get(name)), lambda sub: RelaxedMetric(sub(3), relaxation))


def test_spearman_through_ranks():
    check(type(metrics.get("spearman")), lambda sub: RelaxedMetric(sub(), "approx"))


@pytest.mark.parametrize("name", metrics.names())
def test_exact_metrics(name):
    scores, labels = torch.tensor([0.3, 1.4, -0.2, 0.8]), torch.tensor([2.0, 0.0, 1.0, 1.0])
    for method in overridable(type(metrics.get(name))):
        sub = overriding(type(metrics.get(name)), method)
        if method in ("_through_permutation", "_through_ranks", "relax", "relaxed"):
            continue
        found = sub()(scores, labels)
        with kernels.using("eager"):
            torch.testing.assert_close(found, sub()(scores, labels), msg=f"{sub} {method}")


@pytest.mark.parametrize("cls", relaxation_classes())
def test_relaxations(cls):
    seed = {"seed": 7} if cls is sorting.Gumbel else {}
    check(cls, lambda sub: RelaxedMetric("ndcg@3", sub(**seed)))


def test_a_base_that_is_overridden_counts():
    own = overriding(sorting.NeuralSort, "_permutation")
    check(sorting.Sinkhorn, lambda sub: RelaxedMetric("ndcg", sub(own())))


def test_a_mixin_that_overrides_counts():
    class Mixin(LinearGradedMetric):
        def gains(self, labels):
            return super().gains(labels) + 0.5

    class Mixed(metrics.NDCG, Mixin):
        pass

    assert Mixed.gains is Mixin.gains
    assert not Mixed.kernel_applies
    check(Mixed, lambda sub: RelaxedMetric(sub(3), "approx"))


def test_declaring_a_kernel_again_brings_it_back():
    class Renamed(losses.RankNet):
        name = "renamed"

    class Own(losses.RankNet):
        def term(self, differences):
            return super().term(differences)

        kernel = losses.RankNet.kernel

    assert Renamed.kernel_applies and Own.kernel_applies
    assert not overriding(losses.RankNet, "term").kernel_applies
