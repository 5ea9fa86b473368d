"""Gradient caching against one graph over the same mini-batches and random numbers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
import torch
from torch import nn

from rankgrad import losses
from rankgrad.text import cached_backward, cached_scores

TESTS = Path(__file__).parents[1]
LABELS = torch.arange(13) % 3
OFFSETS = torch.tensor([0, 8, 8, 13])  # one list is empty


def loss(scores):
    return losses.get("neural_ndcg@5")(scores, LABELS, offsets=OFFSETS)


def network(dropout=0.4):
    torch.manual_seed(2)
    layers = (nn.Linear(4, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 1), nn.Flatten(0))
    return nn.Sequential(*layers)


def rows():
    return torch.randn(13, 4, generator=torch.Generator().manual_seed(1)).split(4)


def gradients(module):
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    return found


def one_graph(module, batches, scale=1.0, **autocast):
    """The gradients of one graph, the loss, and a random number drawn afterwards."""
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16, **{"enabled": False, **autocast}):
        value = loss(torch.cat([module(batch) for batch in batches]))
    (scale * value).backward()
    return gradients(module), value.detach(), torch.rand(1)


def cached(module, batches, form, scale=1.0, **autocast):
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16, **{"enabled": False, **autocast}):
        if form == "backward":
            value = cached_backward(module, batches, loss, scale=scale)
        else:
            value = loss(cached_scores(module, batches))
    if form == "scores":  # as trainers do, outside autocast
        (scale * value).backward()
    return gradients(module), value.detach(), torch.rand(1)


def assert_same(found, wanted, tolerance):
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    assert any(grad.abs().max() > 1e-3 for grad in wanted[0].values())


both_forms = pytest.mark.parametrize("form", ["backward", "scores"])


@both_forms
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["encoder", "qwen3", "llama"])
def test_equals_one_graph(kind, dropout, form):
    scorer = tiny_models.scorer(kind, dropout)
    batches = scorer.encode("word1 word2", tiny_models.texts(13), batch_size=4)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        scorer.to(dtype)
        assert_same(cached(scorer, batches, form), one_graph(scorer, batches), tolerance)


@both_forms
@pytest.mark.parametrize("kind", ["encoder", "qwen3"])
def test_under_autocast(kind, form):
    scorer = tiny_models.scorer(kind, 0.3)
    batches = scorer.encode("word1 word2", tiny_models.texts(13), batch_size=4)
    # Weights are cast for each mini-batch, so that one graph sums gradients in float32, too.
    wanted = one_graph(scorer, batches, enabled=True, cache_enabled=False)
    plain = one_graph(scorer, batches)
    assert not torch.equal(wanted[1], plain[1])
    assert_same(cached(scorer, batches, form, enabled=True), wanted, 1e-5)


@both_forms
def test_accumulation_adds_scaled_gradients(form):
    module, batches = network(), rows()
    wanted = one_graph(module, batches, 0.25)
    first = cached(module, batches, form, 0.25)
    assert_same(first, wanted, 1e-5)
    module.zero_grad()
    torch.manual_seed(7)
    for _ in range(2):
        cached_backward(module, batches, loss, scale=0.25)
    both = gradients(module)
    torch.manual_seed(7)
    for _ in range(2):
        (0.25 * loss(torch.cat([module(batch) for batch in batches]))).backward()
    torch.testing.assert_close(both, gradients(module), rtol=1e-5, atol=1e-6)


@both_forms
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(form, reentrant):
    scorer = tiny_models.scorer("encoder", 0.3)
    batches = scorer.encode("word1 word2", tiny_models.texts(13), batch_size=4)
    wanted = one_graph(scorer, batches)
    scorer.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert_same(cached(scorer, batches, form), wanted, 1e-5)


def test_a_compiled_encoder():
    module, batches = network(), rows()
    compiled = torch.compile(module, backend="aot_eager")
    wanted = one_graph(compiled, batches)
    assert_same(cached(compiled, batches, "backward"), wanted, 1e-5)


@both_forms
def test_frozen_parameters(form):
    module, batches = network(), rows()
    module[0].requires_grad_(False)
    found = cached(module, batches, form)
    assert_same(found, one_graph(module, batches), 1e-5)
    assert set(found[0]) == {"3.weight", "3.bias"}
    module.requires_grad_(False)
    assert not cached_scores(module, batches).requires_grad
    with pytest.raises(RuntimeError, match="every parameter is frozen"):
        cached_backward(module, batches, loss)


def test_without_gradients_it_is_the_plain_loss():
    module, batches = network(), rows()
    with torch.no_grad():
        torch.manual_seed(7)
        wanted = loss(torch.cat([module(batch) for batch in batches]))
        for form in (cached_backward, lambda *inputs: inputs[2](cached_scores(*inputs[:2]))):
            torch.manual_seed(7)
            assert torch.equal(form(module, batches, loss), wanted)
    assert gradients(module) == {}


@pytest.mark.parametrize(("size", "calls"), [(13, 1), (4, 7)])
def test_the_last_mini_batch_is_scored_once(size, calls):
    module, seen = network(), []

    def score(batch):
        seen.append(len(batch))
        return module(batch)

    cached_backward(score, torch.cat(rows()).split(size), loss)
    assert len(seen) == calls


def test_parameters_of_the_loss_get_gradients():
    module, batches, factor = network(), rows(), torch.ones((), requires_grad=True)

    def learned(scores):
        return loss(scores * factor)

    torch.manual_seed(7)
    cached_backward(module, batches, learned)
    found, factor.grad = factor.grad, None
    torch.manual_seed(7)
    learned(torch.cat([module(batch) for batch in batches])).backward()
    torch.testing.assert_close(found, factor.grad)


class Saved:
    """A tensor saved for a backward pass. Counts those that exist."""

    alive = most = 0

    def __init__(self, tensor):
        self.tensor = tensor
        Saved.alive += tensor.numel()
        Saved.most = max(Saved.most, Saved.alive)

    def __del__(self):
        Saved.alive -= self.tensor.numel()


@both_forms
def test_saved_tensors_do_not_grow_with_the_list(form):
    module = network()

    def peak(items):
        Saved.alive = Saved.most = 0
        labels = torch.arange(items) % 3

        def softmax(scores):
            return losses.get("softmax")(scores, labels)

        batches = torch.randn(items, 4).split(8)

        def score(batch):
            with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
                return module(batch)

        if form == "backward":
            cached_backward(score, batches, softmax)
        else:
            softmax(cached_scores(score, batches)).backward()
        return Saved.most

    assert peak(160) == peak(16) > 0


def test_wrong_use_is_named():
    module, batches = network(), rows()
    with pytest.raises(ValueError, match="batches is empty"):
        cached_backward(module, [], loss)
    with pytest.raises(ValueError, match=r"shape \[m\], found \[4, 1\]"):
        cached_backward(lambda batch: module(batch)[:, None], batches, loss)
    factor = torch.ones((), requires_grad=True)
    with pytest.raises(RuntimeError, match="does not depend on the scores"):
        cached_backward(module, batches, lambda scores: factor * 2)
    value = loss(cached_scores(module, batches))
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward runs once"):
        value.backward()
    sizes = iter([4, 4, 4, 1, 3])
    with pytest.raises(RuntimeError, match="mini-batch 0 had 4 scores"):
        cached_backward(lambda batch: module(batch)[: next(sizes)], batches, loss)


def test_two_processes(tmp_path):
    """Lists of unequal numbers of mini-batches: gradients are the mean of those of one graph."""
    program = str(TESTS / "text" / "ddp.py")
    started = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {"PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    for name in ("backward", "scores", "accumulated"):
        found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
        for rank in range(2):
            torch.testing.assert_close(found[rank][name], found[0][name], rtol=0, atol=0)
            torch.testing.assert_close(found[rank][name], found[0][f"wanted {name}"])
        assert [own["synchronized"] for own in found] == [1, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("autocast", [False, True])
@both_forms
def test_batches_moved_by_the_scorer(form, autocast):
    """Inputs are still on the CPU when the random state is saved; dropout draws on the GPU."""
    scorer = tiny_models.scorer("encoder", 0.3).cuda()
    batches = scorer.encode("word1 word2", tiny_models.texts(13), batch_size=4)
    labels = LABELS.cuda()

    def run(cache):
        torch.manual_seed(7)
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast, cache_enabled=cache):
            if not cache:
                value = loss_on_gpu(torch.cat([scorer(batch) for batch in batches]))
            elif form == "backward":
                cached_backward(scorer, batches, loss_on_gpu)
                return gradients(scorer)
            else:
                value = loss_on_gpu(cached_scores(scorer, batches))
        value.backward()
        return gradients(scorer)

    def loss_on_gpu(scores):
        return losses.get("neural_ndcg@5")(scores, labels, offsets=OFFSETS.cuda())

    torch.testing.assert_close(run(True), run(False), rtol=1e-5, atol=1e-5)
