"""What changes nothing: room after the last list, a bound on lengths in place of the longest, and
to other lists what is no number in one.
"""

import importlib

import pytest
import torch
from slots import DEVICE, Slots

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
        ("rows", "through_rows", (relaxation, 0.7, *metric))
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
    "order": ("_SHORT", "COUNTED"),
    "rows": ("COUNTED",),
    "lapsum": ("COUNTED",),
    "prepare": ("COUNTED",),
    "listmle": ("COUNTED",),
    "smoothi": ("_LONGEST",),
    "cross_entropy": ("_WHOLE",),
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


def twin_of(module, name, long, monkeypatch):
    """The twin, for short lists, or as it does with long ones."""
    # All first: some take a limit over from others as they are imported.
    gpu = {each: importlib.import_module(f"rankgrad.kernels.gpu.{each}") for each in MODULES}
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
def test_room_and_bounds_change_nothing(module, name, options, lengths, long, monkeypatch):
    twin = twin_of(module, name, long, monkeypatch)
    slots = Slots.drawn(lengths, weighted=True)
    scores, labels, _, weights, offsets, longest = slots.given
    more = [
        torch.cat([given, torch.full((9,), value, device=DEVICE)])
        for given, value in ((scores, 0.1), (labels, 1.0), (weights, 1.0))
    ]
    poisoned(monkeypatch)
    exact = twin(scores, labels, None, weights, offsets, longest, *options)
    roomy = twin(more[0], more[1], None, more[2], offsets, longest + 5, *options)
    defined = exact[2]
    assert defined.any()
    torch.testing.assert_close(roomy[2], defined)
    torch.testing.assert_close(roomy[0][defined], exact[0][defined], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(roomy[1][: len(scores)], exact[1], rtol=1e-5, atol=1e-6)


PLACING = [case for case in CASES if "precision" not in case[2]]  # whatever the metric


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
@pytest.mark.parametrize(
    ("module", "name", "options"), PLACING, ids=[f"{case[1]}-{case[2][0]}" for case in PLACING]
)
def test_flaws_stay_in_their_list(module, name, options, long, monkeypatch):
    """Compiled code does not look at values: places must be right whatever they are."""
    twin = twin_of(module, name, long, monkeypatch)
    slots = Slots.drawn([9, 13]).given
    poisoned(monkeypatch, -5)  # as a place in the last list, a slot of another
    wanted = twin(*slots, *options)
    for flaw, (which, value) in FLAWS.items():
        given = list(slots)
        given[which] = given[which].clone()
        given[which][[11, 14, 15]] = value
        values, slopes, defined = twin(*given, *options)
        assert defined[0] == wanted[2][0], flaw
        torch.testing.assert_close(values[0], wanted[0][0])
        torch.testing.assert_close(slopes[:9], wanted[1][:9])
