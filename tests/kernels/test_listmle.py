"""ListMLE shuffles ties by its seed alike, however it is computed."""

import pytest
import torch
from kernel_harness import BACKENDS, DEVICE, FlatBatch, assert_matches

from rankgrad import kernels
from rankgrad._padded import Randomness
from rankgrad.kernels.ops import backend_kernel
from rankgrad.losses import ListMLE

# Interpreted, lanes whose result is thrown away may divide by zero or take infinity from itself.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


class DrawnOnce(ListMLE):
    """Every list shuffled by what the first one is: the eager answer is computed list by list."""

    def _order(self, lists):
        self._random = Randomness(self.seed)
        return super()._order(lists)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("backend", BACKENDS)
def test_kernels_shuffle_as_the_eager_form(backend, seed, masked):
    pytest.importorskip("numba" if backend == "cpu" else "triton")
    batch = FlatBatch.random([33, 1, 50], masked=masked, grades=1)
    # The reference draws on the CPU, and generators of devices draw differently.
    random = ListMLE(seed=seed)._random.draw_seed(torch.device("cpu")).to(DEVICE)
    found = backend_kernel("listmle", backend)(*batch.arguments, random)
    assert_matches(batch, found, batch.reference(DrawnOnce(seed=seed)))


def test_one_call_after_another_shuffles_alike_in_both_forms():
    pytest.importorskip("numba" if DEVICE == "cpu" else "triton")
    scores = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    labels = torch.zeros(3, 40, device=DEVICE)
    values = {}
    for mode in ("eager", "auto"):
        loss = ListMLE(seed=11)
        with kernels.using(mode):
            values[mode] = torch.stack([loss(scores, labels) for _ in range(4)])
    torch.testing.assert_close(values["auto"], values["eager"], rtol=1e-5, atol=0)
    assert len(values["eager"].unique()) == 4
