"""Invalid values in operations, from callers that do not check them."""

import pytest
import torch

pytest.importorskip("numba")

LENGTHS = [9, 7, 13]
METRIC = ("ndcg", 0, "exponential", 1.0, 0.8)
CASES = [
    *(("through_ranks", (relaxation, 1.3, 1.0, *METRIC)) for relaxation in ("sigmoid", "lapsum")),
    *(
        ("through_ranks", (relaxation, 1.3, 1.0, *METRIC))
        for relaxation in ("fastsort", "fastsort_entropic")
    ),
    *(("through_rows", (relaxation, 0.7, *METRIC)) for relaxation in ("neuralsort", "softsort")),
    *(("through_sinkhorn", (1.0, 3, 1e-6, transposed, *METRIC)) for transposed in (False, True)),
    ("through_smoothi", (1.0, 0.1, "gain", *METRIC)),
    ("pairs", ("ndcg_loss2", 0, 1.0, "exponential", "corrected", 5.0, False)),
    ("pairs", ("ranknet", 3, 1.0, "exponential", "", 0.0, False)),
    ("cross_entropy", ("softmax",)),
    ("listmle", (None,)),
]
FLAWS = {
    "nan score": (0, torch.nan),
    "infinite score": (0, torch.inf),
    "nan label": (1, torch.nan),
    "infinite label": (1, torch.inf),
    "negative label": (1, -1.0),
    "nan weight": (3, torch.nan),
}


def random_lists():
    """Three flat lists, two items of the second padding, and more items after the last."""
    generator = torch.Generator().manual_seed(0)
    lists = sum(LENGTHS) + 4
    scores = torch.randn(lists, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (lists,), generator=generator).double()
    weights = torch.rand(lists, generator=generator, dtype=torch.float64)
    mask = torch.ones(lists, dtype=torch.bool)
    mask[[10, 12]] = False
    for tensor in (scores, labels, weights):
        tensor[~mask] = torch.nan
    return [scores, labels, mask, weights, torch.tensor([0, 9, 16, 29]), 13]


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda case: str(case)[:30])
def test_a_flawed_list_has_no_loss_and_the_others_theirs(name, options, flaw):
    lists, operation = random_lists(), getattr(torch.ops.rankgrad, name)
    values, grad_scores, defined = operation(*lists, *options)
    which, number = FLAWS[flaw]
    lists[which][11] = number
    found = operation(*lists, *options)
    assert found[0].isnan().tolist() == [False, True, False]
    assert found[1][9:16].isnan().tolist() == lists[2][9:16].tolist()
    assert found[2].tolist() == [bool(defined[0]), True, bool(defined[2])]
    others = [0, 2]
    assert found[0][others].equal(values[others])
    assert found[1][:9].equal(grad_scores[:9]) and found[1][16:29].equal(grad_scores[16:29])


@pytest.mark.parametrize("name", ["sigmoid", "lapsum"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_flawed_list_has_no_ranks(name, number):
    scores, _, mask, *_ = (x[:33].reshape(3, 11) for x in random_lists()[:3])
    rest = (mask, name, [0.5])
    wanted = torch.ops.rankgrad.rank(scores, *rest)
    scores[1, 0] = number
    leaf = scores.requires_grad_()
    found = torch.ops.rankgrad.rank(leaf, *rest)
    found.nan_to_num().sum().backward()
    for each in (found.detach(), leaf.grad):
        assert each.isnan().any(1).tolist() == [False, True, False]
        assert each[1][mask[1]].isnan().all()
    assert found[[0, 2]].equal(wanted[[0, 2]])
