"""Exact metrics on GPUs, against the eager forms in float64."""

import itertools
import warnings
from dataclasses import replace

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch
from registry import metrics_with_kernel

from rankgrad import kernels, metrics
from rankgrad.inputs import as_lists
from rankgrad.lists import FlatLists
from rankgrad.metrics._base import _exact_options, exact_values

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _metrics as kernel
from rankgrad.kernels.gpu import _segmented_sort

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def exact_metric(metric):
    """The metric as the kernel takes it."""
    few = torch.zeros(1, 2)
    return _exact_options(metric, as_lists(few, few))


OPTIONS = {
    "ndcg": ["gain=linear"],
    "dcg": ["gain=linear"],
    "rbp": ["persistence=0.97, threshold=2.0"],
    "err": ["max_grade=2.0"],
    "arp": [],
    **{name: ["threshold=2.0"] for name in ("ap", "hits", "precision", "recall", "rr")},
}
SPECS = [
    f"{name}{k}({option}{', ' if option else ''}ties={ties})"
    for name in metrics_with_kernel()
    for k, option, ties in itertools.product(
        ("", "@3", "@100"), ("", *OPTIONS[name]), ("average", "stable")
    )
]
#: Each metric as it is and cut off.
SOME = [name for each in metrics_with_kernel() for name in (each, f"{each}@20")]


def some(specs, part):
    """Interpreted, kernels take their time: then each case takes one part in three."""
    return specs if DEVICE == "cuda" else specs[part % 3 :: 3]


def eager(batch, chosen):
    """The eager values of each list in float64; NaN where nothing counts."""
    real = batch.lists()
    scores, labels, weights = (
        None if batch.weights is None and at == 2 else torch.cat([each[at] for each in real])
        for at in range(3)
    )
    offsets = torch.tensor([0, *(len(each[0]) for each in real)]).cumsum(0)
    with kernels.using("eager"):
        found = metrics.evaluate(scores, labels, offsets=offsets, weights=weights, metrics=chosen)
    return list(found.per_list.values())


def check(batch, specs):
    """Values within 1e-6 of the eager form, list by list."""
    chosen = [replace(metrics.get(spec), empty="skip") for spec in specs]
    values, relevant = kernel.exact_metrics(
        FlatLists(*batch.arguments), [exact_metric(each) for each in chosen]
    )
    assert values.dtype == torch.float32
    for metric, row, counts, right in zip(
        chosen, values.double().cpu(), relevant.cpu(), eager(batch, chosen), strict=True
    ):
        assert counts.tolist() == (~right.isnan()).tolist(), metric
        torch.testing.assert_close(
            row, right.nan_to_num(0.0), rtol=1e-6, atol=1e-6, msg=lambda m, of=metric: f"{of}: {m}"
        )


@pytest.mark.parametrize(
    ("part", "ties", "padded"),
    [(0, True, True), (1, True, True), (2, True, True), (0, True, False), (1, False, False)],
)
def test_all_options(part, ties, padded):
    batch = FlatBatch.random([5, 0], ties=ties, masked=padded, weighted=padded)
    check(batch, some(SPECS, part))


@pytest.mark.parametrize("length", [1, 2, 5, 33, 130])
@pytest.mark.parametrize("ties", [False, True], ids=["apart", "tied"])
def test_lengths(length, ties):
    batch = FlatBatch.random([length], ties=ties, weighted=length % 2 == 0, seed=1)
    check(batch, SOME if ties else some(SPECS, length))


def test_walks_of_many_steps(monkeypatch):
    monkeypatch.setattr(kernel, "_SPAN", 32)
    monkeypatch.setattr(kernel, "_TILE", 32)
    batch = FlatBatch.random([75], ties=True, masked=True, weighted=True)
    batch.labels[batch.labels < 4] = 0.0  # the first relevant item is far down
    check(batch, SOME)


@pytest.mark.parametrize("padded", [False, True], ids=["even", "padded"])
def test_sorted_instead_of_counted(padded, monkeypatch):
    monkeypatch.setattr(_segmented_sort, "_SHORT", 0)
    lengths = [7, 12] if padded else [12, 12]
    check(FlatBatch.random(lengths, ties=True, masked=padded, weighted=padded), some(SOME, 0))


def test_a_constant_score(monkeypatch):
    monkeypatch.setattr(kernel, "_SPAN", 32)
    monkeypatch.setattr(kernel, "_TILE", 32)
    batch = FlatBatch.random([40])
    batch.scores.fill_(0.25)
    batch.labels.zero_()[[7, 30]] = torch.tensor([1.0, 3.0], device=DEVICE)
    check(batch, SOME)


def test_infinite_scores_are_ranked():
    lowest = torch.finfo(torch.float32).min
    batch = FlatBatch.random([4])
    batch.scores = torch.tensor([float("-inf"), float("inf"), 0.0, lowest], device=DEVICE)
    batch.labels = torch.tensor([1.0, 0.0, 1.0, 0.0], device=DEVICE)
    values, _ = kernel.exact_metrics(
        FlatLists(*batch.arguments),
        [exact_metric(metrics.get(spec)) for spec in ("ndcg", "ndcg(ties=stable)")],
    )
    with kernels.using("eager"):
        arguments = batch.scores.cpu(), batch.labels.cpu()
        right = [metrics.get(spec)(*arguments) for spec in ("ndcg", "ndcg(ties=stable)")]
    torch.testing.assert_close(values.cpu(), torch.stack(right))


def test_large_labels():
    """ERR takes the largest label as its top grade: such an item satisfies for certain.

    Labels over 120 are an error for it in float32 (tests/test_bad_input.py).
    """
    batch = FlatBatch.random([3])
    batch.labels = torch.tensor([1.0, 120.0, 110.0], device=DEVICE)
    check(batch, ["err", "err(ties=stable)"])
    batch.labels = torch.tensor([1.0, 2000.0, 1990.0], device=DEVICE)
    check(batch, ["ndcg(gain=linear)"])


def test_small_labels_of_nearly_equal_gain():
    batch = FlatBatch.random([40], weighted=True)
    labels = torch.linspace(1e-5, 1.1e-4, 40, dtype=torch.float64)
    weights = 1e-4 / labels * torch.linspace(1.0, 1.01, 40).flip(0)
    batch.labels, batch.weights = labels.float().to(DEVICE), weights.float().to(DEVICE)
    check(batch, ["ndcg", "ndcg@3"])


@pytest.mark.skipif(DEVICE == "cpu", reason="no GPU here")
def test_a_gpu_is_not_waited_for():
    batch = FlatBatch.random([30, 7, 0, 3], ties=True, weighted=True)
    chosen = [metrics.get(spec) for spec in SPECS]
    lists = as_lists(batch.scores, batch.labels, offsets=batch.offsets.cpu(), weights=batch.weights)
    before = exact_values(chosen, lists)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
        try:
            again = exact_values(chosen, lists)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for one, other in zip(before, again, strict=True):
        assert one[0].equal(other[0]) and one[1].equal(other[1])


@pytest.mark.skipif(DEVICE == "cpu", reason="no GPU here")
def test_a_label_too_large_for_its_gain_is_an_error_still():
    arguments = torch.tensor([0.3, 0.2], device=DEVICE), torch.tensor([2000.0, 1.0], device=DEVICE)
    for name in ("ndcg", "dcg", "err"):
        with pytest.raises(ValueError, match="too large for the gain"):
            metrics.get(name)(*arguments)


@pytest.mark.parametrize("offsets", [[0], [0, 0], [0, 0, 0]])
def test_lists_of_nothing(offsets):
    nothing = torch.empty(0, device=DEVICE)
    values, relevant = kernel.exact_metrics(
        FlatLists(nothing, nothing, None, None, torch.tensor(offsets, device=DEVICE), 0),
        [exact_metric(metrics.get("ndcg"))],
    )  # fmt: skip
    assert values.tolist() == [[0.0] * (len(offsets) - 1)]
    assert not relevant.any() and relevant.shape == values.shape


def test_kernels_are_compiled_once_for_any_number_of_items():
    """Triton compiles a kernel again for addresses that are no multiples of 16 bytes."""
    scores, labels, _, _, offsets, max_length = FlatBatch.random([5, 2]).arguments
    by_score = _segmented_sort.sort_lists(scores, None, offsets, max_length)
    batch = kernel._Batch(labels, None, None, offsets, max_length, by_score)
    rows = [*batch.tie_groups(averaged=True), *batch.scratch]
    assert [row.data_ptr() % 16 for row in rows] == [0, 0, 0, 0]
