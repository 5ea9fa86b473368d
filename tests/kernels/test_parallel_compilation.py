"""First calls: kernels are compiled at the same time, and launched in order."""

import threading
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime._async_compile import active_mode

from rankgrad.kernels.gpu import _launcher, _parallel_compilation
from rankgrad.kernels.gpu._parallel_compilation import CallScope, compile_ahead, launch_queued

NUMBERS = torch.zeros(4)


class Jit:
    """A kernel that is compiled once, on a thread or when it is launched, and logs both."""

    pre_run_hooks = ()

    def __init__(self, name, log, barrier=None, fails=False, started=None):
        self.name, self.log, self.barrier, self.fails = name, log, barrier, fails
        self.started = [] if started is None else started
        self.params = [SimpleNamespace(is_constexpr=False, do_not_specialize=False)]
        self.compiled, self.warmups = None, 0

    def compile(self):
        self.started.append(self.name)
        if self.barrier:
            self.barrier.wait(20)  # until the other kernels are being compiled, too
        if self.fails:
            raise ValueError(f"{self.name} has an error")
        return SimpleNamespace(
            src=None, metadata=None, function=None, packed_metadata=None, run=self.run
        )

    def finish(self, kernel):
        self.compiled = kernel
        self.log.append(f"compiled {self.name}")

    def warmup(self, *arguments, grid, **options):
        self.warmups += 1
        src = SimpleNamespace(fn=SimpleNamespace(src=self.name), make_ir=self.compile)

        def compile_source():  # as Triton does
            return src and self.compile()

        return active_mode.get().submit(self.name, compile_source, self.finish)

    def run(self, *_):
        self.log.append(self.name)

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.compiled = self.compiled or self.compile()
            self.run()
            return self.compiled

        return launch


@pytest.fixture(autouse=True)
def active(monkeypatch):
    """A device to launch on."""
    built = []
    active = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=int,
        launcher_cls=lambda source, metadata: built.append((source.fn.src, metadata.num_ctas)),
    )
    monkeypatch.setattr(_parallel_compilation.os, "cpu_count", lambda: 3)
    for module in (_launcher, _parallel_compilation):
        monkeypatch.setattr(module, "driver", SimpleNamespace(active=active))
    return built


def kernels(names, log, **options):
    return [_launcher.CachedLauncher(Jit(name, log, **options)) for name in names]


def test_kernels_of_a_call_are_compiled_at_the_same_time_and_launched_in_order():
    log = []
    first, second, third = kernels("abc", log, barrier=threading.Barrier(3))
    with CallScope():
        for kernel in (first, second, third, first):
            kernel[(1,)](torch.empty_like(NUMBERS).view(2, 2))
        assert log == []
    assert sorted(log[:3]) == ["compiled a", "compiled b", "compiled c"]
    assert log[3:] == ["a", "b", "c", "a"]
    assert first.warmups == 1
    with CallScope():
        second[(1,)](NUMBERS)
        assert log[7:] == ["b"]


def test_what_waits_is_launched_before_pytorch_reads():
    log = []
    first, second = kernels("ab", log)
    with CallScope():
        first[(1,)](NUMBERS)
        log.append(NUMBERS.sum().item())
        second[(1,)](NUMBERS)
        launch_queued()  # as the host does before it reads pinned memory
        log.append("read")
        with CallScope():  # a call within a call
            first[(1,)](NUMBERS)
    assert log == ["compiled a", "a", 0.0, "compiled b", "b", "read", "a"]


def test_the_c_function_that_launches_a_kernel_is_compiled_beside_it(active):
    (kernel,) = kernels("a", [])
    with CallScope():
        kernel[(1,)](NUMBERS)
    assert active == [("a", 0)]


def test_kernels_with_most_code_are_compiled_first(monkeypatch):
    monkeypatch.setattr(_parallel_compilation, "_THREADS", 1)
    started = []
    with CallScope():
        for kernel in kernels(["b", "long", "longer"], [], started=started):
            kernel[(1,)](NUMBERS)
    assert started == ["longer", "long", "b"]


def test_a_kernel_of_a_later_call_is_compiled_and_not_launched():
    log = []
    first, later = kernels("ab", log)
    with CallScope():
        compile_ahead(later[(1,)], NUMBERS)  # nothing is being compiled
        first[(1,)](NUMBERS)
        compile_ahead(later[(1,)], NUMBERS)
    assert sorted(log) == ["a", "compiled a", "compiled b"]
    later[(1,)](NUMBERS)
    assert log[3:] == ["b"]


def test_errors_of_compilers_and_of_calls_leave_nothing_behind():
    log = []
    (flawed,) = kernels("a", log, fails=True)
    (sound,) = kernels("b", log)
    with pytest.raises(ValueError, match="a has an error"), CallScope():
        flawed[(1,)](NUMBERS)

    def interrupted():
        with CallScope():
            sound[(1,)](NUMBERS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert log == []
    with CallScope():
        sound[(1,)](NUMBERS)
    assert log[-1] == "b"


def test_launches_outside_of_calls_do_not_wait():
    log = []
    (kernel,) = kernels("a", log)
    kernel[(1,)](NUMBERS)
    assert log == ["a"]
