from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankgrad import losses, metrics, sorting
from rankgrad._padded import Randomness, descending, divide, hard_ranks, invert, tie_groups
from rankgrad.inputs import as_lists, check_values, unchecked_lists
from rankgrad.lists import _CachedOffsets, make_lists

lengths = st.lists(st.integers(0, 6), min_size=0, max_size=6)


@given(lengths, st.integers(0, 1000))
def test_flat_and_padded_are_the_same_lists(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    scores = torch.randn(total, generator=generator)
    labels = torch.randint(0, 5, (total,), generator=generator)
    flat = as_lists(
        scores, labels, offsets=torch.tensor([0, *sizes]).cumsum(0), weights=scores.abs()
    )
    assert flat.lengths.tolist() == sizes
    assert torch.equal(flat.scores[flat.mask], scores)
    assert torch.equal(flat.item_weights[flat.mask], scores.abs())
    again = as_lists(flat.scores, flat.labels, flat.mask)
    assert torch.equal(again.scores, flat.scores)
    assert (flat.scores[~flat.mask] == 0).all()


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_order_ranks_and_ties(values):
    scores = torch.tensor([values], dtype=torch.float32)
    mask = torch.ones_like(scores, dtype=torch.bool)
    order = descending(scores, mask)
    ranked = scores.gather(1, order)
    assert (ranked.diff() <= 0).all()
    assert torch.equal(order.gather(1, invert(order)), torch.arange(len(values))[None])
    ranks = hard_ranks(scores, mask)
    assert sorted(ranks[0].tolist()) == list(range(1, len(values) + 1))
    start, end = tie_groups(ranked)
    for position, value in enumerate(ranked[0].tolist()):
        group = ranked[0, start[0, position] : end[0, position]].tolist()
        assert set(group) == {value}
        assert len(group) == values.count(value)


def test_ties_are_broken_against_the_scores():
    scores, mask = torch.zeros(1, 4), torch.tensor([[True, True, True, False]])
    labels = torch.tensor([[2.0, 0.0, 1.0, 0.0]])
    assert hard_ranks(scores, mask, labels).tolist() == [[3, 1, 2, 4]]


@pytest.mark.parametrize(
    "where",
    [
        {"lengths": [2, 3]},
        {"lengths": torch.tensor([2, 3], dtype=torch.int32)},
        {"qid": [7, 7, 3, 3, 3]},
        {"qid": ["b", "b", "a", "a", "a"]},
        {"qid": torch.tensor([0, 0, 1, 1, 1])},
    ],
)
def test_lengths_and_qid_say_what_offsets_say(where):
    scores = torch.tensor([0.5, 0.1, 0.3, 0.9, 0.2], requires_grad=True)
    labels, offsets = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 2, 5])
    ndcg, loss = metrics.get("ndcg"), losses.get("lambdaloss@2")
    for call in (loss, ndcg, loss.gradient_and_hessian, partial(losses.distributed_mean, loss)):
        found, wanted = call(scores, labels, **where), call(scores, labels, offsets=offsets)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    relaxation = sorting.get("softsort")
    found = ndcg.relaxed(relaxation, scores, labels, **where)
    assert torch.equal(found, ndcg.relaxed(relaxation, scores, labels, offsets=offsets))
    found = metrics.evaluate(scores, labels, metrics="ap", **where)
    assert found.mean == metrics.evaluate(scores, labels, metrics="ap", offsets=offsets).mean


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ({"qid": [1, 2, 1]}, "items of qid 1 are not together"),
        ({"qid": [[1, 1, 2]]}, "qid must have one dimension"),
        ({"qid": [1, 1]}, "qid must have one query per item, 3; found 2"),
        ({"qid": ["a", "a", None]}, "qid must be all numbers or all text"),
        ({"lengths": [1.0, 2.0]}, "lengths must be whole numbers"),
        ({"lengths": [4, -1]}, r"lengths must not be negative.*found \[4, -1\]"),
        ({"lengths": [1, 1]}, r"lengths .*add up to the number of items, 3; found \[1, 1\]"),
        ({"weights": [1.0, 2.0]}, r"one per item, \(3,\), or one per list, \(1,\)"),
        ({"lengths": [1, 2], "qid": [1, 2, 2]}, "one of offsets, lengths and qid"),
        ({"lengths": [1, 2], "offsets": [0, 1, 3]}, "one of offsets, lengths and qid"),
        ({"lengths": [1, 2], "mask": [True] * 3}, "either mask"),
    ],
)
def test_lengths_and_qid_that_do_not_fit_are_errors(where, error):
    with pytest.raises(ValueError, match=error):
        losses.get("mse")(torch.zeros(3), torch.zeros(3), **where)


def test_any_array_of_numbers_is_taken():
    scores, labels = np.array([0.5, 0.1, 0.3]), np.array([0.0, 2.0, 1.0])
    ndcg = metrics.get("ndcg")
    expected = ndcg(scores, labels)
    read_only = labels.copy()
    read_only.flags.writeable = False
    assert torch.equal(ndcg(scores[::-1], read_only[::-1]), expected)
    assert torch.equal(ndcg(scores.astype(">f8"), read_only), expected)
    pandas = pytest.importorskip("pandas")
    columns = [pandas.Series(values, index=[7, 8, 9]) for values in (scores, labels)]
    assert torch.equal(ndcg(*columns), expected)


def test_weights_per_list_and_per_item_are_distinguished():
    scores, labels = torch.zeros(2, 3), torch.zeros(2, 3)
    assert as_lists(scores, labels, weights=torch.ones(2)).item_weights is None
    assert as_lists(scores, labels, weights=torch.ones(2, 3)).list_weights is None
    assert as_lists(scores[0], labels[0], weights=2.0).list_weights.tolist() == [2.0]
    flat = as_lists(scores[0], labels[0], offsets=[0, 1, 3], weights=[1.0, 2.0])
    assert flat.list_weights.tolist() == [1.0, 2.0]
    # As many lists as items: per item, unless they come as a column.
    both = {"offsets": [0, 2, 2], "weights": torch.tensor([5.0, 1.0])}
    assert as_lists(scores[0, :2], labels[0, :2], **both).list_weights is None
    both["weights"] = both["weights"][:, None]
    assert as_lists(scores[0, :2], labels[0, :2], **both).list_weights.tolist() == [5.0, 1.0]


def test_whole_numbers_keep_their_order():
    lists = as_lists([1700000000, 1700000001], [0, 1])
    assert lists.scores[0, 0] < lists.scores[0, 1]


def test_division_by_zero_is_zero_with_a_zero_gradient():
    top = torch.tensor([1.0, 1.0], requires_grad=True)
    bottom = torch.tensor([0.0, 2.0], requires_grad=True)
    divide(top, bottom).sum().backward()
    assert top.grad.tolist() == [0.0, 0.5]
    assert bottom.grad.tolist() == [0.0, -0.25]


def test_noise_follows_the_items_not_the_padding():
    tight = torch.tensor([[True, True], [True, False]])
    loose = torch.tensor([[False, True, True], [False, False, True]])
    one, other = Randomness(3).exponential(tight, 2), Randomness(3).exponential(loose, 2)
    assert torch.equal(one[:, tight], other[:, loose])
    assert (one[:, ~tight] == 1).all()


@pytest.mark.parametrize("name", ["lambdarank", "lambdaloss@2", "ranknet@2"])
def test_scores_first_asked_for_without_gradients_still_have_them(name):
    from rankgrad import losses

    scores = torch.tensor([0.1, 0.4, 0.2, 0.3, 0.5], requires_grad=True)
    flat = as_lists(scores, torch.tensor([2, 0, 1, 0, 1]), offsets=torch.tensor([0, 3, 5]))
    values, _ = losses.get(name).values(flat)
    values.sum().backward()
    assert scores.grad.abs().sum() > 0


@pytest.mark.parametrize("offsets", [None, [0, 1, 3]])
def test_scores_first_seen_without_gradients_have_them(offsets):
    scores = torch.randn(3, requires_grad=True)
    lists = as_lists(scores, [0, 1, 2], offsets=offsets)
    with torch.no_grad():
        lists.scores.sum()
    assert lists.scores.requires_grad


@given(lengths, st.integers(0, 1000), st.booleans())
def test_unchecked_lists_are_the_checked_ones(sizes, seed, weighted):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(sum(sizes), generator=generator)
    weights = scores.abs() if weighted else None
    offsets, longest = torch.tensor([0, *sizes]).cumsum(0), max(sizes, default=0)
    flat = as_lists(scores, scores.abs(), offsets=offsets, weights=weights)
    rows = (flat.scores, flat.labels, flat.mask)
    padded = as_lists(*rows, weights=flat.item_weights)
    for checked, unchecked in (
        (
            flat,
            unchecked_lists(
                scores, scores.abs(), offsets=offsets, max_length=longest, weights=weights
            ),
        ),
        (padded, unchecked_lists(*rows, weights=flat.item_weights)),
    ):
        assert (unchecked.shape, unchecked.ragged) == (checked.shape, checked.ragged)
        for found, wanted in zip(unchecked.flat, checked.flat, strict=True):
            same = torch.equal(found, wanted) if torch.is_tensor(wanted) else found == wanted
            assert same


def checked_by(monkeypatch, all_right):
    """Lists of three scores, of which a kernel that checks the values will say this."""
    monkeypatch.setattr("rankgrad.inputs.ready", lambda *_: True)
    monkeypatch.setattr("rankgrad.inputs.ops.check_values", lambda *_: lambda: all_right)
    return lambda scores, labels: check_values(
        make_lists(torch.tensor(scores), torch.tensor(labels))
    )


def test_lists_that_are_right_are_not_checked_again(monkeypatch):
    check = checked_by(monkeypatch, True)
    monkeypatch.setattr("rankgrad.inputs._check_items", None)
    assert check([0.0, 1.0, 2.0], [1.0, 0.0, 2.0]).finite


def test_lists_that_are_not_right_are_checked_closely(monkeypatch):
    check = checked_by(monkeypatch, False)
    with pytest.raises(ValueError, match=r"labels\[1\] = -1"):
        check([0.0, 1.0, 2.0], [1.0, -1.0, 2.0])
    infinite = check([0.0, float("inf"), 2.0], [1.0, 0.0, 2.0])
    assert not infinite.finite and not infinite.large
    large = check([0.0, 1.0, 2.0], [1.0, 0.0, 200.0])
    assert large.finite and large.large


class _Device:
    """Stands in for the streams of a GPU: which one is current, and whether a graph is captured."""

    def __init__(self, monkeypatch):
        self.current, self.capturing, self.waited = "first", False, []
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: _Stream(self, self.current))


class _Stream(str):
    def __new__(cls, device, name):
        made = super().__new__(cls, name)
        made.device = device
        return made

    def wait_event(self, event):
        self.device.waited.append((str(self), event))


class _Event:
    over = False

    def query(self):
        return self.over


def test_offsets_are_read_on_other_streams_once_they_are_there(monkeypatch):
    device, event = _Device(monkeypatch), _Event()
    kept = _CachedOffsets(torch.tensor([0, 2]), event, _Stream(device, "first"))
    assert kept.readable()
    assert device.waited == []  # the stream that made them needs no waiting
    device.current = "second"
    assert kept.readable()
    assert device.waited == [("second", event)]
    device.capturing = True
    assert not kept.readable()  # a graph would not wait
    device.capturing, event.over = False, True
    assert kept.readable()
    device.capturing = True
    assert kept.readable()
    assert len(device.waited) == 1
