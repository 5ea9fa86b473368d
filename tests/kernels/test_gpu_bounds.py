"""Items after the last list and a bound on lengths change nothing, nor does NaN in another list."""

import importlib

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch

from rankgrad.kernels.ops import backend_kernel

pytest.importorskip("triton")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of numbers not used

METRICS = [("ndcg", 0, "exponential", 1.0, 0.8), ("precision", 3, "exponential", 1.0, 0.8)]
CASES = [
    *(
        ("ranks", "through_ranks", (relaxation, 1.3, 1.0, *metric))
        for relaxation in ("sigmoid", "lapsum", "fastsort", "fastsort_entropic")
        for metric in METRICS
    ),
    ("ranks", "through_ranks", ("sigmoid", 1.3, 1.0, "ap", 0, "exponential", 1.0, 0.8)),
    ("ranks", "through_ranks", ("lapsum", 1.3, 1.0, "err", 3, "exponential", 4.0, 0.8)),
    ("ranks", "through_ranks", ("fastsort", 1.3, 1.0, "rr", 3, "exponential", 1.0, 0.8)),
    *(
        ("permutation_rows", "through_rows", (relaxation, 0.7, *metric))
        for relaxation in ("neuralsort", "softsort")
        for metric in METRICS
    ),
    *(("smoothi", "through_smoothi", (1.0, 0.1, "gain", *metric)) for metric in METRICS),
    *(
        ("sinkhorn", "through_sinkhorn", (1.0, 3, 1e-6, transposed, *METRICS[0]))
        for transposed in (False, True)
    ),
    *(
        ("pairs", "pairs", (kind, k, 1.0, "exponential", "corrected", 5.0, False))
        for kind, k in (("ranknet", 0), ("hinge", 0), ("lambdarank", 3), ("ndcg_loss2++", 0))
    ),
    *(
        ("pairs", "pairs", (kind, 3, 1.0, "", "corrected", 5.0, False, metric, 1.0))
        for kind, metric in (("lambdarank", "ap"), ("ndcg_loss2", "recall"))
    ),
    ("pointwise", "pointwise", ("rmse", 5.0)),
    *(("cross_entropy", "cross_entropy", (target,)) for target in ("label", "softmax")),
    ("listmle", "listmle", (None,)),
]
#: What tells short lists from long ones, which are sorted or cut into parts.
LIMITS = {
    "segmented_sort": ("_SHORT", "COUNTED"),
    "permutation_rows": ("COUNTED",),
    "lapsum": ("COUNTED",),
    "ideal_gain": ("COUNTED",),
    "listmle": ("COUNTED",),
    "smoothi": ("_MAX_LENGTH",),
    "cross_entropy": ("_SHORT",),
    "pointwise": ("_SPAN",),
    "rank_sums": ("_CHUNK",),
}
MODULES = {*LIMITS, *(module for module, _, _ in CASES)}


FLAWS = {
    "nan scores": (0, float("nan")),
    "infinite scores": (0, float("-inf")),
    "nan labels": (1, float("nan")),
    "negative labels": (1, -1.0),
}


def kernel_of(module, name, long, monkeypatch):
    """The kernel, for short lists, or as it does with long ones."""
    # All first: some take a limit over from others as they are imported.
    gpu = {each: importlib.import_module(f"rankgrad.kernels.gpu._{each}") for each in MODULES}
    if long:
        for each, limits in LIMITS.items():
            for limit in limits:
                monkeypatch.setattr(gpu[each], limit, 4)
    return backend_kernel(name, "gpu")


def poisoned(monkeypatch, number=0):
    """Memory that was not written holds what would be noticed."""
    makers = (torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")
    for owner, name in makers:
        make = getattr(owner, name)

        def filled(*arguments, make=make, **options):
            tensor = make(*arguments, **options)
            return tensor.fill_(torch.nan if tensor.is_floating_point() else number)

        monkeypatch.setattr(owner, name, filled)


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize("lengths", [[13, 0, 5, 9], [6]], ids=str)
@pytest.mark.parametrize(
    ("module", "name", "options"), CASES, ids=[f"{case[1]}-{case[2][0]}" for case in CASES]
)
def test_items_after_the_last_list_and_bounds_change_nothing(
    module, name, options, lengths, long, monkeypatch
):
    kernel = kernel_of(module, name, long, monkeypatch)
    batch = FlatBatch.random(lengths, weighted=True)
    scores, labels, _, weights, offsets, max_length = batch.arguments
    more = [
        torch.cat([arguments, torch.full((9,), value, device=DEVICE)])
        for arguments, value in ((scores, 0.1), (labels, 1.0), (weights, 1.0))
    ]
    poisoned(monkeypatch)
    exact = kernel(scores, labels, None, weights, offsets, max_length, *options)
    longer = kernel(more[0], more[1], None, more[2], offsets, max_length + 5, *options)
    defined = exact[2]
    assert defined.any()
    torch.testing.assert_close(longer[2], defined)
    torch.testing.assert_close(longer[0][defined], exact[0][defined], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(longer[1][: len(scores)], exact[1], rtol=1e-5, atol=1e-6)


PLACING = [case for case in CASES if "precision" not in case[2]]  # whatever the metric


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize(
    ("module", "name", "options"), PLACING, ids=[f"{case[1]}-{case[2][0]}" for case in PLACING]
)
def test_flaws_stay_in_their_list(module, name, options, long, monkeypatch):
    """Compiled code does not look at values: places must be right whatever they are."""
    kernel = kernel_of(module, name, long, monkeypatch)
    batch = FlatBatch.random([9, 13]).arguments
    poisoned(monkeypatch, -5)  # as a place in the last list, a slot of another
    wanted = kernel(*batch, *options)
    for flaw, (which, value) in FLAWS.items():
        arguments = list(batch)
        arguments[which] = arguments[which].clone()
        arguments[which][[11, 14, 15]] = value
        values, grad_scores, defined = kernel(*arguments, *options)
        assert defined[0] == wanted[2][0], flaw
        torch.testing.assert_close(values[0], wanted[0][0])
        torch.testing.assert_close(grad_scores[:9], wanted[1][:9])
