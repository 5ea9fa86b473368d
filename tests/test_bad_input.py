"""One clear ValueError each, naming the argument and what was found."""

import numpy as np
import pytest
import torch

from rankgrad import kernels, losses, metrics, sorting
from rankgrad.inputs import as_lists

CALLS = {"loss": losses.get("neural_ndcg@2"), "metric": metrics.get("ndcg@2")}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
S, Y = torch.randn(2, 3), torch.zeros(2, 3)


@every_call
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((S, Y[:, :2]), {}, r"labels have shape \(2, 2\), scores \(2, 3\)"),
        ((S, Y, Y), {}, "mask must be boolean"),
        ((S, Y, Y[:1].bool()), {}, r"mask has shape \(1, 3\), scores \(2, 3\)"),
        ((S, Y - 1), {}, r"labels\[0, 0\] = -1: labels must be finite and not negative"),
        ((S, Y / 0), {}, r"labels\[0, 0\] = nan"),
        ((S / 0 * 0, Y), {}, r"scores\[0, 0\] = nan: scores must be numbers"),
        ((S[0], Y[0]), {"offsets": [0, 2]}, r"run from 0 to the number of items, 3; found 0 to 2"),
        ((S[0], Y[0]), {"offsets": [1, 3]}, "found 1 to 3"),
        ((S[0], Y[0]), {"offsets": [0, 2, 1, 3]}, r"offsets\[2\] = 1 follows 2"),
        ((S[0], Y[0]), {"offsets": [0.0, 3.0]}, "offsets must be whole numbers"),
        ((S[0], Y[0]), {"offsets": []}, "offsets must be whole|run from 0"),
        ((S, Y), {"offsets": [0, 3]}, r"with offsets, scores must have one dimension"),
        ((S[0], Y[0], Y[0].bool()), {"offsets": [0, 3]}, "not both"),
        ((S, Y), {"weights": torch.ones(5)}, r"weights have shape \(5,\): give one per item"),
        ((S, Y), {"weights": -torch.ones(2)}, r"weights\[0\] = -1: weights must be finite"),
        ((S.bool(), Y), {}, "scores must be real numbers"),
        ((torch.tensor(1.0), torch.tensor(1.0)), {}, "at least one dimension"),
        ((None, Y), {}, "scores must be a tensor, .* found NoneType"),
        (([[1.0], [1.0, 2.0]], Y), {}, "for ragged lists give flat values and offsets"),
        ((S, "labels"), {}, "labels must be a tensor"),
        ((S, Y, "mask"), {}, "mask must be a tensor"),
        ((S + 0j, Y), {}, "scores must be dense real numbers"),
        ((S, Y + 200), {}, "a label of 200 is too large for the gain"),
        (
            (S[..., None], Y[..., None]),
            {},
            r"shape \(2, 3, 1\): .* scores.squeeze\(-1\)",
        ),
        ((S[..., None], Y[..., None], Y[..., None] == 0), {}, r"every list would have one item"),
    ],
)
def test_lists(call, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        call(*arguments, **options)


GAINS = [
    *(f"{kind}{family}_err" for kind in ("", "gumbel_") for family in sorting.FAMILIES),
    *(f"{family}_ndcg" for family in sorting.FAMILIES),
    *("lambdarank", "lambdaloss", "ndcg_bound"),
]
LARGE = torch.tensor([[1.0, 130.0, 0.0, 3.0]])


@pytest.mark.parametrize("spec", GAINS)
@pytest.mark.parametrize("mode", ["auto", "eager"])
def test_labels_too_large_for_a_gain_are_the_same_error_everywhere(spec, mode):
    scores, loss = torch.tensor([[0.3, 0.2, 0.1, 0.5]]), losses.get(spec)
    with kernels.using(mode):
        with pytest.raises(ValueError, match="a label of 130 is too large for the gain 2"):
            loss(scores, LARGE)
        assert loss(scores, LARGE, LARGE < 100).isfinite()  # what padding holds is not looked at
        for label in (25.0, 60.0, 119.0):
            leaf = scores.clone().requires_grad_()
            value = loss(leaf, LARGE.clamp(max=label))
            value.backward()
            assert value.isfinite() and leaf.grad.isfinite().all()


@pytest.mark.parametrize("spec", ["approx_err", "lapsum_err", "fastsort_err", "neural_err"])
def test_err_of_large_labels_is_as_precise_in_float32(spec):
    labels = torch.tensor([[1.0, 25.0, 0.0, 3.0, 24.0]])
    scores = torch.tensor([[0.3, 0.2, 0.1, 0.5, 0.4]])
    for top in (18.0, 25.0, 40.0):
        given = labels.clamp(max=top)
        found, wanted = losses.get(spec)(scores, given), losses.get(spec)(scores.double(), given)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", ["err", "ndcg", "dcg"])
@pytest.mark.parametrize("mode", ["auto", "eager"])
def test_labels_too_large_for_an_exact_metric_are_the_same_error(spec, mode):
    with kernels.using(mode), pytest.raises(ValueError, match="a label of 130 is too large"):
        metrics.get(spec)(torch.zeros(1, 4), LARGE)


def test_lists_of_one_item_are_no_mistake():
    for shape in ((4, 1), (1,), (3, 1, 1)):
        assert losses.get("ranknet")(torch.zeros(shape), torch.ones(shape)) == 0
    assert metrics.get("ndcg")(torch.zeros(4, 1), torch.ones(4, 1)).tolist() == [1.0] * 4


def test_infinite_scores_are_for_metrics_only():
    given = torch.tensor([0.0, float("inf")]), torch.tensor([1, 0])
    with pytest.raises(ValueError, match="item 1 of list 0 is inf"):
        losses.get("ranknet")(*given)
    with pytest.raises(ValueError, match="item 1 of list 0 is inf"):
        losses.get("ranknet").values(as_lists(*given))
    for relax in (sorting.NeuralSort(), sorting.soft_rank, sorting.soft_sort):
        with pytest.raises(ValueError, match=r"scores\[1\] = nan: scores must be finite"):
            relax(torch.tensor([0.0, float("nan")]))


def test_labels_are_named_where_they_stand_in_flat_lists():
    with pytest.raises(ValueError, match=r"labels\[4\] = -2"):
        losses.get("mse")(torch.zeros(5), torch.tensor([0, 1, 2, 3, -2]), offsets=[0, 2, 5])


@pytest.mark.parametrize(
    ("get", "spec", "message"),
    [
        (losses.get, "neural_ndcg@0", "k must be a whole number of at least 1"),
        (metrics.get, "ndcg@0", "k must be"),
        (metrics.get, "ndcg@-3", "k must be"),
        (losses.get, "neural_ndcg(temperature=0)", "temperature must be a number above 0, found 0"),
        (losses.get, "neural_ndcg(temperature=-1.5)", "temperature must be"),
        (losses.get, "approx_ndcg(alpha=warm)", "alpha must be"),
        (losses.get, "lapsum_ndcg(beta=0)", "beta must be"),
        (losses.get, "neural_ndcg(temperature=linear(start=0, end=1))", "start must be"),
        (losses.get, "neural_ndcg(temperature=linear(start=1))", "linear: .*'end'"),
        (sorting.get, "smoothi(delta=0.5)", "delta must lie between 0 and 0.5"),
        (sorting.get, "fastsort(regularization=l3)", "regularization must be one of 'l2'"),
        (sorting.get, "sinkhorn(base=lapsum)", "lapsum gives ranks, not permutation"),
        (sorting.get, "sinkhorn(iterations=0)", "iterations must be"),
        (sorting.get, "tree(temperatures=[1e-300, 1])", "temperatures must be from 1e-30 to"),
        (sorting.get, "gumbel(samples=0)", "samples must be"),
        (sorting.get, "gumbel(seed=x)", "seed must be"),
        (metrics.get, "ndcg(gain=cubic)", "gain must be one of 'exponential', 'linear'"),
        (metrics.get, "ap(empty=2)", "empty must be one of 0, 1, 'skip'"),
        (metrics.get, "ap(ties=lucky)", "ties must be one of"),
        (metrics.get, "rbp(persistence=1.0)", "persistence must lie between 0 and 1"),
        (metrics.get, "rbp(graded=no)", "graded must be true or false, found 'no'"),
        (losses.get, "ranknet(ties=lucky)", "ties must be one of 'skip', 'half'"),
        (losses.get, "lambdaloss(scheme=other)", "scheme must be one of"),
        (losses.get, "lambdarank(metric=err)", "metric must be one of 'ndcg'"),
        (losses.get, "mse(reduction=max)", "reduction must be one of 'mean', 'sum', 'none'"),
        (losses.get, "listap(bins=1)", "bins must be"),
        (losses.get, "ordinal(levels=1)", "levels must be"),
        (losses.get, "softmax@5", "softmax takes no cutoff"),
        (losses.get, "neurl_ndcg", "unknown loss 'neurl_ndcg'. Did you mean 'neural_ndcg'"),
        (losses.get, "neural_ndcg(temprature=1)", "Did you mean 'temperature'"),
        (metrics.get, "nddcg", "Did you mean 'ndcg'"),
        (losses.get, "neural_precision(expect=label)", "expect"),
        (losses.get, "neural_ap(sinkhorn=false, iterations=5)", "iterations is about the Sinkhorn"),
        (losses.get, "neural_ndcg(transposed=no)", "transposed must be true or false, found 'no'"),
        (losses.get, "neural_ndcg(iterations=2.5)", "iterations must be a whole number"),
        (losses.get, "neural_ndcg(temperature=1_)", "'1_' is none"),
        (losses.get, "pirank_ndcg(depth=2, branching=[2, 2])", "either depth or branching"),
        (losses.get, "pirank_ndcg(keep=[3])", "keep is for a tree"),
        (losses.get, "pirank_ndcg(branching=2)", "branching must be a list"),
        (sorting.get, "smoothi(delta=a)", "delta must lie between"),
        (sorting.get, "sinkhorn(base=gumbel)", "put gumbel outside"),
        (sorting.get, "straight_through(base=gumbel)", "put gumbel outside"),
        (losses.get, 5, "expected a loss or its spec, found int"),
        (losses.get, "neural_ndcg@99999999999999999999", "k must be at most 2,147,483,647, found"),
        (losses.get, "neural_ndcg(iterations=99999999999999999999)", "iterations must be at most"),
        (losses.get, f"ndcg@{'9' * 5000}", "a cutoff of at most 4000 digits"),
        (losses.get, f"mse(weight={'9' * 5000})", "a number"),
        (sorting.get, "gumbel(base=" * 5000, "at most 20 values within each other"),
        (losses.get, f"pirank_ndcg(branching={'[' * 5000}", "at most 20 values within each other"),
        (losses.get, "x" * 10**6, r"unknown loss 'xxx.*' \(1,000,000 characters\)"),
        (losses.get, "mse(" + "x" * 10**6, r"1,000,004 characters\): expected option=value"),
        (losses.get, f"mse(reduction={'x' * 10**6})", "reduction must be one of"),
        (losses.get, metrics.get("ndcg"), "expected a loss or its spec, found NDCG"),
        (metrics.get, metrics.NDCG, "expected a metric or its spec, found NDCG"),
    ],
)
def test_specs(get, spec, message):
    with pytest.raises(ValueError, match=message) as error:
        get(spec)
    assert len(str(error.value)) < 2000


def test_other_arguments():
    with pytest.raises(ValueError, match="relaxation must be an object"):
        metrics.get("ndcg").relaxed("neuralsort", S, Y)
    with pytest.raises(ValueError, match="family must be one of"):
        losses.GridLoss("foo", "ndcg")
    with pytest.raises(ValueError, match="k must be a whole number"):
        sorting.soft_topk_mask(S, None)
    with pytest.raises(KeyError, match="'ap' was not evaluated; there are: rr"):
        metrics.evaluate(S, Y, metrics="rr")["ap"]


def test_numpy_numbers_are_numbers():
    loss = losses.get("neural_ndcg", k=np.int64(3), temperature=np.float32(0.5))
    assert str(loss) == "neural_ndcg@3(temperature=0.5)"


def test_padding_may_hold_any_weight():
    mask = torch.tensor([[True, True, False]])
    weights = torch.tensor([[1.0, 1.0, float("nan")]])
    assert losses.get("mse")(S[:1], Y[:1], mask, weights=weights).isfinite()
