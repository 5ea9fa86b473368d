"""Replayed calls: the same launches on other memory give the same bytes."""

import ctypes
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("numba")  # where fused losses are asked what they are, on CPUs

from kernel_harness import FlatBatch
from registry import loss_specs
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime.jit import JITFunction

from rankgrad import losses
from rankgrad.inputs import unchecked_lists
from rankgrad.kernels import _backends, gpu, ops
from rankgrad.kernels.gpu import _launch_cache, _launcher

SOURCES = sorted(Path(gpu.__path__[0]).glob("*.py"))
LAUNCHED = re.compile(r"^@cached_launch\n@triton\.jit[^\n]*\ndef (\w+)\(", re.MULTILINE)
SPECS = [
    "lambdaloss@5",
    "approx_ndcg",
    "listmle(seed=1)",
    "pirank_ndcg@3",
    "smoothi_ndcg",
    "lapsum_ndcg@5",
    "softsort_precision",
]
FORMS = [{}, {"masked": True, "weighted": True}]

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run interpreted here"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, of numbers not used
]


class Memory:
    """Tensors found by an address inside them."""

    def __init__(self):
        self.tensors = []

    def at(self, address, dtype):
        if address == 0:
            return torch.empty(0, dtype=dtype)
        for tensor in reversed(self.tensors):
            end = tensor.data_ptr() + tensor.nbytes
            if tensor.data_ptr() <= address < end:
                held = (ctypes.c_byte * (end - address)).from_address(address)
                size = (end - address) // dtype.itemsize * dtype.itemsize
                return torch.frombuffer(memoryview(held)[:size], dtype=dtype)
        raise AssertionError("an address in no tensor")


class Compiled:
    """An interpreted kernel that takes addresses, as compiled ones do; counts its launches."""

    function, packed_metadata = None, None
    launches = 0

    def __init__(self, kernel, dtypes, memory):
        self.kernel, self.dtypes, self.memory = kernel, dtypes, memory

    def run(self, x, y, z, *rest):
        Compiled.launches += 1
        arguments = list(rest[6:])
        with _disable_current_modes():  # what interpreting takes is no part of the call
            for at, dtype in self.dtypes.items():
                arguments[at] = self.memory.at(arguments[at], dtype)
            self.kernel[(x, y, z)](*arguments)


class Jit:
    """An interpreted kernel in the place of one that is compiled when it is first launched."""

    pre_run_hooks = ()

    def __init__(self, kernel, memory):
        self.kernel, self.memory = kernel, memory
        self.params = JITFunction(kernel.fn).params

    def __getitem__(self, grid):
        def first(*arguments, **options):
            with _disable_current_modes():
                self.kernel[grid](*arguments, **options)
            tensors = {at: x.dtype for at, x in enumerate(arguments) if isinstance(x, torch.Tensor)}
            return Compiled(self.kernel, tensors, self.memory)

        return first


def has_gpu_kernel(name):
    return name not in ops.LOSSES or _backends.has_kernel("cuda", ops.LOSSES[name][0], name)


@pytest.fixture
def memory(monkeypatch):
    """Kernels as on a GPU, each launch by addresses."""
    memory = Memory()
    active = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda index: None)
    for module in (_launcher, _launch_cache):
        monkeypatch.setattr(module, "driver", SimpleNamespace(active=active))
    for each in pkgutil.iter_modules(gpu.__path__):
        module = importlib.import_module(f"rankgrad.kernels.gpu.{each.name}")
        for name in LAUNCHED.findall(Path(module.__file__).read_text()):
            kernel = _launcher.CachedLauncher(Jit(getattr(module, name), memory))
            monkeypatch.setattr(module, name, kernel)
    for (name, device), backend in list(ops.backends.items()):
        if device == "cuda" and name != "check_values" and has_gpu_kernel(name):
            found = getattr(importlib.import_module(backend.module), name)
            found = _backends._grouped(found, name) if name in ops.LOSSES else found
            monkeypatch.setitem(ops.backends, (name, "cpu"), SimpleNamespace(kernel=found))
    key_of, allocator = _launcher.Plan.key_of, _launch_cache.Allocation.allocator

    def key_of_known(plan, arguments):
        memory.tensors += [arguments[at] for at in plan.tensors]
        return key_of(plan, arguments)

    monkeypatch.setattr(_launcher.Plan, "key_of", key_of_known)

    def remembered(allocation, device):
        make = allocator(allocation, device)

        def made():
            memory.tensors.append(make())
            if not allocation.zeroed and allocation.dtype.is_floating_point:
                memory.tensors[-1].fill_(float("nan"))
            return memory.tensors[-1]

        return made

    monkeypatch.setattr(_launch_cache.Allocation, "allocator", remembered)
    return memory


def calls(spec, **options):
    """The arguments of a loss on some batches of one shape."""
    loss = losses.get(spec)
    for seed in range(4):
        arguments = FlatBatch.random([5, 12], seed=seed, ties=seed == 2, **options).arguments
        scores, labels, mask, weights, offsets, max_length = arguments
        lists = unchecked_lists(scores, labels, offsets=offsets, max_length=max_length)
        found = loss.kernel(lists)
        rest = (labels, mask, weights, offsets, max_length)
        yield scores, found.name, True, None, *rest, *found.options


@pytest.mark.parametrize(
    ("spec", "options"), [(spec, FORMS[at % 2]) for at, spec in enumerate(SPECS)]
)
def test_replayed_losses_give_the_same_bytes(memory, spec, options):
    cached = _launch_cache.LaunchCache(ops._reduced)
    for arguments in calls(spec, **options):
        memory.tensors += [x for x in arguments if isinstance(x, torch.Tensor)]
        found = cached(*arguments)
    assert len(cached.calls) == 1
    assert None not in cached.calls.values()
    wanted = ops._reduced(*arguments)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and one.equal(other)


class Unrun(Jit):
    """A kernel that is launched and does nothing."""

    def __getitem__(self, grid):
        nothing = SimpleNamespace(function=None, packed_metadata=None, run=lambda *_: None)
        return lambda *arguments, **options: nothing


@pytest.mark.parametrize("form", FORMS)
def test_every_fused_loss_is_replayed(memory, monkeypatch, form):
    """At the size that calls are timed at: nothing but allocations and launches is done there."""
    monkeypatch.setattr(Jit, "__getitem__", Unrun.__getitem__)
    scores, *others, max_length = FlatBatch.random([240] * 64, **form).arguments
    lists = unchecked_lists(scores, others[0], offsets=others[-1], max_length=max_length)
    recorded = {}
    for spec in loss_specs():
        found = losses.get(spec).kernel(lists)
        if found is None or not has_gpu_kernel(found.name):
            continue
        cached = _launch_cache.LaunchCache(ops._reduced)
        for _ in range(3):
            cached(scores, found.name, True, None, *others, max_length, *found.options)
        (recorded[spec],) = cached.calls.values()
    assert {"fastsort_ndcg", "listnet", "softmax", "softsort_ndcg", "pirank_ndcg"} <= set(recorded)
    assert [spec for spec, call in recorded.items() if call is None] == []


def test_every_kernel_that_is_launched_has_a_cached_launcher():
    """A launch of another kind would not be recorded."""
    for source in SOURCES:
        if source.stem == "_pair_derivatives":
            continue  # called by boosting only, once a round
        text = source.read_text()
        kernels = set(re.findall(r"@triton\.jit[^\n]*\ndef (\w+)\(", text))
        launched = set(re.findall(r"^ +(\w+)\[.*\]\(", text, re.MULTILINE)) & kernels
        assert launched <= set(LAUNCHED.findall(text)), source


def scaled_twice(grad, grad_scores, offsets, max_length, odd=False):
    """What it gives, of two launches; or a number added to it by PyTorch."""
    kernel = ops.backends["scale_by_list", "cpu"].kernel
    found = kernel(grad, kernel(grad, grad_scores, offsets, max_length), offsets, max_length)
    return found + 1.0 if odd else found


def batches(count, size=6, odd=False, shift=0):
    for seed in range(count):
        numbers = torch.randn(size + shift, generator=torch.Generator().manual_seed(seed))
        yield torch.tensor([2.0, seed]), numbers[shift:], torch.tensor([0, 4, size]), 4, odd


def replays(memory, cached, every):
    """Which of the calls were replayed, all having been right."""
    found = []
    for arguments in every:
        memory.tensors += [x for x in arguments if isinstance(x, torch.Tensor)]
        before = len(cached.direct)
        assert cached(*arguments).equal(scaled_twice(*arguments))
        found.append(len(cached.direct) == before)
    return found


@pytest.fixture
def cached(memory):
    direct = []

    def function(*arguments):
        direct.append(arguments)
        return scaled_twice(*arguments)

    made = _launch_cache.LaunchCache(function)
    made.direct = direct
    return made


def test_a_call_is_replayed_from_the_fourth_time_on(memory, cached):
    assert replays(memory, cached, batches(5)) == [False, False, False, True, True]


def test_what_changes_the_launches_is_another_call(memory, cached):
    replays(memory, cached, batches(4))
    assert replays(memory, cached, batches(3, size=7)) == [False, False, True]
    assert replays(memory, cached, batches(3, shift=1)) == [False, False, True]
    assert replays(memory, cached, batches(1)) == [True]


def test_a_call_that_does_more_than_launch_is_made_itself(memory, cached):
    assert replays(memory, cached, batches(5, odd=True)) == [False] * 5
    assert list(cached.calls.values()) == [None]


def test_inputs_not_contiguous_or_that_are_the_same_are_left_to_the_function(memory, cached):
    gaps = [(torch.ones(1).expand(2), *rest) for _, *rest in batches(5)]
    assert replays(memory, cached, gaps) == [False] * 5
    same = torch.ones(2)
    offsets = torch.tensor([0, 1, 2])
    assert replays(memory, cached, [(same, same, offsets, 1)] * 5) == [False] * 5


def test_somebody_who_watches_launches_sees_all(memory, cached):
    replays(memory, cached, batches(4))
    _launcher.knobs.runtime.launch_enter_hook.add(print)
    try:
        assert replays(memory, cached, batches(1)) == [False]
    finally:
        _launcher.knobs.runtime.launch_enter_hook.remove(print)


def test_options_that_never_come_again_are_forgotten(memory, cached, monkeypatch):
    monkeypatch.setattr(_launch_cache, "_RECENT", 8)
    for max_length in range(4, 40):
        (call,) = batches(1)
        cached(*call[:3], max_length, False)
    assert not cached.calls and len(cached._recent) <= 8


def test_sizes_that_come_again_much_later_are_not_recorded(memory, cached, monkeypatch):
    """As those of ragged batches do, by chance."""
    monkeypatch.setattr(_launch_cache, "_RECENT", 4)
    for _ in range(3):
        assert replays(memory, cached, batches(1)) == [False]
        for size in range(7, 12):
            assert replays(memory, cached, batches(1, size=size)) == [False]
    assert not cached.calls


def test_recording_does_not_import_the_compiler():
    """Which takes seconds, in the middle of a user's first calls."""
    code = (
        "import sys, torch\n"
        "from rankgrad.kernels.gpu._launch_cache import Recorder\n"
        "with Recorder() as recorder:\n"
        "    torch.empty(3)\n"
        "assert len(recorder.made) == 1 and 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
