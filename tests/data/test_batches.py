from itertools import pairwise

import numpy as np
import pytest
import torch

from rankgrad.data import Dataset, store
from rankgrad.data.batches import BATCHINGS, Batches
from rankgrad.data.transforms import Pipeline


def make(lengths, seed=0, weights=False):
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    n = int(offsets[-1])
    features = random.random((n, 3), dtype=np.float32)
    features[:, 0] = np.arange(n)  # says which item it is
    return Dataset(
        features,
        random.integers(0, 3, n).astype(np.float32),
        offsets,
        np.arange(len(lengths)).astype(str),
        weights=random.random(n, dtype=np.float32) if weights else None,
    )


LENGTHS = [3, 1, 7, 2, 0, 5, 5, 4, 9, 1]


def items(batch):
    """The items of each list of a batch, by number, whatever the layout."""
    if batch.mask is None:
        ends = batch.offsets.tolist()
        numbers = batch.features[:, 0].long().tolist()
        return [numbers[a:b] for a, b in pairwise(ends)]
    pairs = zip(batch.features[..., 0].long(), batch.mask, strict=True)
    return [row[inside].tolist() for row, inside in pairs]


@pytest.mark.parametrize("memory", [None, 0], ids=["resident", "mapped"])
@pytest.mark.parametrize("flat", [False, True], ids=["padded", "flat"])
@pytest.mark.parametrize("batching", BATCHINGS)
def test_an_epoch_has_every_item_once_with_its_label(batching, flat, memory):
    data = make(LENGTHS, weights=True)
    batches = Batches(data, batching=batching, size=4, documents=12, flat=flat, memory=memory)
    assert batches.resident == (memory is None)
    seen = []
    for batch in batches.epoch(3):
        for at, numbers in zip(batch.lists.tolist(), items(batch), strict=True):
            assert numbers == list(range(data.offsets[at], data.offsets[at + 1]))
        real = slice(None) if batch.mask is None else batch.mask
        numbers = batch.features[..., 0][real].long().numpy()
        np.testing.assert_array_equal(batch.labels[real].numpy(), data.labels[numbers])
        np.testing.assert_array_equal(batch.weights[real].numpy(), data.weights[numbers])
        if batch.mask is not None:
            assert not batch.features[~batch.mask].any()
        seen += batch.lists.tolist()
    assert sorted(seen) == [at for at, length in enumerate(LENGTHS) if length]
    assert batches.steps(3) == len(list(batches.epoch(3)))


@pytest.mark.parametrize("memory", [None, 0], ids=["resident", "mapped"])
@pytest.mark.parametrize("list_size", [None, 30])
@pytest.mark.parametrize("flat", [False, True], ids=["padded", "flat"])
@pytest.mark.parametrize("batching", BATCHINGS)
def test_rounded_batches_are_of_few_sizes_and_hold_the_same_items(
    batching, flat, list_size, memory
):
    data = make([1 + 7 * at % 67 for at in range(200)], weights=True)
    options = {"size": 7, "documents": 300, "list_size": list_size, "memory": memory}
    options |= {"flat": flat, "batching": batching}
    sizes, before = set(), set()
    rounded = Batches(data, rounded=True, **options)
    for exact, batch in zip(Batches(data, **options).epoch(1), rounded.epoch(1), strict=True):
        real = slice(None) if exact.mask is None else exact.mask
        items = exact.labels[real].numel()
        assert batch.mask.sum() == items
        for name in ("features", "labels", "weights"):
            ours, theirs = getattr(batch, name), getattr(exact, name)
            assert torch.equal(ours[batch.mask], theirs[real])
        assert not batch.features[~batch.mask].any()
        assert batch.labels.numel() <= 1.125 * exact.labels.numel() + 8 * flat
        if batching == "documents" and not flat and len(batch) > 1:
            assert batch.labels.numel() <= options["documents"]
        if flat:
            assert torch.equal(batch.offsets, exact.offsets)
            assert batch.mask[:items].all()
            # As many items as lists of that length would fill only if they are such lists.
            even = len(batch.labels) == len(batch) * batch.max_length
            assert not even or len(batch.labels) == items
        assert exact.max_length <= batch.max_length <= max(1.5 * exact.max_length, 1)
        sizes.add((len(batch), batch.labels.shape, batch.max_length))
        before.add((len(exact), exact.labels.shape, exact.max_length))
    assert len(sizes) < len(before) or list_size  # cut lists are of few sizes already


@pytest.mark.parametrize("flat", [False, True], ids=["padded", "flat"])
def test_evaluation_is_never_rounded(flat):
    data = make(LENGTHS)
    options = {"flat": flat, "size": 4}
    both = (Batches(data, rounded=rounded, **options) for rounded in (False, True))
    for plain, same in zip(*(batches.evaluation(12) for batches in both), strict=True):
        assert torch.equal(plain.labels, same.labels)
        assert (same.mask is None) == flat


def test_layouts_and_sources_agree():
    data = make(LENGTHS)
    transform = Pipeline(["standardize"]).fit(data.features)
    options = {"size": 4, "list_size": 3, "transform": transform}
    resident, mapped, flat = (
        list(Batches(data, **options, **more).epoch(1))
        for more in ({}, {"memory": 0}, {"flat": True})
    )
    for a, b, c in zip(resident, mapped, flat, strict=True):
        assert torch.equal(a.features, b.features)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.features[a.mask], c.features)
        assert c.offsets.diff().tolist() == a.mask.sum(-1).tolist()


def test_epochs_differ_and_come_again():
    batches = Batches(make(LENGTHS), size=4)
    orders = [torch.cat([b.lists for b in batches.epoch(e)]).tolist() for e in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    other = Batches(make(LENGTHS), size=4, seed=1)
    assert torch.cat([b.lists for b in other.epoch(0)]).tolist() != orders[0]


def test_an_epoch_can_be_taken_up_in_the_middle():
    batches = Batches(make(LENGTHS), size=2, list_size=3)
    whole, rest = list(batches.epoch(5)), list(batches.epoch(5, start=2))
    assert [items(batch) for batch in rest] == [items(batch) for batch in whole[2:]]


@pytest.mark.parametrize("batching", BATCHINGS)
def test_the_parts_of_all_ranks_are_the_batch(batching):
    batches = Batches(make(LENGTHS), batching=batching, size=4, documents=12, list_size=3)
    parts = [list(batches.epoch(0, rank=rank, ranks=3)) for rank in range(3)]
    for whole, *shares in zip(batches.epoch(0), *parts, strict=True):
        expected = dict(zip(whole.lists.tolist(), items(whole), strict=True))
        found = {}
        for part in shares:
            found |= dict(zip(part.lists.tolist(), items(part), strict=True))
        assert found == expected


def test_list_size_cuts_long_lists_only_anew_each_epoch_and_not_in_evaluation():
    data = make([50, 3, 50])
    batches = Batches(data, size=3, list_size=5)
    by_epoch = []
    for epoch in range(3):
        batch = next(batches.epoch(epoch))
        chosen = dict(zip(batch.lists.tolist(), items(batch), strict=True))
        assert chosen[1] == [50, 51, 52]
        assert len(chosen[0]) == len(set(chosen[0])) == 5
        assert chosen[0] == sorted(chosen[0])
        assert set(chosen[0]) <= set(range(50))
        by_epoch.append(chosen[0])
    assert by_epoch[0] != by_epoch[1] != by_epoch[2]
    assert [len(x) for x in items(next(batches.evaluation()))] == [3, 50, 50]


def test_every_item_of_a_long_list_is_drawn_equally_often():
    batches = Batches(make([10]), list_size=3)
    counts = np.zeros(10)
    for epoch in range(300):
        counts[items(next(batches.epoch(epoch)))[0]] += 1
    assert (abs(counts - 90) < 40).all()


def test_batches_by_documents_stay_within_the_budget_with_little_padding():
    random = np.random.default_rng(0)
    data = make(random.integers(1, 200, 400))
    batches = Batches(data, batching="documents", documents=1000)
    total = 0
    for batch in batches.epoch(0):
        assert batch.mask.numel() <= 1000
        total += batch.mask.numel()
    assert total < 1.1 * data.n_items


def test_a_list_longer_than_the_budget_is_a_batch_by_itself():
    batches = Batches(make([5, 100, 5]), batching="documents", documents=20)
    assert sorted(len(batch) for batch in batches.epoch(0)) == [1, 2]


def test_evaluation_has_no_more_lists_at_a_time_than_a_gpu_runs():
    batches = Batches(make([1] * 70_000))
    assert [len(batch) for batch in batches.evaluation(1 << 20)] == [65_535, 4_465]


def test_evaluation_has_every_list_once_over_all_ranks():
    batches = Batches(make(LENGTHS))
    seen = [
        at
        for rank in range(3)
        for batch in batches.evaluation(12, rank=rank, ranks=3)
        for at in batch.lists.tolist()
    ]
    assert sorted(seen) == list(range(len(LENGTHS)))


def test_memory_maps_are_read_and_errors_of_the_reading_thread_arrive(tmp_path):
    data = make(LENGTHS)
    store.write(data, tmp_path / "store")
    mapped = store.open(tmp_path / "store")
    for memory in (None, 0):
        a = list(Batches(mapped, memory=memory, size=4).epoch(0))
        b = list(Batches(data, size=4).epoch(0))
        assert all(torch.equal(x.features, y.features) for x, y in zip(a, b, strict=True))
    broken = Batches(data, memory=0)
    broken._labels = broken._labels[:1]
    with pytest.raises(IndexError):
        list(broken.epoch(0))


def test_leaving_an_epoch_early_ends_the_reading_thread():
    import threading

    batches = Batches(make([2] * 100), size=1, memory=0).epoch(0)
    next(batches)
    batches.close()
    assert not any(thread.name.startswith("rankgrad-batches") for thread in threading.enumerate())


DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory", [None, 0], ids=["resident", "mapped"])
@pytest.mark.parametrize("list_size", [None, 3, 5])
@pytest.mark.parametrize("flat", [False, True], ids=["padded", "flat"])
def test_batches_are_those_of_a_plain_loop_over_lists(flat, list_size, memory, device):
    data = make(LENGTHS, weights=True)
    batches = Batches(
        data, size=4, list_size=list_size, flat=flat, memory=memory, device=device, seed=9
    )
    draws = np.random.default_rng([9, 2, 1]).random(data.n_items, dtype=np.float32)
    order = np.random.default_rng([9, 2, 0]).permutation(np.flatnonzero(LENGTHS))
    for at, batch in enumerate(batches.epoch(2)):
        lists = order[4 * at : 4 * at + 4]
        assert batch.lists.tolist() == lists.tolist()
        rows = []
        for number in lists:
            own = np.arange(data.offsets[number], data.offsets[number + 1])
            rows.append(np.sort(own[np.argsort(draws[own])[:list_size]]))
        lengths = [len(part) for part in rows]
        assert batch.max_length == max(lengths)
        assert {x.device.type for x in (batch.features, batch.labels, batch.weights)} == {device}
        if flat:
            assert batch.offsets.tolist() == np.cumsum([0, *lengths]).tolist()
            assert batch.offsets.device.type == device
        else:
            assert batch.mask.sum(-1).tolist() == lengths
            assert batch.mask.shape == (len(lists), max(lengths))
        assert items(batch) == [part.tolist() for part in rows]
        real = slice(None) if batch.mask is None else batch.mask
        expected = data.labels[np.concatenate(rows)]
        np.testing.assert_array_equal(batch.labels[real].cpu().numpy(), expected)
