"""Cached launches: a key for all that Triton compiles for, and Triton itself where in doubt."""

import itertools
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from triton.backends.compiler import BaseBackend
from triton.runtime.jit import JITFunction, native_specialize_impl

from rankgrad.kernels.gpu import _launcher

STORAGE = torch.zeros(64)
NUMBERS = [0, 1, 2, 3, 15, 16, 17, -1, -16, 48, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63]
ARGUMENTS = [
    *NUMBERS,
    True,
    False,
    None,
    0.5,
    1.0,
    STORAGE,
    STORAGE[1:],
    STORAGE[4:],
    STORAGE.double(),
    torch.zeros(0),
    torch.zeros(3, dtype=torch.bool),
    torch.nn.Parameter(torch.zeros(4)),
]


def param(constexpr=False, plain=False):
    return SimpleNamespace(is_constexpr=constexpr, do_not_specialize=plain)


def cache_key(argument, **kind):
    """All that a compiled kernel is found by."""
    plan = _launcher.Plan.of([param(**kind)], (type(argument),))
    return (type(argument), *plan.key_of((argument,))[0])


@pytest.mark.parametrize("plain", [False, True])
def test_what_triton_compiles_differently_for_is_distinguished(plain):
    for one, other in itertools.combinations(ARGUMENTS, 2):
        theirs = [
            native_specialize_impl(BaseBackend, each, False, not plain, True)
            for each in (one, other)
        ]
        if theirs[0] != theirs[1]:
            assert cache_key(one, plain=plain) != cache_key(other, plain=plain), (one, other)


def test_a_list_of_more_blocks_than_cuda_has_is_an_error_in_words():
    kernel = _launcher.CachedLauncher(SimpleNamespace(params=[]))
    kernel[3, 65_535]
    with pytest.raises(ValueError, match=r"list is too long.*65,536 blocks.*eager"):
        kernel[3, 65_536]


def test_constants_count_by_type_and_value():
    constants = [0, 1, 2, True, False, "ndcg", "dcg", None]
    seen = {cache_key(each, constexpr=True) for each in constants}
    # 1 and True are equal, but not of the same type
    assert len(seen) == len(constants)


def test_a_number_that_is_not_compiled_for_may_change():
    assert cache_key(3, plain=True) == cache_key(16, plain=True)
    assert cache_key(3) != cache_key(16)
    assert cache_key(0.25) == cache_key(0.5)


@pytest.mark.parametrize(
    ("argument", "constexpr"), [(0.5, True), ((1, 2), True), ("name", False), ((1,), False)]
)
def test_other_arguments_are_left_to_triton(argument, constexpr):
    assert _launcher.Plan.of([param(constexpr=constexpr)], (type(argument),)) is None


def test_tensors_are_passed_as_addresses_and_all_else_as_it_is():
    arguments = (STORAGE, 3, 0.5, None, True)
    plan = _launcher.Plan.of([param()] * 5, tuple(map(type, arguments)))
    assert plan.key_of(arguments)[1] == [STORAGE.data_ptr(), 3, 0.5, None, True]


def test_interpreted_kernels_stay_as_they_are():
    def kernel() -> None: ...

    assert _launcher.cached_launch(kernel) is kernel


class Compiled:
    """Records its launches."""

    function, packed_metadata = 7, "metadata"

    def __init__(self):
        self.launches = []

    def run(self, *arguments):
        self.launches.append(arguments)


class Jit:
    """Compiles at every call, and counts."""

    pre_run_hooks = ()

    def __init__(self, *params):
        self.params, self.calls = list(params), []

    def __getitem__(self, grid):
        def compile_and_launch(*arguments, **options):
            self.calls.append((grid, arguments, options))
            self.compiled = Compiled()
            return self.compiled

        return compile_and_launch


@pytest.fixture
def active(monkeypatch):
    """A device to launch on."""
    device = SimpleNamespace(index=0)
    here = SimpleNamespace(
        get_current_device=lambda: device.index, get_current_stream=lambda index: 100 + index
    )
    monkeypatch.setattr(_launcher, "driver", SimpleNamespace(active=here))
    return device


def test_the_second_launch_goes_to_what_the_first_one_compiled(active):
    jit = Jit(param(), param(plain=True), param(constexpr=True))
    kernel = _launcher.CachedLauncher(jit)
    kernel[(4, 2)](STORAGE, 5, 64, num_warps=4)
    kernel[(3,)](STORAGE[4:], 6, 64, num_warps=4)
    assert jit.calls == [((4, 2), (STORAGE, 5, 64), {"num_warps": 4})]
    at = STORAGE[4:].data_ptr()
    assert jit.compiled.launches == [(3, 1, 1, 100, 7, "metadata", None, None, None, at, 6, 64)]


def test_another_device_option_or_constant_compiles_anew(active):
    jit = Jit(param(), param(constexpr=True))
    kernel = _launcher.CachedLauncher(jit)
    for constant, options in ((64, {}), (32, {}), (64, {"num_warps": 8}), (64, {"num_warps": 4})):
        kernel[(1,)](STORAGE, constant, **options)
    active.index = 1
    kernel[(1,)](STORAGE, 64)
    assert len(jit.calls) == 5
    kernel[(1,)](STORAGE, 64)
    assert len(jit.calls) == 5


def test_what_watches_launches_is_not_passed_by(active):
    jit = Jit(param())
    kernel = _launcher.CachedLauncher(jit)
    kernel[(1,)](STORAGE)
    _launcher.knobs.runtime.launch_enter_hook.add(print)
    try:
        kernel[(1,)](STORAGE)
    finally:
        _launcher.knobs.runtime.launch_enter_hook.remove(print)
    assert len(jit.calls) == 2
    jit.pre_run_hooks = (print,)
    kernel[(1,)](STORAGE)
    assert len(jit.calls) == 3


def test_triton_launches_as_is_taken_here():
    """Under a Triton of which this is not true launches are right, but slow."""

    def kernel(x) -> None: ...

    compiled = JITFunction(kernel)
    assert (
        isinstance(_launcher.cached_launch(compiled), _launcher.CachedLauncher)
        == _launcher.launches_as_known()
    )
    assert _launcher.cached_launch(compiled).arg_names == ["x"]
