"""The operations as PyTorch knows them: schemas, shapes without values, autograd, compilation."""

import os
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rankgrad import kernels, losses, metrics, sorting
from rankgrad.inputs import as_lists
from rankgrad.kernels import ops
from rankgrad.lists import FlatLists

pytest.importorskip("numba")

METRIC = ("ndcg", 2, "exponential", 1.0, 0.8)
OPTIONS = {
    "through_ranks": ("sigmoid", 1.0, 1.0, *METRIC),
    "through_rows": ("softsort", 1.0, *METRIC),
    "through_sinkhorn": (1.0, 5, 1e-6, False, *METRIC),
    "through_smoothi": (1.0, 0.1, "gain", *METRIC),
    "through_smoothi_ranks": (1.0, 0.1, 1.0, *METRIC),
    "pairs": ("ndcg_loss2", 0, 1.0, "exponential", "corrected", 10.0, False),
    "listmle": (None,),
    "cross_entropy": ("softmax",),
    "ndcg_bound": (2, "exponential"),
    "ordered_logit": (5,),
    "listap": (20, 1.0),
    "margin_mse": (),
    "neuralsort_ce": (2, 1.0),
    "through_ot": (0.1, 5, 1e-6, *METRIC),
    "pointwise": ("ordinal", 5.0),
}
SCORES = torch.tensor([0.3, -0.2, 0.1, 1.0, 0.0, 2.0], dtype=torch.float64)
LABELS = torch.tensor([1.0, 0, 2, 0, 0, 1], dtype=torch.float64)
OFFSETS = torch.tensor([0, 3, 6])
MASK = torch.tensor([True, True, True, True, False, True])


def arguments(name):
    scores = SCORES.clone().requires_grad_()
    return (scores, LABELS, MASK, None, OFFSETS, 3, *OPTIONS[name])


def require_backend(name):
    if not kernels.ready(name, torch.zeros(1)):
        pytest.skip(f"no kernel of {name} for CPUs")


@pytest.mark.parametrize("name", ops.LOSSES)
def test_losses_are_entered_rightly(name):
    require_backend(name)
    torch.library.opcheck(getattr(torch.ops.rankgrad, name).default, arguments(name))


@pytest.mark.parametrize("name", ["sigmoid", "lapsum"])
def test_ranks_are_entered_rightly(name):
    scores, mask = SCORES.view(2, 3), MASK.view(2, 3)
    leaf = scores.clone().requires_grad_()
    torch.library.opcheck(torch.ops.rankgrad.rank.default, (leaf, mask, name, [0.5]))
    product = torch.ops.rankgrad.rank_vjp.default
    torch.library.opcheck(product, (torch.ones_like(scores), scores, mask, name, [0.5]))


@pytest.mark.parametrize("name", ["sigmoid", "lapsum"])
@pytest.mark.parametrize("max_length", [4, -1])
def test_ranks_of_flat_lists_are_those_of_padded_ones(name, max_length):
    offsets = torch.tensor([0, 2, 2, 6])
    scores = SCORES.clone().requires_grad_()
    ranks = getattr(torch.ops.rankgrad, f"{name}_ranks")
    found = ranks(scores, MASK, offsets, max_length, 0.5)
    (grad,) = torch.autograd.grad(found.square().sum(), scores)
    operator = torch.ops.rankgrad.rank
    for start, stop in ((0, 2), (2, 6)):
        own = SCORES[start:stop].clone().requires_grad_()
        expected = operator(own[None], MASK[None, start:stop], name, [0.5])[0]
        torch.testing.assert_close(found[start:stop], expected)
        (own_grad,) = torch.autograd.grad(expected.square().sum(), own)
        torch.testing.assert_close(grad[start:stop], own_grad)


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 2.0])])
def test_reduce_is_entered_rightly(mean, weights):
    values = torch.tensor([0.5, 0.25], requires_grad=True)
    defined = torch.tensor([True, False])
    torch.library.opcheck(torch.ops.rankgrad.reduce.default, (values, defined, weights, mean))


@pytest.mark.parametrize("factor", [None, torch.tensor(3.0)])
def test_scale_by_list_is_registered_rightly(factor):
    inputs = (torch.tensor([1.0, 2.0]), SCORES.float(), OFFSETS, 3, factor)
    torch.library.opcheck(torch.ops.rankgrad.scale_by_list.default, inputs)


@pytest.mark.parametrize("name", ops.LOSSES)
def test_shapes_are_known_without_values(name):
    inputs = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in arguments(name)]
    values, grad_scores, defined = getattr(torch.ops.rankgrad, name)(*inputs)
    assert values.shape == defined.shape == (2,) and grad_scores.shape == (6,)
    assert values.is_meta and defined.dtype == torch.bool


@pytest.mark.parametrize("name", ops.LOSSES)
def test_the_direct_way_is_the_same(name):
    require_backend(name)
    inputs = arguments(name)
    values, _, defined = getattr(torch.ops.rankgrad, name)(*inputs)
    call, lists = ops.KernelCall(name, inputs[6:]), FlatLists(*inputs[:6])
    directly = ops.loss(call, lists)
    assert values.equal(directly[0]) and defined.equal(directly[1])
    (one,) = torch.autograd.grad(values.sum(), inputs[0])
    (other,) = torch.autograd.grad(directly[0].sum(), inputs[0])
    assert one.equal(other)
    (mean,) = torch.autograd.grad(ops.reduced_loss(call, lists, "mean"), inputs[0])
    torch.testing.assert_close(mean, one / defined.sum())


COMPILED = [
    "approx_err",
    "neuralsort_ce",
    "pirank_ndcg(depth=2)",
    "approx_ndcg@2",
    "approx_rr",
    "fastsort_ndcg",
    "lambdaloss",
    "lapsum_ndcg",
    "listmle(ties=stable)",
    "listnet",
    "mse",
    "neural_ndcg",
    "eager:ordered_logit",  # as on a GPU
    "pirank_ndcg@2",
    "ranknet",
    "smoothi_ndcg",
    "softmax",
]


def test_padded_losses_compile_whole():
    """By themselves: shapes are checked at run time in all other tests, which no compiler likes."""
    script = Path(__file__).with_name("compile_whole.py")
    done = subprocess.run(
        [sys.executable, str(script), *COMPILED],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(kernels.__file__).parents[2])},
    )
    assert done.stdout.splitlines() == [f"{spec} fine" for spec in COMPILED], done.stderr[-2000:]


def test_offsets_of_padded_lists_are_cached(monkeypatch):
    monkeypatch.setattr("rankgrad.lists._cache", {})
    first, second = (as_lists(SCORES.reshape(2, 3), LABELS.reshape(2, 3)) for _ in range(2))
    assert first.flat.offsets is second.flat.offsets
    with torch.inference_mode():
        lists = as_lists(torch.zeros(5, 17), torch.zeros(5, 17))
    assert not lists.flat.offsets.is_inference()


def test_a_padded_loss_is_one_step_of_autograd_on_a_cpu():
    """A view of the scores would be another one, and take a tenth of a small call's time."""
    scores = torch.zeros(2, 3, requires_grad=True, device="cpu")
    value = losses.get("softmax")(scores, torch.ones(2, 3, device="cpu"))
    (before,) = (each for each, _ in value.grad_fn.next_functions if each is not None)
    assert before.variable is scores


def lists_of(seed, n=5):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, n, generator=generator, dtype=torch.float32)
    return scores, torch.randint(0, 3, (3, n), generator=generator).float()


@pytest.mark.parametrize("spec", ["softmax", "lambdaloss@2", "approx_ndcg", "listmle(seed=1)"])
def test_small_calls_share_arrays_and_nothing_else(spec):
    """Calls of one size after one another, of other sizes and losses between, threads beside."""
    alone = {}
    for seed in range(3):
        scores, labels = lists_of(seed)
        losses.get("mse")(scores, labels)
        scores.requires_grad_()
        losses.get(spec)(scores, labels).backward()
        alone[seed] = scores.grad

    def again(loss):
        for seed in (0, 1, 2, 1, 0):
            scores, labels = lists_of(seed)
            scores.requires_grad_()
            loss = losses.get(spec) if "seed" in spec else loss
            loss(scores, labels).backward()
            assert scores.grad.equal(alone[seed])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(again, [losses.get(spec) for _ in range(4)]))


def test_small_calls_hold_no_graph_in_memory():
    scores, labels = lists_of(0)
    hidden = scores.clone().requires_grad_()
    given = hidden * 2
    gone = weakref.ref(given)
    losses.get("softmax")(given, labels).backward()
    del given
    assert gone() is None


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_retained_graph_gives_its_gradient_again(factor):
    scores, labels = lists_of(0)
    scores.requires_grad_()
    given = scores * 1.0  # gradients of two uses are added up
    value = losses.get("softmax")(given, labels) + 0.0 * given.sum()
    first, second, third = (
        torch.autograd.grad(value, scores, torch.tensor(factor), retain_graph=True)[0]
        for _ in range(3)
    )
    assert first.abs().sum() > 0
    assert second.equal(first)
    assert third.equal(first)
    losses.get("softmax")(scores, labels).mul(factor).backward()
    once = scores.grad.clone()
    torch.testing.assert_close(once, first)
    value = losses.get("softmax")(scores, labels)
    (value * factor).backward(retain_graph=True)
    (value * factor).backward()
    torch.testing.assert_close(scores.grad, 3 * once)
    value = losses.get("softmax")(scores, labels) * factor
    torch.autograd.grad(value, scores, retain_graph=True)[0].zero_()  # the caller's own
    assert torch.autograd.grad(value, scores)[0].equal(once)


@pytest.mark.parametrize("name", sorted(set(losses.names()) - {"relaxed"}))
def test_no_loss_waits_for_a_gpu_in_training(name):
    lists, loss = as_lists(SCORES, LABELS, check=False), losses.get(name)
    assert loss.never_waits(lists)


def test_a_subclass_says_anew_that_it_never_waits():
    lists = as_lists(SCORES, LABELS, check=False)

    class Own(losses.NeuralSortCE):
        def per_list(self, lists):
            return super().per_list(lists)

    assert losses.NeuralSortCE().never_waits(lists)
    assert not Own().never_waits(lists)
    through = {"_through_ranks": lambda self, *rest: metrics.Spearman._through_ranks(self, *rest)}
    ranked = type("OwnSpearman", (metrics.Spearman,), through)
    assert losses.RelaxedMetric(metrics.Spearman(), "approx").never_waits(lists)
    assert not losses.RelaxedMetric(ranked(), "approx").never_waits(lists)


def test_operations_take_tensors_of_any_type_and_layout():
    require_backend("cross_entropy")
    scores, labels = torch.randn(6), torch.tensor([1, 0, 2, 0, 1, 0])
    wanted = torch.ops.rankgrad.cross_entropy(
        scores, labels.float(), None, None, torch.tensor([0, 3, 6]), 3, "label"
    )
    found = torch.ops.rankgrad.cross_entropy(
        torch.stack([scores, scores], 1)[:, 0],
        labels,
        None,
        None,
        torch.tensor([0, 3, 6], dtype=torch.int32),
        3,
        "label",
    )
    for one, other in zip(found, wanted, strict=True):
        assert one.equal(other)


def test_arrays_are_of_memory_that_is_what_it_seems():
    flat_arrays = pytest.importorskip("rankgrad.kernels.cpu._flat_arrays")
    lists = FlatLists(torch.zeros(4), torch.zeros(4), None, None, torch.tensor([0, 4]), 4)
    assert flat_arrays.FlatArrays(lists).valid
    for wrong in (torch.zeros(4, dtype=torch.int64), torch.zeros(8)[::2]):
        with pytest.raises(TypeError, match="contiguous"):
            flat_arrays.FlatArrays(lists._replace(labels=wrong))


@pytest.mark.parametrize(("name", "option"), [("sigmoid", "alpha"), ("lapsum", "temperature")])
def test_ranks_of_flat_lists_and_their_product(name, option):
    scores, grad = SCORES.clone().requires_grad_(), LABELS - 0.5
    rest = MASK, OFFSETS, 3, 2.0
    found = getattr(torch.ops.rankgrad, f"{name}_ranks")(scores, *rest)
    relaxation = sorting.get(f"{name}({option}=2.0)")
    wanted = torch.cat([relaxation.ranks(scores[x], MASK[x]) for x in (slice(0, 3), slice(3, 6))])
    torch.testing.assert_close(found, wanted)
    product = getattr(torch.ops.rankgrad, f"{name}_ranks_vjp")(grad, scores, *rest)
    torch.testing.assert_close(product, torch.autograd.grad(wanted, scores, grad)[0])
