"""Relaxations against their formulas in loops, and against what the papers print."""

import math
from functools import partial

import numpy as np
import pytest
import reference
import torch

from rankgrad import kernels, losses, metrics, sorting
from rankgrad.sorting import (
    FastSort,
    Gumbel,
    LapSum,
    NeuralSort,
    OptimalTransport,
    SigmoidRanks,
    Sinkhorn,
    SmoothI,
    SoftSort,
    Tree,
)
from rankgrad.sorting.smoothi import _indicators


def draw(seed, n=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, generator=generator, dtype=torch.float64)


def same_function(ours, theirs, scores, precision=1.0):
    """Equal values, and equal gradients of a random combination of them."""
    scores = scores.clone().requires_grad_()
    one, other = ours(scores), theirs(scores)
    torch.testing.assert_close(one, other, rtol=precision * 1e-8, atol=precision * 1e-10)
    mix = torch.randn(one.shape, dtype=one.dtype, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((one * mix).sum(), scores)
    (expected,) = torch.autograd.grad((other * mix).sum(), scores)
    torch.testing.assert_close(gradient, expected, rtol=precision * 1e-6, atol=precision * 1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_formulas(seed):
    s = draw(seed)
    same_function(NeuralSort(0.7), lambda x: reference.neuralsort(x, 0.7), s)
    same_function(lambda x: NeuralSort(0.7)(x, k=2), lambda x: reference.neuralsort(x, 0.7)[:2], s)
    same_function(SoftSort(0.7), lambda x: reference.softsort(x, 0.7), s)
    same_function(SigmoidRanks(1.3), lambda x: reference.sigmoid_ranks(x, 1.3), s)
    same_function(LapSum(0.7), lambda x: reference.lapsum(x, 0.7), s)
    for stop in (True, False):
        same_function(
            SmoothI(2.0, 0.2, stop), lambda x, t=stop: reference.smoothi(x, 2.0, 0.2, t), s
        )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("iterations", [1, 5, 30])
def test_sinkhorn(transposed, iterations):
    def scaled(x):
        return reference.sinkhorn(
            reference.neuralsort(x, 0.7), iterations, 1e-6, transposed=transposed
        )

    ours = Sinkhorn(NeuralSort(0.7), iterations, 1e-6, transposed)
    same_function(ours, scaled, draw(1, n=5))


def test_sinkhorn_stops_at_the_tolerance_list_by_list():
    easy, hard = torch.tensor([9.0, 5.0, 0.0, 0.0]), torch.tensor([0.1, 0.0, 0.3, 0.2])
    made = Sinkhorn(NeuralSort(1.0), tolerance=1e-2)
    together = made(torch.stack([easy, hard]).double())
    torch.testing.assert_close(together[0], made(easy.double()))
    torch.testing.assert_close(together[1], made(hard.double()))
    loose, tight = Sinkhorn(NeuralSort(1.0), tolerance=0.2), Sinkhorn(NeuralSort(1.0))
    assert (loose(hard).sum(0) - 1).abs().max() > (tight(hard).sum(0) - 1).abs().max()


@pytest.mark.slow
def test_optimal_transport():
    made = OptimalTransport(0.05, iterations=2000, tolerance=1e-13)
    # The reference iterates until nothing moves by 1e-13, which leaves about 1e-8 to go.
    same_function(made, lambda x: reference.ot(x, 0.05), draw(2, n=4), precision=1e3)


@pytest.mark.parametrize("regularization", ["l2", "entropic"])
@pytest.mark.parametrize("strength", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_fastsort_is_the_projection(regularization, strength, seed):
    s = draw(seed, n=5)
    expected = reference.fastsort(s.numpy(), strength, regularization)
    ours = FastSort(strength, regularization)(s)
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)
    assert ours.sum().item() == pytest.approx(15)


def test_torchsort_prints_the_same():
    """The values in torchsort's and fast-soft-sort's documentation."""
    x = torch.tensor([[8.0, 0, 5, 3, 2, 1, 6, 7, 9]])
    torch.testing.assert_close(
        sorting.soft_sort(x), torch.arange(9.0)[None] + 0.5556, atol=1e-4, rtol=0
    )
    strong = torch.tensor([[0.0, 1, 2, 3, 5, 6, 7, 8, 9]])
    torch.testing.assert_close(sorting.soft_sort(x, regularization_strength=0.1), strong)
    ranks = torch.tensor([[8.0, 1, 5, 4, 3, 2, 6, 7, 9]])
    torch.testing.assert_close(sorting.soft_rank(x), ranks)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(sorting.soft_sort(x)[0, 0], x)
    torch.testing.assert_close(gradient, torch.full((1, 9), 1 / 9))
    values = torch.tensor([[5.0, 1.0, 2.0], [2.0, 1.0, 5.0]])
    expected = torch.tensor([[3.0, 1.25, 1.75], [1.75, 1.25, 3.0]])
    torch.testing.assert_close(sorting.soft_rank(values, regularization_strength=2.0), expected)


def test_soft_functions_both_ways_and_padded():
    x = torch.tensor([[3.0, 1.0, 2.0, 9.0]])
    mask = torch.tensor([[True, True, True, False]])
    tiny = {"regularization_strength": 1e-4, "mask": mask}
    for how in ("l2", "entropic"):
        assert sorting.soft_rank(x, how, **tiny)[0, :3].round().tolist() == [3, 1, 2]
        down = sorting.soft_rank(x, how, descending=True, **tiny)
        assert down.round().tolist() == [[1, 3, 2, 0]]
        assert sorting.soft_sort(x, how, **tiny).round().tolist() == [[1, 2, 3, 0]]
        assert sorting.soft_sort(x, how, descending=True, **tiny).round().tolist() == [[3, 2, 1, 0]]
        assert sorting.soft_topk_mask(x, 2, how, **tiny).round().tolist() == [[1, 0, 1, 0]]


@pytest.mark.parametrize("blocks", [[6], [3, 2], [2, 3], [2, 2, 2]])
def test_tree_is_the_papers_divide_and_conquer(blocks):
    s = draw(3)
    for k in (1, 2, 4):
        made = Tree(NeuralSort(0.5), branching=blocks)
        same_function(
            lambda x, m=made, k=k: m(x, k=k),
            lambda x, k=k: reference.tree(x, 0.5, blocks, k),
            s,
        )


def test_tree_of_depth_one_is_the_base():
    s = torch.randn(3, 17)
    for base in (NeuralSort(0.5), SoftSort(0.5)):
        torch.testing.assert_close(Tree(base, depth=1)(s, k=5), base(s, k=5))


@pytest.mark.parametrize("n", [1, 2, 7, 64, 65])
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_tree_of_any_length_finds_the_exact_top(n, depth):
    s = torch.randn(2, n, dtype=torch.float64)
    k = min(3, n)
    top = Tree(NeuralSort(1e-6), depth=depth)(s, k=k)
    torch.testing.assert_close(
        (top @ s[:, :, None]).squeeze(-1), s.sort(descending=True).values[:, :k]
    )


def test_tree_options():
    s = torch.randn(20)
    kept = Tree(NeuralSort(0.5), depth=2, keep=[5, 5])(s, k=2)
    assert not torch.allclose(kept, Tree(NeuralSort(0.5), depth=2)(s, k=2))
    cooled = Tree(NeuralSort(0.5), depth=2, temperatures=[1e-4, 0.5])(s, k=2)
    assert not torch.allclose(cooled, Tree(NeuralSort(0.5), depth=2)(s, k=2))
    for options, message in [
        ({"depth": 2, "branching": [2, 2]}, "either depth or branching"),
        ({"depth": 0}, "depth must be"),
        ({"depth": 2, "keep": [3]}, "one value per level"),
        ({"depth": 2, "temperatures": [1.0, 0.5]}, "must not fall"),
    ]:
        with pytest.raises(ValueError, match=message):
            Tree(NeuralSort(), **options)
    with pytest.raises(ValueError, match="has no temperature"):
        Tree(SmoothI(), depth=2, temperatures=[0.1, 0.2])


def test_quasi_sorted_labels_of_neuralndcg_table_1():
    y = torch.tensor([4.0, 2, 1, 0, 4, 3], dtype=torch.float64)
    s = torch.tensor([0.5, 0.2, 0.1, 0.01, 0.65, 0.3], dtype=torch.float64)
    printed = {
        0.01: [4, 4, 3, 2, 0.99992, 0.00012339],
        0.1: [3.9995, 3.8909, 2.8239, 1.9730, 0.9989, 0.3136],
        1.0: [3.3893, 2.9820, 2.4965, 2.0191, 1.6097, 1.2815],
    }
    for temperature, row in printed.items():
        sorted_labels = NeuralSort(temperature)(s) @ y
        torch.testing.assert_close(sorted_labels, torch.tensor(row).double(), atol=6e-5, rtol=0)


@pytest.mark.parametrize("seed", range(20))
def test_error_bound_of_smoothi_theorem_2(seed):
    generator = torch.Generator().manual_seed(seed)
    n, K, delta = 6, int(torch.randint(2, 5, (), generator=generator)), 0.1
    s = torch.rand(n, generator=generator, dtype=torch.float64).mul(9).add(1)
    ordered = s.sort(descending=True).values
    beta = (ordered[:-1] / ordered[1:]).min()
    c = ((beta + 1) / 2) ** (1 / (K - 1))
    gamma = min(delta, 0.5 - delta, float((1 - delta) * (c - 1) / (c + 1)))
    rate = float(s.min() * min(1.0, float(beta - 1) / 2) / 2 ** (K - 1))
    alpha = 1.01 * (math.log(K - 1) - math.log(gamma)) / rate
    # The theorem takes positive scores as they are, so it is the recursion itself that it bounds.
    mask = torch.ones(1, n, dtype=torch.bool)
    indicators = torch.cat(_indicators(alpha * s[None], mask, K, delta))
    error = (indicators - sorting.Exact()(s, k=K)).abs().max().item()
    assert error <= (K - 1) * math.exp(-alpha * rate)


def test_gumbel_noise_in_log_scores_samples_plackett_luce():
    weights = torch.tensor([1.0, 2.0, 5.0])
    made = Gumbel(sorting.Exact(), samples=20000, log_scores=True, seed=1)
    first = made(weights, k=1)[0]
    torch.testing.assert_close(first, weights / 8, atol=0.015, rtol=0)
    shifted = Gumbel(sorting.Exact(), samples=20000, log_scores=True, seed=1)
    lifted = shifted(weights - 2.0, k=1)[0]  # lowest is -1: lists are moved up to a lowest of 1
    torch.testing.assert_close(lifted, weights / 8, atol=0.015, rtol=0)


def test_gumbel_noise_has_the_scale_asked_for():
    made = Gumbel(sorting.Exact(), scale=2.0, samples=40000, seed=0)
    draws = made.sample_scores(
        torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    )
    assert draws.mean().item() == pytest.approx(2 * 0.5772, abs=0.03)
    assert draws.std().item() == pytest.approx(2 * math.pi / math.sqrt(6), abs=0.04)


def test_lists_without_items_have_rows_of_no_columns():
    assert sorting.get("softsort").permutation(torch.zeros(2, 0), k=3).shape == (2, 3, 0)


@pytest.mark.parametrize("how", ["l2", "entropic"])
def test_soft_sorting_keeps_its_digits_in_float32(how):
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e4
    for function in (sorting.soft_rank, sorting.soft_sort, partial(sorting.soft_topk_mask, k=5)):
        found = function(values, regularization=how, regularization_strength=1e-3)
        exact = function(values.double(), regularization=how, regularization_strength=1e-3)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, exact.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["auto", "eager"])
@pytest.mark.parametrize(
    "spec",
    [
        "fastsort_ndcg(strength=1e-20)",
        "neural_ndcg(temperature=1e-30)",
        "ot_ndcg(epsilon=1e-30)",
        "pirank_ndcg(temperature=1e-20)",
        "smoothi_ndcg(alpha=1e20, expect=gain)",
        "softsort_ndcg(temperature=1e-30)",
    ],
)
def test_losses_at_the_least_temperature_are_the_exact_metric(spec, mode):
    """Differences of scores are then far below the rounding of their sums and products."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(8, 40, generator=generator) * torch.tensor([1.0, 3e3]).repeat(4)[:, None]
    labels = torch.randint(0, 4, (8, 40), generator=generator).float()
    loss = losses.get(spec, reduction="none")
    tied = torch.full_like(scores, 1e4).requires_grad_()
    with kernels.using(mode):
        torch.testing.assert_close(loss(scores, labels), 1 - metrics.get("ndcg")(scores, labels))
        value = loss(tied, labels).sum()
        assert value.isfinite()
        assert torch.autograd.grad(value, tied)[0].isfinite().all()


@pytest.mark.parametrize("how", ["l2", "entropic"])
def test_soft_sorting_of_the_least_strength_is_exact(how):
    values = torch.tensor([0.1, 0.4, 0.2])
    options = {"regularization": how, "regularization_strength": 1e-25}
    assert sorting.soft_rank(values, **options).tolist() == pytest.approx([1, 3, 2])
    assert sorting.soft_sort(values, **options).tolist() == pytest.approx([0.1, 0.2, 0.4])
    assert sorting.soft_topk_mask(values, 2, **options).tolist() == pytest.approx([0, 1, 1])
    with pytest.raises(ValueError, match="regularization_strength must be from 1e-30 to"):
        sorting.soft_rank(values, how, 1e-320)


@pytest.mark.parametrize("form", ["permutation", "ranks"])
def test_neuralsort_of_ties_at_a_low_temperature_has_no_nan(form):
    scores = torch.tensor([3.0, 2, 2, 3, 1, 4], dtype=torch.float64)
    relaxation = sorting.get("standardized(base=neuralsort(temperature=1e-20))")
    assert getattr(relaxation, form)(scores).isfinite().all()
