"""Ranks within lists, against counting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankgrad.models.in_list import list_ranks, list_scores


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    levels=st.integers(1, 50),
    seed=st.integers(0, 999),
)
def test_they_count_the_items_below(lengths: list[int], levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randint(-levels, levels, (sum(lengths), 3), generator=generator).double()
    lists = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    found = list_ranks(items, lists)
    for number in range(len(lengths)):
        own = items[lists == number]
        below = (own[None] < own[:, None]).double() + (own[None] == own[:, None]).double() / 2
        expected = (below.mean(1) - 0.5) * 12**0.5
        torch.testing.assert_close(found[lists == number], expected)


def test_any_increasing_map_of_a_feature_leaves_them() -> None:
    items = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)).double()
    lists = torch.arange(40) // 10
    torch.testing.assert_close(list_ranks(items.exp() * 1e6, lists), list_ranks(items, lists))


def test_long_lists_have_mean_zero_and_deviation_one() -> None:
    found = list_ranks(torch.randn(1000, 2), torch.zeros(1000, dtype=torch.int64))
    assert found.mean().item() == pytest.approx(0, abs=1e-5)
    assert found.std().item() == pytest.approx(1, abs=1e-2)


def test_scores_are_deviations_from_the_lists_mean() -> None:
    items = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)).double()
    lists = torch.tensor([2, 2, 2, 2, 5, 7, 7, 7, 7])
    found = list_scores(items, lists)
    for number in (2, 5, 7):
        own = items[lists == number]
        expected = (own - own.mean(0)) / (own.std(0, correction=0) + 0.1)
        torch.testing.assert_close(found[lists == number], expected)
    assert (found[4] == 0).all()


@pytest.mark.parametrize("added", [list_ranks, list_scores])
def test_no_items_nothing_added(added: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert added(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0, 3)
