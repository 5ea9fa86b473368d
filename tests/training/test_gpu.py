"""Training on a GPU: what only such a machine can show."""

import warnings

import numpy as np
import pytest
import torch
from learnable import lists

from rankgrad.data import Dataset
from rankgrad.data.batches import Batches
from rankgrad.losses import losses
from rankgrad.training import Settings, _gpu, fit
from rankgrad.training._gpu import Graphs
from rankgrad.training.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

SMALL = {"epochs": 3, "batch_size": 8, "learning_rate": 0.01, "device": "cuda"}
RUNS = {
    "mlp": {"model": "mlp(hidden=[8], dropout=0.2, batch_norm=true)", "loss": "lambdaloss"},
    "context_aware": {
        "model": "context_aware(fc=[8], ff=8, blocks=1)",
        "loss": "neural_ndcg",
        "list_size": 6,
    },
    "clipped and accumulated": {"loss": "approx_ndcg", "clip": 0.1, "accumulate": 2},
    "without momentum": {"loss": "ranknet", "optimizer": "sgd"},
    "half": {"loss": "softmax", "precision": "bf16-mixed"},
    "read ahead": {"loss": "listmle", "memory": 0},
}
# Looked up when this file is imported, so that a renamed method is an error without a GPU, too.
WATCHED = (
    (Trainer, Trainer._step),
    (Batches, Batches._batch),
    (Batches, Batches._to_device),
)


@pytest.mark.parametrize("run", RUNS)
def test_a_step_does_not_wait_for_the_gpu(run, monkeypatch):
    calls, warm = [], []  # warm: an epoch is over, and all kernels are compiled

    def watched(function):
        def call(self, *arguments):
            # What is read ahead is read by another thread, on the host alone.
            ahead = function.__name__ == "_batch" and not self.resident
            if not warm or ahead:
                return function(self, *arguments)
            calls.append(function.__name__)
            torch.cuda.set_sync_debug_mode("error")
            try:
                return function(self, *arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call

    for owner, function in WATCHED:
        monkeypatch.setattr(owner, function.__name__, watched(function))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        fit(Settings(**SMALL | RUNS[run]), lists(40, 0), lists(20, 1), on_epoch=warm.append)
    assert calls.count("_step") == 2 * 5


@pytest.mark.parametrize(
    "options",
    [
        {"model": "mlp(hidden=[8], batch_norm=true)", "loss": "lambdaloss"},
        {
            "model": "context_aware(fc=[8], ff=8, blocks=1, dropout=0.0)",
            "loss": "neural_ndcg",
            "list_size": 6,
        },
    ],
    ids=["mlp", "context_aware"],
)
def test_a_gpu_learns_what_a_cpu_does_and_gives_the_same_bytes_again(options):
    data = lists(40, 0), lists(20, 1)
    first, again = (fit(Settings(**SMALL | options), *data) for _ in range(2))
    for name, tensor in first.model.tensors().items():
        assert torch.equal(tensor, again.model.tensors()[name])
    cpu = fit(Settings(**SMALL | options | {"device": "cpu"}), *data)
    for one, other in zip(cpu.history, first.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


GRAPHS = {
    "default": {},
    "mlp": {"model": "mlp(hidden=[8, 4], dropout=0.2, batch_norm=true)", "loss": "lambdaloss"},
    "context_aware": {
        "model": "context_aware(fc=[8], ff=8, blocks=1)",
        "loss": "neural_ndcg",
        "list_size": 6,
    },
    "attention": {
        "model": "tabm(hidden=[8], members=4, in_list=[rank], heads=2, periodic=2, scale_rate=6.0)"
    },
    "shuffled": {"model": "mlp(hidden=[8])", "loss": "listmle", "clip": 0.1, "average": 0.9},
    "half": {"model": "mlp(hidden=[8])", "loss": "approx_ndcg", "precision": "bf16-mixed"},
    "mapped": {"model": "smoothi", "loss": "smoothi_ndcg", "memory": 0, "optimizer": "adagrad"},
}


@pytest.mark.parametrize("run", GRAPHS)
def test_graphs_do_what_their_passes_do_and_a_resumed_run_what_a_whole_one_does(
    run, tmp_path, monkeypatch
):
    settings, data = Settings(**SMALL | GRAPHS[run]), (lists(40, 0), lists(20, 1))
    made = []
    initial = Graphs.__init__

    def noted(self, *arguments):
        made.append(self)
        initial(self, *arguments)

    monkeypatch.setattr(Graphs, "__init__", noted)

    def stop(line):
        if line["epoch"] == 2:
            raise RuntimeError("enough")

    whole = fit(settings, *data)
    assert len(made[0]) > 0
    with pytest.raises(RuntimeError, match="enough"):
        fit(settings, *data, folder=tmp_path / "run", on_epoch=stop)
    resumed = fit(settings, *data, folder=tmp_path / "run", resume=True)
    monkeypatch.setattr(Graphs, "__call__", lambda self, batch: self._passes(batch))
    plain = fit(settings, *data)
    for other in (resumed, plain):
        for name, tensor in whole.model.tensors().items():
            assert torch.equal(tensor, other.model.tensors()[name])


@pytest.mark.parametrize(
    "name", [name for name in losses.names() if not name.startswith(("gumbel_", "relaxed"))]
)
def test_every_loss_trains_alike_without_graphs(name):
    options = SMALL | {"loss": name, "model": "mlp(hidden=[8])", "epochs": 2}
    if name == "listmle":
        options["loss"] = "listmle(ties=stable)"
    one, other = (fit(Settings(**options, graphs=on), lists(40, 0)) for on in (True, False))
    for ours, theirs in zip(one.history, other.history, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


@pytest.mark.parametrize(
    "loss", ["ndcg_bound@5", "neuralsort_ce", "neuralsort_ce@3", "approx_spearman"]
)
def test_eager_forms_that_never_wait_are_captured(loss, monkeypatch):
    made, initial = [], Graphs.__init__

    def noted(self, *arguments):
        made.append(self)
        initial(self, *arguments)

    monkeypatch.setattr(Graphs, "__init__", noted)
    fit(Settings(**SMALL | {"loss": loss, "model": "mlp(hidden=[8])"}), lists(40, 0))
    assert len(made[0]) > 0


@pytest.mark.parametrize(
    "loss", ["ndcg_bound", "neuralsort_ce", "neuralsort_ce@10", "lapsum_spearman"]
)
def test_eager_forms_are_captured_in_a_loop_of_ones_own(loss):
    """An operation that waits for the GPU is an error while a graph is captured."""
    loss, generator = losses.get(loss), torch.Generator("cuda").manual_seed(0)
    first, second = torch.randn(2, 8, 40, generator=generator, device="cuda")
    labels = torch.randint(0, 4, (8, 40), generator=generator, device="cuda").float()
    scores = first.clone().requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            loss(scores, labels).backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    scores.grad = None
    with torch.cuda.graph(graph):
        value = loss(scores, labels)
        value.backward()
    scores.data.copy_(second)
    graph.replay()
    expected = second.clone().requires_grad_()
    torch.testing.assert_close(value, loss(expected, labels))
    (gradient,) = torch.autograd.grad(loss(expected, labels), expected)
    torch.testing.assert_close(scores.grad, gradient)


@pytest.mark.parametrize(
    "loss", ["fastsort_ndcg", "lapsum_ndcg", "softsort_ndcg", "pirank_ndcg@10", "lambdaloss"]
)
def test_long_lists_train_alike_without_graphs(loss):
    random = np.random.default_rng(0)
    offsets = np.cumsum([0, *[1100, 900, 9000, 8500, 1500, 1023] * 2])
    features = random.standard_normal((offsets[-1], 4), dtype=np.float32)
    labels = np.clip(features.sum(-1).round(), 0, 4)
    data = Dataset(features, labels, offsets, np.arange(len(offsets) - 1).astype(str))
    options = SMALL | {"loss": loss, "model": "mlp(hidden=[8])", "batch_size": 2}
    # In small steps: lambdaloss jumps where items change places, which rounding suffices for.
    options |= {"optimizer": "sgd", "learning_rate": 1e-4}
    one, other = (fit(Settings(**options, graphs=on), data) for on in (True, False))
    for ours, theirs in zip(one.history, other.history, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


def test_training_goes_on_where_there_is_no_memory_for_a_graph(monkeypatch):
    passes, tried = Trainer._passes, []

    def short_of_memory(self, *arguments):
        sums = passes(self, *arguments)
        if torch.cuda.is_current_stream_capturing():
            tried.append(1)
            raise torch.cuda.OutOfMemoryError("as if")
        return sums

    settings, data = Settings(**SMALL | GRAPHS["mlp"]), lists(40, 0)
    whole = fit(settings, data)
    monkeypatch.setattr(Trainer, "_passes", short_of_memory)
    other = fit(settings, data)
    assert tried == [1]
    for name, tensor in whole.model.tensors().items():
        assert torch.equal(tensor, other.model.tensors()[name])


def test_graphs_free_memory_for_what_must_be_done_without_them(monkeypatch):
    passes, tried, made = Trainer._passes, [], []

    def short_of_memory(self, *arguments):
        capturing = torch.cuda.is_current_stream_capturing()
        if self.graphs is not None and len(self.graphs) and not capturing:
            tried.append(1)
            raise torch.cuda.OutOfMemoryError("as if")
        made.append(capturing)
        return passes(self, *arguments)

    monkeypatch.setattr(Trainer, "_passes", short_of_memory)
    monkeypatch.setattr(_gpu, "_MAX_GRAPHS", 1)  # so that other sizes are done without
    done = fit(Settings(**SMALL | GRAPHS["mlp"] | {"list_size": 5, "batch_size": 3}), lists(40, 0))
    assert done.stopped == "epochs"
    assert made.count(True) == 1
    assert tried == [1]


def test_parameters_that_move_are_followed(monkeypatch):
    step = Trainer._step

    def moving(self, *arguments):
        sums = step(self, *arguments)
        for parameter in self.ranker.network.parameters():
            parameter.data = parameter.data.clone()
        return sums

    settings, data = Settings(**SMALL | GRAPHS["mlp"]), lists(40, 0)
    whole = fit(settings, data)
    monkeypatch.setattr(Trainer, "_step", moving)
    other = fit(settings, data)
    for name, tensor in whole.model.tensors().items():
        assert torch.equal(tensor, other.model.tensors()[name])


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "neural_ndcg(temperature=exponential(start=2.0, end=0.5))"},
        {"loss": "listmle(seed=1)"},
        {"loss": "approx_ndcg", "accumulate": 2},
        {"loss": "approx_ndcg", "graphs": False},
        {"loss": "approx_ndcg", "model": "tabm(hidden=[4], members=2)"},
    ],
)
def test_what_differs_from_step_to_step_is_not_captured(options, monkeypatch):
    monkeypatch.setattr(Graphs, "__call__", None)
    fit(Settings(**SMALL | {"model": "mlp(hidden=[8])"} | options), lists(40, 0))


def test_divergence_is_said_at_the_end_of_the_epoch():
    options = SMALL | {"loss": "mse", "optimizer": "sgd", "learning_rate": 1e30}
    with pytest.raises(ValueError, match=r"diverged in epoch 1.*learning_rate"):
        fit(Settings(**options), lists(40, 0))
