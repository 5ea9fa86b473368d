"""ListMLE on GPUs, against the eager form in float64."""

import pytest
import torch
from kernel_harness import DEVICE, FlatBatch, assert_matches

from rankgrad.losses import ListMLE

pytest.importorskip("triton")
from rankgrad.kernels.gpu import _listmle as kernel
from rankgrad.kernels.ops import backend_kernel

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def hashes(seed, n):
    """SplitMix64 of the seed and each place, its upper half."""
    whole, found = 2**64 - 1, []
    for place in range(n):
        x = (seed + (place + 1) * 0x9E3779B97F4A7C15) & whole
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & whole
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & whole
        found.append((x ^ (x >> 31)) >> 32)
    return found


class Shuffled(ListMLE):
    """Equal labels in the order of their hashes."""

    def _order(self, lists):
        random = torch.tensor(hashes(self.seed, lists.labels.shape[-1]))
        shuffled = random.argsort(descending=True)
        by_label = lists.labels[:, shuffled].argsort(dim=-1, descending=True, stable=True)
        return shuffled[by_label]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("counted", [4096, 0])
@pytest.mark.parametrize("std", [1.0, 1e4])
def test_in_input_order(masked, counted, std, monkeypatch):
    monkeypatch.setattr(kernel, "COUNTED", counted)
    batch = FlatBatch.random([9, 1, 0, 2, 40], masked=masked, weighted=masked, std=std)
    assert_matches(
        batch,
        backend_kernel("listmle", "gpu")(*batch.arguments, None),
        batch.reference(ListMLE(ties="stable")),
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("counted", [4096, 0])
def test_ties_by_hash(masked, counted, monkeypatch):
    monkeypatch.setattr(kernel, "COUNTED", counted)
    batch = FlatBatch.random([33, 1, 50], masked=masked, grades=1)
    seed = torch.tensor(2**62 + 12345, device=DEVICE)
    assert_matches(
        batch,
        backend_kernel("listmle", "gpu")(*batch.arguments, seed),
        batch.reference(Shuffled(seed=2**62 + 12345)),
    )


def test_in_chunks(monkeypatch):
    monkeypatch.setattr(kernel, "_CHUNK", 32)
    batch = FlatBatch.random([70, 32, 5, 0], std=10.0, weighted=True)
    assert_matches(
        batch,
        backend_kernel("listmle", "gpu")(*batch.arguments, None),
        batch.reference(ListMLE(ties="stable")),
    )
