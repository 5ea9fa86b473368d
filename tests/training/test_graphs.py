"""Graphs of passes: what is captured, replayed and left alone, with a stand-in for CUDA's."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from learnable import lists
from torch import nn

from rankgrad.data.batches import Batch
from rankgrad.training import Settings, _gpu, fit, trainer
from rankgrad.training._gpu import Graphs
from rankgrad.training.trainer import Trainer


class Graph:
    """Stands in for a CUDA graph: does again, in the same memory, what was done in between."""

    capturing = None
    replays = 0

    def capture_begin(self, pool, capture_error_mode):
        assert Graph.capturing is None
        Graph.capturing, self.noted = self, []

    def capture_end(self):
        Graph.capturing = None

    def replay(self):
        Graph.replays += 1
        for again in self.noted:
            again()


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    """As much of CUDA as graphs ask for."""
    Graph.capturing, Graph.replays = None, 0
    memory = SimpleNamespace(total_memory=1 << 30)
    stand_ins = {
        "CUDAGraph": Graph,
        "graph_pool_handle": object,
        "empty_cache": lambda: None,
        "synchronize": lambda: None,
        "memory_reserved": lambda: 0,
        "get_device_properties": lambda device: memory,
        "get_per_process_memory_fraction": lambda device: 1.0,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return memory


class Passes:
    """The gradient is the sum of the features, the sums that of the labels."""

    def __init__(self, network):
        self.network, self.short_of_memory = network, lambda capturing: False
        self.done = []

    def __call__(self, batch):
        assert self.network.weight.grad is None
        capturing = Graph.capturing is not None
        gradient, sums = batch.features.sum(0, keepdim=True), batch.labels.sum()[None]
        self.network.weight.grad = gradient
        if self.short_of_memory(capturing):
            raise torch.cuda.OutOfMemoryError("as if")
        self.done.append("captured" if capturing else "plain")
        if capturing:

            def again():
                gradient.copy_(batch.features.sum(0, keepdim=True))
                sums.copy_(batch.labels.sum())

            Graph.capturing.noted.append(again)
        return sums


@pytest.fixture
def network():
    return nn.Linear(3, 1, bias=False)


@pytest.fixture
def passes(network):
    return Passes(network)


def batch(seed, items=4, max_length=4):
    random = torch.Generator().manual_seed(seed)
    return Batch(
        features=torch.randn(items, 3, generator=random),
        labels=torch.rand(items, generator=random),
        mask=None,
        offsets=torch.tensor([0, items]),
        weights=None,
        lists=torch.tensor([0]),
        max_length=max_length,
    )


def check(made, network, passed):
    sums = made(passed)
    torch.testing.assert_close(sums, passed.labels.sum()[None])
    torch.testing.assert_close(network.weight.grad, passed.features.sum(0, keepdim=True))
    network.weight.grad = None  # as an optimizer does after its step


def test_the_second_batch_of_a_size_is_captured_and_all_after_are_replayed(network, passes):
    made = Graphs(passes, network)
    for seed in range(5):
        check(made, network, batch(seed))
    assert passes.done == ["plain", "captured"]
    assert Graph.replays == 4
    assert len(made) == 1


def test_sizes_and_bounds_have_graphs_of_their_own(network, passes):
    made = Graphs(passes, network)
    for seed in range(3):
        for items, max_length in ((4, 4), (5, 5), (4, 8)):
            check(made, network, batch(seed, items, max_length))
    assert len(made) == 3
    assert passes.done == ["plain"] * 3 + ["captured"] * 3


def test_no_more_graphs_than_allowed(network, passes, monkeypatch):
    monkeypatch.setattr(_gpu, "_MAX_GRAPHS", 1)
    made = Graphs(passes, network)
    for seed in range(3):
        for items in (4, 5):
            check(made, network, batch(seed, items))
    assert len(made) == 1
    assert passes.done.count("captured") == 1


@pytest.mark.parametrize(("fraction", "graphs"), [(1.0, 2), (0.5, 1)])
def test_no_more_memory_than_the_process_is_allowed(network, passes, monkeypatch, fraction, graphs):
    taken = iter(range(0, 1 << 40, 1 << 27))  # each graph takes an eighth of all there is
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: next(taken))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: fraction)
    made = Graphs(passes, network)
    for seed in range(3):
        for items in (4, 5, 6):
            check(made, network, batch(seed, items))
    assert len(made) == graphs


def test_without_memory_for_a_graph_it_goes_on_without(network, passes):
    passes.short_of_memory = lambda capturing: capturing
    made = Graphs(passes, network)
    for seed in range(4):
        check(made, network, batch(seed))
    assert len(made) == 0
    assert passes.done == ["plain"] * 4


def test_graphs_are_given_up_for_what_must_be_done_without_them(network, passes):
    made = Graphs(passes, network)
    for seed in range(2):
        check(made, network, batch(seed))
    assert len(made) == 1
    passes.short_of_memory = lambda capturing: len(made) > 0
    check(made, network, batch(2, items=7))
    assert len(made) == 0
    for seed in range(3):
        check(made, network, batch(seed))
    assert len(made) == 0


def test_memory_that_is_short_without_any_graph_is_an_error(network, passes):
    passes.short_of_memory = lambda capturing: True
    with pytest.raises(torch.cuda.OutOfMemoryError, match="as if"):
        Graphs(passes, network)(batch(0))


def test_parameters_that_moved_are_not_left_behind(network, passes):
    made = Graphs(passes, network)
    for seed in range(3):
        check(made, network, batch(seed))
    network.weight.data = network.weight.data.clone()
    before = Graph.replays
    check(made, network, batch(3))
    assert Graph.replays == before
    assert passes.done[-1] == "plain"


def replayable(self, passed, *options):
    """A trainer's passes, and how to do them again."""
    passes, parameters = Trainer.passes_themselves, list(self.ranker.network.parameters())
    sums = passes(self, passed, *options)
    if Graph.capturing is not None:
        gradients = [parameter.grad for parameter in parameters]

        def again():
            for parameter in parameters:
                parameter.grad = None
            sums.copy_(passes(self, passed, *options))
            for parameter, gradient in zip(parameters, gradients, strict=True):
                gradient.copy_(parameter.grad)

        Graph.capturing.noted.append(again)
    return sums


@pytest.mark.parametrize(
    "options",
    [
        {"model": "mlp(hidden=[8])", "loss": "lambdaloss", "batching": "documents"},
        {"model": "mlp(hidden=[8])", "loss": "approx_ndcg", "clip": 0.1, "memory": 0},
        {"model": "context_aware(fc=[8], ff=8, blocks=1, dropout=0.0)", "list_size": 6},
        {"model": "tabm(hidden=[4], members=2, in_list=[rank])", "average": 0.9},
    ],
    ids=["documents", "clipped", "padded", "members"],
)
def test_training_with_graphs_is_training_without(options, monkeypatch):
    settings = Settings(
        **{"loss": "softmax", "device": "cpu", "epochs": 3, "batch_size": 8} | options
    )
    wanted = fit(settings, lists(40, 0), lists(20, 1))
    monkeypatch.setattr(Trainer, "passes_themselves", Trainer._passes, raising=False)
    monkeypatch.setattr(Trainer, "_passes", replayable)
    monkeypatch.setattr(trainer, "capturable", lambda *_: True)
    monkeypatch.setattr(trainer, "own_stream", nullcontext)
    found = fit(settings, lists(40, 0), lists(20, 1))
    assert Graph.replays > 0
    for ours, theirs in zip(found.history, wanted.history, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    for name, tensor in wanted.model.tensors().items():
        torch.testing.assert_close(found.model.tensors()[name], tensor, rtol=1e-4, atol=1e-5)
