"""Threads are chosen by the work and wait without spinning; benchmarks/threads.py has timings."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from learnable import lists

from rankgrad._threads import available, for_work, passes
from rankgrad.kernels.cpu._compiled import run_in_threads
from rankgrad.training import Settings, fit

SHOW = "print(json.dumps([os.environ.get('OMP_WAIT_POLICY'), os.environ.get('KMP_BLOCKTIME')]))"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["passive", "0"]),
        ({"OMP_WAIT_POLICY": "active"}, ["active", None]),
        ({"GOMP_SPINCOUNT": "100"}, [None, None]),
    ],
)
def test_openmp_waits_passively_unless_the_user_says_otherwise(variables, expected):
    assert environment("import rankgrad, os, json; ", variables) == expected


def test_it_is_too_late_when_pytorch_is_there():
    loaded = "import sys, os, json; sys.modules['torch'] = None; import rankgrad; "
    assert environment(loaded, {}) == [None, None]


def environment(program, variables):
    told = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT", "KMP_LIBRARY")
    clean = {name: value for name, value in os.environ.items() if name not in told}
    clean |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
    done = subprocess.run(
        [sys.executable, "-c", program + SHOW], env=clean, capture_output=True, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture
def three():
    """PyTorch with three threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


SMALL, LARGE = torch.nn.Linear(46, 1), torch.nn.Linear(1000, 1000)


@pytest.mark.usefixtures("three")
def test_small_work_has_one_thread_and_large_work_all():
    with for_work(passes(SMALL, 640)):
        assert (torch.get_num_threads(), available()) == (1, 3)
        with for_work(passes(LARGE, 640)):  # such as validation, all lists at once
            assert (torch.get_num_threads(), available()) == (3, 3)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), for_work(1):
        raise KeyError
    assert (torch.get_num_threads(), available()) == (3, 3)


@pytest.mark.usefixtures("three")
def test_threads_that_begin_meanwhile_are_left_with_all():
    inside, leave = threading.Barrier(3), threading.Event()

    def work(_):
        with for_work(1):
            inside.wait()
            leave.wait()
        return torch.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        with for_work(1):
            found = pool.map(work, range(2))
            inside.wait()
        leave.set()
    assert list(found) == [3, 3]
    assert torch.get_num_threads() == 3
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 3


class Counting(torch.nn.Module):
    """A network that notes the threads of PyTorch and of Python while it scores."""

    def __init__(self):
        super().__init__()
        self.linear, self.seen = torch.nn.Linear(5, 1), set()
        self.before = set(threading.enumerate())

    def forward(self, features, mask):
        new = set(threading.enumerate()) - self.before
        self.seen.add((torch.get_num_threads(), len(new)))
        return self.linear(features).squeeze(-1)


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("memory", [None, 0])
def test_a_small_training_and_a_prediction_have_one_thread(memory):
    data, counting = lists(6, 0), Counting()
    settings = Settings(epochs=1, batch_size=6, device="cpu", memory=memory)
    done = fit(settings, data, data, network=counting)
    done.model.predict(data.features, data.offsets)
    assert counting.seen == {(1, 0)}
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three")
def test_kernels_do_not_wait_for_a_thread_that_gets_no_core(monkeypatch):
    never, block = ThreadPoolExecutor(1), threading.Event()
    never.submit(block.wait)  # so that what is submitted next does not begin
    monkeypatch.setattr("rankgrad.kernels.cpu._compiled._pool", lambda threads: never)
    done = np.zeros(100, int)

    def work(first, last):
        done[first:last] += 1

    unblock = threading.Timer(20, block.set)  # a failure, not a wait without an end
    unblock.start()
    run_in_threads(np.full(100, 1e6), work)
    assert not block.is_set()
    unblock.cancel()
    block.set()
    never.shutdown()
    assert (done == 1).all()


@pytest.mark.usefixtures("three")
def test_kernels_run_each_list_once_and_raise_errors_of_any_thread():
    def fail(first, last):
        if first <= 40 < last:
            raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        run_in_threads(np.full(100, 1e6), fail)
    taken = []
    run_in_threads(np.arange(1e6, 1e6 + 100), lambda first, last: taken.append((first, last)))
    edges = sorted(taken)
    assert edges[0][0] == 0 and edges[-1][1] == 100
    assert all(a[1] == b[0] for a, b in pairwise(edges))
