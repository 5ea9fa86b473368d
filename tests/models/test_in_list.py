"""Ranks, scores and ties within lists, against counting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankgrad.models._in_list import in_list_columns, list_ranks, list_scores, list_ties


def drawn(lengths: list[int], levels: int, seed: int) -> tuple[Tensor, Tensor]:
    """Lists with padding among their items, which holds anything."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths) + 2
    features = torch.randint(-levels, levels, (len(lengths), width, 3), generator=generator)
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, torch.randperm(width, generator=generator)[:length]] = True
    return features.double().masked_fill(~mask[..., None], float("nan")), mask


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    levels=st.integers(1, 50),
    seed=st.integers(0, 999),
)
def test_ranks_count_the_items_below(lengths: list[int], levels: int, seed: int) -> None:
    features, mask = drawn(lengths, levels, seed)
    found = list_ranks(features, mask)
    for row in range(len(lengths)):
        own = features[row, mask[row]]
        below = (own[None] < own[:, None]).double() + (own[None] == own[:, None]).double() / 2
        expected = (below.mean(1) - 0.5) * 12**0.5
        torch.testing.assert_close(found[row, mask[row]], expected)
    assert (found[~mask] == 0).all()


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    levels=st.integers(1, 50),
    seed=st.integers(0, 999),
)
def test_ranks_are_the_same_to_the_last_bit_however_much_padding_there_is(
    lengths: list[int], levels: int, seed: int
) -> None:
    drawn_features, mask = drawn(lengths, levels, seed)
    features = (drawn_features / 7).float()
    signs = torch.randint(0, 2, features.shape, generator=torch.Generator().manual_seed(seed))
    features = torch.where(features == 0, torch.where(signs > 0, 0.0, -0.0), features)
    padded = torch.nn.functional.pad(features, (0, 0, 0, 40), value=float("nan"))
    more = torch.nn.functional.pad(mask, (0, 40))
    by_items = list_ranks(padded, more)
    torch.testing.assert_close(
        by_items, list_ranks(padded.double(), more).float(), rtol=1e-6, atol=1e-6
    )
    row, width = int(torch.tensor(lengths).argmax()), max(lengths)
    if width:  # alone and without padding, all of it is sorted
        alone = features[row, mask[row]]
        whole = list_ranks(alone, torch.ones(width, dtype=torch.bool))
        assert torch.equal(by_items[row, more[row]], whole)


def test_ranks_of_few_items_among_padding_in_several_dimensions() -> None:
    features, mask = torch.randn(2, 3, 9, 4), torch.zeros(2, 3, 9, dtype=torch.bool)
    mask[:, :, [1, 5, 6]] = True
    found = list_ranks(features, mask)
    assert torch.equal(
        found[mask].view(2, 3, 3, 4),
        list_ranks(features[:, :, [1, 5, 6]], torch.ones(2, 3, 3).bool()),
    )
    assert (found[~mask] == 0).all()


def test_any_increasing_map_of_a_feature_leaves_the_ranks() -> None:
    features, mask = drawn([10, 7], 50, 0)
    torch.testing.assert_close(
        list_ranks((features / 10).exp() * 1e6, mask), list_ranks(features, mask)
    )


def test_ranks_of_long_lists_have_mean_zero_and_deviation_one() -> None:
    found = list_ranks(torch.randn(1000, 2), torch.ones(1000, dtype=torch.bool))
    assert found.mean().item() == pytest.approx(0, abs=1e-5)
    assert found.std().item() == pytest.approx(1, abs=1e-2)


def test_scores_are_deviations_from_the_lists_mean() -> None:
    features, mask = drawn([4, 1, 5], 9, 0)
    found = list_scores(features, mask)
    for row in range(3):
        own = features[row, mask[row]]
        expected = (own - own.mean(0)) / (own.std(0, correction=0) + 0.1)
        torch.testing.assert_close(found[row, mask[row]], expected)
    assert (found[~mask] == 0).all()
    assert (found[1] == 0).all()


def test_scores_of_tied_items_have_a_finite_gradient() -> None:
    features = torch.tensor([[[0.5], [0.5], [0.5]], [[0.5], [1.0], [7.0]]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    list_scores(features, mask)[..., :1, :].sum().backward()
    assert features.grad is not None
    torch.testing.assert_close(features.grad[0, :, 0], torch.tensor([20.0, -10.0, -10.0]) / 3)
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("padding", [0, 40])  # with most of it padding, items alone are sorted
def test_ties_count_other_items_of_the_same_value(padding: int) -> None:
    features, mask = drawn([7, 1, 9, 0], 3, 0)
    features = torch.nn.functional.pad(features.float(), (0, 0, 0, padding), value=1.0)
    mask = torch.nn.functional.pad(mask, (0, padding))
    found = list_ties(features, mask)
    for row in range(4):
        own = features[row, mask[row]]
        others = (own[None] == own[:, None]).float().sum(1) - 1
        torch.testing.assert_close(found[row, mask[row]], 2 * others / (1 + others))
    assert (found[~mask] == 0).all()
    columns = in_list_columns(features, mask, ["ties", "score", "rank"])
    known = [list_ties(features, mask), list_scores(features, mask), list_ranks(features, mask)]
    assert all(torch.equal(*pair) for pair in zip(columns, known, strict=True))


@pytest.mark.parametrize("added", [list_ranks, list_scores, list_ties])
def test_no_items_nothing_added(added: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert added(torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.bool)).shape == (2, 0, 3)
