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

from gpu_twins import slots
from registry import loss_specs
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime.jit import JITFunction

from rankgrad import losses
from rankgrad.inputs import unchecked_lists
from rankgrad.kernels import gpu, ops
from rankgrad.kernels.gpu import launch, replay

SOURCES = sorted(Path(gpu.__path__[0]).glob("*.py"))
QUICK = re.compile(r"^@quick\n@triton\.jit[^\n]*\ndef (\w+)\(", re.MULTILINE)
SPECS = [
    "lambdaloss@5",
    "approx_ndcg",
    "listmle(seed=1)",
    "pirank_ndcg@3",
    "smoothi_ndcg",
    "lapsum_ndcg@5",
    "softsort_precision",
]
FORMS = [{}, {"padded": True, "weighted": True}]

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


@pytest.fixture
def memory(monkeypatch):
    """Kernels as on a GPU, each launch by addresses."""
    memory = Memory()
    here = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda index: None)
    for module in (launch, replay):
        monkeypatch.setattr(module, "driver", SimpleNamespace(active=here))
    for each in pkgutil.iter_modules(gpu.__path__):
        module = importlib.import_module(f"rankgrad.kernels.gpu.{each.name}")
        for name in QUICK.findall(Path(module.__file__).read_text()):
            kernel = launch.Quick(Jit(getattr(module, name), memory))
            monkeypatch.setattr(module, name, kernel)
    for (name, device), backend in list(ops._backends.items()):
        if device == "cuda" and name != "look":
            found = getattr(importlib.import_module(backend.module), name)
            found = ops._grouped(found, name) if name in ops.LOSSES else found
            monkeypatch.setitem(ops._backends, (name, "cpu"), SimpleNamespace(found=found))
    look, maker = launch.Plan.look, replay.Room.maker

    def looked(plan, arguments):
        memory.tensors += [arguments[at] for at in plan.tensors]
        return look(plan, arguments)

    monkeypatch.setattr(launch.Plan, "look", looked)

    def remembered(room, device):
        make = maker(room, device)

        def made():
            memory.tensors.append(make())
            if not room.zeroed and room.dtype.is_floating_point:
                memory.tensors[-1].fill_(float("nan"))
            return memory.tensors[-1]

        return made

    monkeypatch.setattr(replay.Room, "maker", remembered)
    return memory


def calls(spec, **options):
    """The arguments of a loss on some batches of one shape."""
    loss = losses.get(spec)
    for seed in range(4):
        given = slots([5, 12], seed=seed, tied=seed == 2, **options)
        scores, labels, mask, weights, offsets, longest = given
        lists = unchecked_lists(scores, labels, offsets=offsets, max_length=longest)
        found = loss.kernel(lists)
        slots_ = (labels, mask, weights, offsets, longest)
        yield scores, found.name, True, None, *slots_, *found.options


@pytest.mark.parametrize(
    ("spec", "options"), [(spec, FORMS[at % 2]) for at, spec in enumerate(SPECS)]
)
def test_replayed_losses_give_the_same_bytes(memory, spec, options):
    replayed = replay.Replayed(ops._reduced)
    for arguments in calls(spec, **options):
        memory.tensors += [x for x in arguments if isinstance(x, torch.Tensor)]
        found = replayed(*arguments)
    assert len(replayed.calls) == 1
    assert None not in replayed.calls.values()
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
    scores, *others, longest = slots([240] * 64, **form)
    lists = unchecked_lists(scores, others[0], offsets=others[-1], max_length=longest)
    noted = {}
    for spec in loss_specs():
        found = losses.get(spec).kernel(lists)
        if found is None:
            continue
        replayed = replay.Replayed(ops._reduced)
        for _ in range(3):
            replayed(scores, found.name, True, None, *others, longest, *found.options)
        (noted[spec],) = replayed.calls.values()
    assert {"fastsort_ndcg", "listnet", "softmax", "softsort_ndcg", "pirank_ndcg"} <= set(noted)
    assert [spec for spec, call in noted.items() if call is None] == []


def test_every_kernel_that_is_launched_is_a_quick_one():
    """A launch of another kind would not be noted."""
    for source in SOURCES:
        if source.stem == "pair_derivatives":
            continue  # called by boosting only, once a round
        text = source.read_text()
        kernels = set(re.findall(r"@triton\.jit[^\n]*\ndef (\w+)\(", text))
        launched = set(re.findall(r"^ +(\w+)\[.*\]\(", text, re.MULTILINE)) & kernels
        assert launched <= set(QUICK.findall(text)), source


def spread_twice(grad, slopes, offsets, longest, odd=False):
    """What it gives, of two launches; or a number added to it by PyTorch."""
    twin = ops._backends["spread", "cpu"].found
    found = twin(grad, twin(grad, slopes, offsets, longest), offsets, longest)
    return found + 1.0 if odd else found


def spreads(count, size=6, odd=False, shift=0):
    for seed in range(count):
        numbers = torch.randn(size + shift, generator=torch.Generator().manual_seed(seed))
        yield torch.tensor([2.0, seed]), numbers[shift:], torch.tensor([0, 4, size]), 4, odd


def replays(memory, replayed, every):
    """Which of the calls were replayed, all having been right."""
    found = []
    for arguments in every:
        memory.tensors += [x for x in arguments if isinstance(x, torch.Tensor)]
        before = len(replayed.direct)
        assert replayed(*arguments).equal(spread_twice(*arguments))
        found.append(len(replayed.direct) == before)
    return found


@pytest.fixture
def replayed(memory):
    direct = []

    def function(*arguments):
        direct.append(arguments)
        return spread_twice(*arguments)

    made = replay.Replayed(function)
    made.direct = direct
    return made


def test_a_call_is_replayed_from_the_fourth_time_on(memory, replayed):
    assert replays(memory, replayed, spreads(5)) == [False, False, False, True, True]


def test_what_changes_the_launches_is_another_call(memory, replayed):
    replays(memory, replayed, spreads(4))
    assert replays(memory, replayed, spreads(3, size=7)) == [False, False, True]
    assert replays(memory, replayed, spreads(3, shift=1)) == [False, False, True]
    assert replays(memory, replayed, spreads(1)) == [True]


def test_a_call_that_does_more_than_launch_is_made_itself(memory, replayed):
    assert replays(memory, replayed, spreads(5, odd=True)) == [False] * 5
    assert list(replayed.calls.values()) == [None]


def test_inputs_with_gaps_or_that_are_the_same_are_left_to_the_function(memory, replayed):
    gaps = [(torch.ones(1).expand(2), *rest) for _, *rest in spreads(5)]
    assert replays(memory, replayed, gaps) == [False] * 5
    same = torch.ones(2)
    offsets = torch.tensor([0, 1, 2])
    assert replays(memory, replayed, [(same, same, offsets, 1)] * 5) == [False] * 5


def test_somebody_who_watches_launches_sees_all(memory, replayed):
    replays(memory, replayed, spreads(4))
    launch.knobs.runtime.launch_enter_hook.add(print)
    try:
        assert replays(memory, replayed, spreads(1)) == [False]
    finally:
        launch.knobs.runtime.launch_enter_hook.remove(print)


def test_options_that_never_come_again_are_forgotten(memory, replayed, monkeypatch):
    monkeypatch.setattr(replay, "_LATELY", 8)
    for longest in range(4, 40):
        (call,) = spreads(1)
        replayed(*call[:3], longest, False)
    assert not replayed.calls and len(replayed._lately) <= 8


def test_sizes_that_come_again_much_later_are_not_noted(memory, replayed, monkeypatch):
    """As those of ragged batches do, by chance."""
    monkeypatch.setattr(replay, "_LATELY", 4)
    for _ in range(3):
        assert replays(memory, replayed, spreads(1)) == [False]
        for size in range(7, 12):
            assert replays(memory, replayed, spreads(1, size=size)) == [False]
    assert not replayed.calls


def test_noting_does_not_import_the_compiler():
    """Which takes seconds, in the middle of a user's first calls."""
    code = (
        "import sys, torch\n"
        "from rankgrad.kernels.gpu.replay import Notes\n"
        "with Notes() as notes:\n"
        "    torch.empty(3)\n"
        "assert len(notes.made) == 1 and 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
