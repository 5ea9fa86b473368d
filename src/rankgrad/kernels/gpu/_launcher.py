"""A launcher of compiled kernels that caches what Triton derives from the arguments.

Triton's own launch binds, types and hashes all arguments in Python, which takes longer than the
small kernels here run. The compiled kernel depends on only a few properties of the arguments.
"""

from __future__ import annotations

import inspect
import threading
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from rankgrad.kernels.gpu._parallel_compilation import is_queued, is_waiting, launch_queued

#: How Triton launches a compiled kernel. If its source differs, Triton's own launcher is used.
_LAUNCH = (
    "kernel.run(grid_0, grid_1, grid_2, stream, kernel.function, kernel.packed_metadata, "
    "launch_metadata, knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook, "
    "*bound_args.values())"
)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONSTANTS = (int, bool, str, type(None))
_MOST_BLOCKS = (1 << 16) - 1  # CUDA's limit of a grid's second axis


class Launch(NamedTuple):
    """A recorded launch.

    Args:
        kernel: the kernel as compiled by Triton.
        grid: the number of programs along each of three axes.
        arguments: all arguments; tensors are addresses.
        tensors: the positions of the tensors among the arguments.
    """

    kernel: Any
    grid: tuple[int, int, int]
    arguments: list[Any]
    tensors: list[int]


class Recording(threading.local):
    """The list that records this thread's launches, if any; Triton's own launches are None."""

    launches: list[Launch | None] | None = None


recording = Recording()


def cdiv(number: int, by: int) -> int:
    """The quotient, rounded up. ``triton.cdiv`` takes microseconds when called on the host.

    >>> cdiv(6, 3), cdiv(7, 3)
    (2, 3)
    """
    return -(-number // by)


def next_power_of_2(number: int) -> int:
    """The smallest power of two >= number; 0 for 0. Faster on the host than Triton's.

    >>> next_power_of_2(16), next_power_of_2(17)
    (16, 32)
    """
    return 1 << (number - 1).bit_length() if number > 0 else 0


def has_launch_hooks() -> bool:
    """Whether a launch hook is set, such as that of Triton's profiler."""
    runtime = knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)


def cached_launch(kernel: Any) -> Any:
    """Give a ``triton.jit`` kernel a launcher that caches compiled kernels.

    Use it as a decorator above ``@triton.jit``, on kernels that are launched from Python as
    ``kernel[grid](*arguments, num_warps=4)`` with a tuple as the grid. Interpreted kernels are
    returned unchanged, and so are all kernels if this version of Triton launches differently.
    """
    return (
        CachedLauncher(kernel)
        if isinstance(kernel, JITFunction) and launches_as_known()
        else kernel
    )


class CachedLauncher:
    """A kernel and its compiled forms, keyed by the properties that Triton specializes on.

    These are the dtype of a tensor and whether its address is a multiple of 16; whether an integer
    is 1, whether it is a multiple of 16, and its width in bits; and the values of constants.
    """

    def __init__(self, jit: Any) -> None:
        self.jit = jit
        self._plans: dict[tuple[type, ...], Plan | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jit, name)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        if len(grid) > 1 and grid[1] > _MOST_BLOCKS:
            raise ValueError(
                f"a list is too long for a fused form on a GPU: it takes {grid[1]:,} blocks of "
                f'items, and CUDA has {_MOST_BLOCKS:,}. rankgrad.kernels.using("eager") does '
                "without"
            )
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        if len(arguments) < len(self.jit.params):  # constants passed by name
            rest = self.jit.params[len(arguments) :]
            arguments += tuple(options.pop(param.name) for param in rest if param.name in options)
        types = tuple(map(type, arguments))
        if types not in self._plans:
            self._plans[types] = Plan.of(self.jit.params, types)
        plan = self._plans[types]
        if plan is None or has_launch_hooks() or self.jit.pre_run_hooks:
            launch_queued()
            self.jit[grid](*arguments, **options)
            if recording.launches is not None:
                recording.launches.append(None)
            return
        device = driver.active.get_current_device()
        key, bound = plan.key_of(arguments)
        key += (device, *options.items())
        kernel = plan.compiled.get(key)
        if (kernel is None or is_waiting()) and recording.launches is None:
            # The queue keeps the order of launches while kernels are compiled in parallel.
            is_compiled = kernel is not None
            if is_queued(
                lambda: self._launch(grid, *arguments, **options),
                None if is_compiled else lambda: self.jit.warmup(*arguments, grid=grid, **options),
                (self, *key),
            ):
                return
        x, y, z = (*grid, 1, 1)[:3]
        if kernel is None:
            kernel = plan.compiled[key] = self.jit[grid](*arguments, **options)
        else:
            stream = driver.active.get_current_stream(device)
            kernel.run(
                x, y, z, stream, kernel.function, kernel.packed_metadata, None, None, None, *bound
            )  # fmt: skip
        if recording.launches is not None:
            recording.launches.append(Launch(kernel, (x, y, z), bound, plan.tensors))


@dataclass(eq=False)
class Plan:
    """Which arguments a kernel is specialized on, for a tuple of argument types.

    Args:
        tensors: the positions of tensors.
        numbers: the positions of integers that Triton specializes on.
        plain: the positions of integers that it does not specialize on, except by their width.
        constants: the positions of constants.
        compiled: the compiled kernels, by :meth:`key_of` and the device.
    """

    tensors: list[int]
    numbers: list[int]
    plain: list[int]
    constants: list[int]
    compiled: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, params: list[Any], types: tuple[type, ...]) -> Plan | None:
        """The plan; None for argument types that only Triton's own launcher supports."""
        if len(params) != len(types):
            return None
        # `places` holds the four lists themselves, in the order of the fields.
        tensors, numbers, plain, constants = places = [], [], [], []  # type: ignore[var-annotated]
        for at, (param, kind) in enumerate(zip(params, types, strict=True)):
            if param.is_constexpr or kind in (bool, type(None)):
                if kind not in _CONSTANTS:
                    return None
                constants.append(at)
            elif kind in _TENSORS:
                tensors.append(at)
            elif kind is int:
                (plain if param.do_not_specialize else numbers).append(at)
            elif kind is not float:
                return None
        return cls(*places)

    def key_of(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
        """The key of the compiled kernel; and the arguments, with tensors as addresses."""
        bound = list(arguments)
        key = [arguments[at] for at in self.constants]
        for at in self.tensors:
            tensor = arguments[at]
            bound[at] = address = tensor.data_ptr()
            key.append(tensor.dtype)
            key.append(address % 16 == 0)
        for at in self.numbers:
            number = arguments[at]
            key.append(number == 1)
            key.append(number % 16 == 0)
            key.append(_width(number))
        for at in self.plain:
            key.append(_width(arguments[at]))
        return tuple(key), bound


def _width(number: int) -> int:
    """Which of Triton's integer types holds the number: 32 and 64 bits, 65 for unsigned 64."""
    if -(2**31) <= number < 2**31:
        return 32
    return 64 if number < 2**63 else 65


@cache
def launches_as_known() -> bool:
    """Whether this version of Triton launches kernels as this module does."""
    try:
        source = " ".join(inspect.getsource(JITFunction.run).split())
    except (OSError, TypeError):
        return False
    hooks = (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
    return _LAUNCH in source and all(hasattr(hook, "calls") for hook in hooks)
