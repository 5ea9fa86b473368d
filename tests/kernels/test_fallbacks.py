"""Where fused operations stand back, and on which device they run."""

import importlib.util
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rankgrad import kernels, lists
from rankgrad.inputs import as_lists
from rankgrad.kernels import _backends
from rankgrad.kernels.cpu import _isotonic
from rankgrad.losses import RelaxedMetric, Softmax, losses
from rankgrad.sorting import NeuralSort, Sinkhorn

NAMES = (
    "approx_ndcg",
    "fastsort_ndcg",
    "neural_ndcg",
    "pirank_ndcg@3",
    "smoothi_ndcg",
    "listmle(ties=stable)",
    "softmax",
    "listnet",
)


def _lists():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 7, generator=generator)
    labels = torch.randint(0, 4, (3, 7), generator=generator).float()
    return scores, labels, torch.rand(3, 7, generator=generator)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_learned_weights_and_labels_have_their_gradient(name, reduction):
    loss = losses.get(name)
    loss.reduction = reduction
    found = {}
    for mode in ("auto", "eager"):
        tensors = [tensor.clone().requires_grad_() for tensor in _lists()]
        scores, labels, weights = tensors
        with kernels.using(mode):
            value = loss(scores, labels, weights=weights).sum()
        found[mode] = torch.autograd.grad(value, tensors, allow_unused=True)
    assert found["eager"][2].abs().sum() > 0
    for auto, eager in zip(found["auto"], found["eager"], strict=True):
        assert (auto is None) == (eager is None)
        if eager is not None:
            torch.testing.assert_close(auto, eager)


def test_learned_weights_do_not_matter_without_a_graph():
    scores, labels, weights = _lists()
    loss = losses.get("approx_ndcg")
    batch = as_lists(scores, labels, weights=weights.requires_grad_())
    assert loss.kernel_call(batch) is None
    with torch.no_grad():
        assert (loss.kernel_call(batch) is not None) == kernels.ready("through_ranks", scores)


def test_a_subclass_that_says_its_own_values_is_computed_by_them():
    class Doubled(Softmax):
        def per_list(self, lists):
            values, defined = super().per_list(lists)
            return 2 * values, defined

    class Same(Softmax):
        pass

    scores, labels, _ = _lists()
    torch.testing.assert_close(Doubled()(scores, labels), 2 * Softmax()(scores, labels))
    batch = as_lists(scores, labels)
    assert Same().kernel_call(batch) == Softmax().kernel_call(batch)


@dataclass(frozen=True)
class _Steeper(NeuralSort):
    """A relaxation that says it has no kernel."""

    def kernel(self):
        return None

    def _permutation(self, scores, mask, k):
        return super()._permutation(3 * scores, mask, k)

    def cross_entropy(self, scores, labels, mask, k):
        return super().cross_entropy(3 * scores, labels, mask, k)


def test_losses_ask_a_relaxation_inside_them_for_its_kernel():
    scores, labels, _ = _lists()
    scaled = RelaxedMetric("ndcg", Sinkhorn(_Steeper()))
    torch.testing.assert_close(
        scaled(scores, labels), RelaxedMetric("ndcg", "neural")(3 * scores, labels)
    )
    entropy, plain = losses.get("neuralsort_ce"), losses.get("neuralsort_ce")
    entropy.relaxation = _Steeper()
    torch.testing.assert_close(entropy(scores, labels), plain(3 * scores, labels))


@pytest.mark.parametrize("mode", ["auto", "eager"])
@pytest.mark.parametrize("name", ["ranknet", "hinge", "lambdarank", "lambdaloss"])
def test_pairs_refuse_learned_item_weights(name, mode):
    scores, labels, weights = _lists()
    loss = losses.get(name)
    with kernels.using(mode):
        with pytest.raises(ValueError, match="not differentiable with respect to item weights"):
            loss(scores, labels, weights=weights.clone().requires_grad_())
        per_list = torch.ones(3, requires_grad=True)
        loss(scores, labels, weights=per_list).backward()
        assert per_list.grad.abs().sum() > 0
        with torch.no_grad():
            assert loss(scores, labels, weights=weights.clone().requires_grad_()) > 0


def test_offsets_of_a_transform_are_not_cached(monkeypatch):
    monkeypatch.setattr(lists, "_cache", {})
    made = []

    def within(scores):
        made.append(lists.row_offsets(scores)[0])
        return scores.sum()

    torch.func.grad(within)(torch.zeros(3, 7))
    assert made[0].shape == (4,)
    assert not lists._cache
    lists.row_offsets(torch.zeros(3, 7))
    assert len(lists._cache) == 1


def test_registered_operations_run_on_the_device_of_their_scores(monkeypatch):
    pytest.importorskip("numba")
    seen = []
    monkeypatch.setattr(_backends, "on_device", lambda tensor: seen.append(tensor) or nullcontext())
    scores, offsets = torch.tensor([1.0, 2.0]), torch.tensor([0, 2])
    values, _, _ = torch.ops.rankgrad.pointwise(
        scores, scores + 1, None, None, offsets, 2, "mse", 0
    )
    torch.testing.assert_close(values, torch.tensor([1.0]))
    assert len(seen) == 1


def test_loops_compile_where_nothing_can_be_written():
    pytest.importorskip("numba")
    code = (
        f"import sys; sys.path[:0] = {sys.path}\n"
        "from numba.core.caching import CacheImpl; CacheImpl._locator_classes = []\n"
        "from rankgrad.kernels.cpu._compiled import compiled\n"
        "from rankgrad.kernels import pool_adjacent\n"
        "assert compiled(lambda x: x + 1)(1) == 2\n"
        "assert not pool_adjacent.stats.cache_path\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_broken_numba_is_said_and_the_loop_interpreted(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setitem(sys.modules, "rankgrad._compilation", None)  # its import fails
    spec = importlib.util.spec_from_file_location("isotonic_again", _isotonic.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.warns(UserWarning, match="Numba cannot be used, so fastsort is slow: import of"):
        spec.loader.exec_module(module)
    z, w = np.array([[3.0, 3.0, 2.0, 9.0]]), np.array([[2.0, 2.0, 0.0, 0.0]])
    starts = np.full((1, 4), 7)
    module.pool_adjacent(z, w, np.array([2]), False, starts)
    assert starts.tolist() == [[0, 1, 7, 7]]  # equal values stay apart; the rest is left alone
    module.pool_adjacent(z, w, np.array([3]), False, starts)
    assert starts.tolist() == [[0, 0, 0, 7]]


@pytest.mark.parametrize(
    "spec",
    ["approx_precision@1", "pirank_precision@1", "neural_precision@1", "smoothi_precision@1"],
)
def test_a_label_reaches_a_threshold_of_its_own_precision(spec):
    loss = losses.get(f"{spec}(threshold=0.7)")
    scores, labels = torch.tensor([[0.3, 0.1, 0.2]]), torch.tensor([[0.7, 0.0, 0.6]])
    with kernels.using("eager"):
        wanted = loss(scores, labels)
    assert wanted > 0  # an item counts
    torch.testing.assert_close(loss(scores, labels), wanted)
