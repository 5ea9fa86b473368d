import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from learnable import lists
from training import data_parallel

from rankgrad.data import store
from rankgrad.training import RunFolder, Settings, _processes, fit
from rankgrad.training._processes import DatasetHandle

TESTS = Path(__file__).resolve().parents[1]


def compare(one, several):
    """The same up to rounding, epoch by epoch and weight by weight."""
    for a, b in zip(one["history"], several["history"], strict=True):
        assert {**a, "seconds": 0} == pytest.approx({**b, "seconds": 0}, rel=1e-4)
    for name, tensor in one["weights"].items():
        np.testing.assert_allclose(several["weights"][name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_two_processes_under_torchrun_train_as_one_does(tmp_path):
    paths = [str(TESTS), str(TESTS.parent / "src")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(TESTS / "training" / "data_parallel.py"), str(tmp_path)),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for name in data_parallel.VARIANTS:
        alone = data_parallel.trained(name)
        compare(alone, first[name])
        assert first[name]["weights"] == second[name]["weights"]
        assert RunFolder.open(tmp_path / name).history == first[name]["history"]
    for part in (first, second):
        assert "is there already" in part["refused"]
    for found in (part[how] for part in (first, second) for how in ("resumed", "resumed later")):
        assert found["stopped"] == ["interrupted", 1, "epochs"]
        for whole, resumed in (found["weights"], found["history"]):
            assert resumed == whole  # to the last bit


@pytest.mark.slow
def test_fit_starts_processes_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    train, vali = data_parallel.data()
    options = data_parallel.SHARED | {"model": "mlp(hidden=[8])"}
    two = fit(Settings(**options, devices=2), train, vali, folder=tmp_path / "run")
    one = fit(Settings(**options), train, vali)
    assert not {"MASTER_PORT", "WORLD_SIZE", "LOCAL_RANK"} & set(os.environ)
    for a, b in zip(one.history, two.history, strict=True):
        assert {**a, "seconds": 0} == pytest.approx({**b, "seconds": 0}, rel=1e-4)
    torch.testing.assert_close(one.model.tensors(), two.model.tensors(), rtol=1e-3, atol=1e-4)
    with pytest.raises(FileExistsError, match="is there already"):
        fit(Settings(**options, devices=2), train, vali, folder=tmp_path / "run")


def refuse(fabric):
    raise FileExistsError("run is there already")


def fail(fabric):
    raise RuntimeError("Connection closed by peer")


@pytest.mark.parametrize("functions", [(refuse, refuse), (fail, refuse), (refuse, fail)])
def test_an_error_in_the_processes_is_raised_here(functions, monkeypatch):
    """What each process does, done in this one: of several errors, the one that explains."""
    monkeypatch.setattr(_processes, "connect", lambda settings: None)
    monkeypatch.setattr(_processes, "follow_parent", lambda: None)
    monkeypatch.setenv("RANK", "0")
    group = _processes._ProcessGroup(Settings(device="cpu", devices=2))
    for function in functions:
        own, other = multiprocessing.Pipe()
        group.connections.append(own)
        _processes._work(other, group.settings, function)
    with pytest.raises(FileExistsError, match="run is there already"):
        group.result()


class CustomError(ValueError):
    """Can be pickled, but not unpickled: its arguments are not those of ``__init__``."""

    def __init__(self, loss, problem):
        super().__init__(f"{loss} {problem}")


def raise_custom_error(fabric):
    raise CustomError("my_loss", "needs two items")


def test_an_error_that_cannot_be_unpickled_is_raised_by_its_words(monkeypatch):
    monkeypatch.setattr(_processes, "connect", lambda settings: None)
    monkeypatch.setattr(_processes, "follow_parent", lambda: None)
    monkeypatch.setenv("RANK", "0")
    group = _processes._ProcessGroup(Settings(device="cpu", devices=1))
    own, other = multiprocessing.Pipe()
    group.connections.append(own)
    _processes._work(other, group.settings, raise_custom_error)
    with pytest.raises(RuntimeError, match=r"CustomError\('my_loss needs two items'\)"):
        group.result()


def test_memory_maps_travel_by_name(tmp_path):
    import pickle

    data = lists(5, 0, features=300)
    store.write(data, tmp_path / "store")
    mapped = store.open(tmp_path / "store")
    sent = pickle.dumps(DatasetHandle(mapped))
    assert len(sent) < data.features.nbytes
    again = pickle.loads(sent)
    assert isinstance(again.features, np.memmap)
    assert again.checksum() == data.checksum()
    part = replace(mapped, categories=(("a", "b"), *[None] * 299), notes=("read",))
    again = pickle.loads(pickle.dumps(DatasetHandle(part)))
    assert (again.categories, again.notes) == (part.categories, part.notes)
    part = mapped.select([2, 3])
    assert pickle.loads(pickle.dumps(DatasetHandle(part))).checksum() == part.checksum()


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_one_process_on_a_cpu_does_without_fabric(monkeypatch, optimizer):
    """And trains as with it, clipping included."""
    data = lists(30)
    settings = Settings(epochs=2, clip=0.01, device="cpu", optimizer=optimizer)
    expected = fit(settings, data, data)
    with monkeypatch.context() as patched:
        patched.setattr(_processes, "SingleProcess", lambda: _fabric(settings))
        by_fabric = fit(settings, data, data)
    for name, tensor in expected.model.tensors().items():
        assert torch.equal(tensor, by_fabric.model.tensors()[name])
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)  # importing it is an error
    fit(settings, data, data)


def _fabric(settings):
    from lightning_fabric import Fabric

    return Fabric(accelerator="cpu", devices=1, precision=settings.precision)


def test_an_interrupt_waits_for_a_destructor():
    class Released:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)
            ended.append(self)

    ended, before = [], signal.signal(signal.SIGINT, _processes._interrupt)
    try:
        Released()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(ended) == 1
