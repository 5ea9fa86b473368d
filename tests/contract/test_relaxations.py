"""The contract of relaxations, for every one in the registry."""

import pytest
import torch
from registry import relaxation_classes, sharp

from rankgrad import sorting
from rankgrad.sorting import Exact, Exponential, Gumbel, Linear, NeuralSort, Sinkhorn

every_class = pytest.mark.parametrize("relaxation", relaxation_classes(), ids=lambda c: c.name)


def fresh(relaxation):
    return Gumbel(seed=3, samples=2) if relaxation is Gumbel else relaxation()


@every_class
def test_shape_and_zeros(relaxation, example):
    scores, _, mask = example.padded(10, seed=0)
    made = fresh(relaxation)
    if "permutation" in made.forms:
        rows = made.permutation(scores, mask, 4)
        assert rows.shape == (8, 4, 10)
        assert (rows[~mask[:, None, :].expand_as(rows)] == 0).all()
        past = torch.arange(4) >= mask.sum(-1, keepdim=True)
        assert (rows[past] == 0).all()
        # Rows are distributions; those of a Sinkhorn scaling that ends on columns, nearly.
        torch.testing.assert_close(rows.sum(-1)[~past], torch.ones_like(rows.sum(-1)[~past]))
        assert (rows >= 0).all()
        assert made.permutation(scores, mask, 12).shape == (8, 12, 10)
        assert made.permutation(scores[0][mask[0]]).shape == (5, 5)
    ranks = made.ranks(scores, mask)
    assert (ranks[~mask] == 0).all()
    assert (ranks[mask] >= 1 - 1e-9).all()
    assert (ranks <= mask.sum(-1, keepdim=True) + 1e-9).all()


@every_class
def test_zero_temperature_is_the_exact_sort(relaxation, example):
    scores, _, mask = example.padded(10, seed=1)
    made = sharp(relaxation)
    torch.testing.assert_close(made.ranks(scores, mask), Exact().ranks(scores, mask))
    if "permutation" in made.forms:
        exact = Exact().permutation(scores, mask, 3)
        torch.testing.assert_close(made.permutation(scores, mask, 3), exact)


@every_class
def test_padding_and_order_do_not_matter(relaxation, example):
    made = fresh(relaxation)
    scores, _, mask = example.padded(10, seed=1)
    wide, _, wide_mask = example.padded(15, seed=2)
    if relaxation is not Gumbel:  # its noise goes with the items' order
        order = torch.randperm(10)
        moved = made.ranks(scores[:, order], mask[:, order])
        torch.testing.assert_close(moved, made.ranks(scores, mask)[:, order])
    one, other = fresh(relaxation), fresh(relaxation)
    torch.testing.assert_close(
        one.ranks(scores, mask)[mask], other.ranks(wide, wide_mask)[wide_mask]
    )


@every_class
def test_sorting_values_is_multiplying_by_the_permutation(relaxation, example):
    made = fresh(relaxation)
    if "permutation" not in made.forms:
        with pytest.raises(ValueError, match="gives ranks, not permutation"):
            made.permutation(example.scores)
        return
    scores, _, mask = example.padded(10, seed=1)
    scores = torch.where(mask, scores, 0.0)
    values = torch.randn(8, 2, 10, dtype=torch.float64)
    base = made.base if isinstance(made, Gumbel) else made
    expected = values @ base.permutation(scores, mask, 4).mT
    torch.testing.assert_close(made.sort(values, scores, mask, 4), expected)


@every_class
def test_spec_round_trip(relaxation):
    made = fresh(relaxation)
    assert sorting.get(str(made)) == made
    limit = sharp(relaxation)
    assert sorting.get(str(limit)) == limit


def test_an_item_that_no_rank_wants_is_last():
    ranks = sorting.SmoothI().ranks(torch.tensor([500.0, 500.0, -500.0]))
    assert ranks[2] == 3
    assert sorting.get("smoothi(alpha=1)").ranks(torch.tensor([1e4, 1e4, -1e4, 0.0])).max() <= 4


def test_nested_specs_and_schedules():
    spec = "gumbel(base=sinkhorn(base=neuralsort(temperature=exponential(start=10.0, end=0.1))))"
    made = sorting.get(spec)
    assert made == Gumbel(Sinkhorn(NeuralSort(Exponential(10.0, 0.1))))
    assert made.at(0.5) == Gumbel(Sinkhorn(NeuralSort(1.0)))
    assert str(made) == spec
    assert sorting.get("softsort(temperature=linear(start=1, end=0.5))").temperature == Linear(
        1, 0.5
    )
