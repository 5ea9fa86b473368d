"""A cache of the launches of kernel calls.

A call chooses grids and tiles, allocates memory and checks the arguments of every launch. In Python
this takes longer than the kernels take on lists of usual size, and it depends on options and shapes
only. So a repeated call (same options and shapes) is recorded: its allocations, and its launches
with the memory that they use. Later calls allocate new memory and repeat the launches. The first
call is not recorded, since it may never be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.runtime.driver import driver

from rankgrad.kernels.gpu._launcher import Launch, has_launch_hooks, launches_as_known, recording
from rankgrad.kernels.gpu._parallel_compilation import EMPTY, ZEROS, is_waiting, only_allocates

# The types of arguments; a call with any other type bypasses the cache.
_TENSORS = (Tensor, torch.nn.Parameter)
_OPTIONS = (int, float, str, bool, type(None))
_APART = 512  # alignment in bytes of tensors in a buffer, the same as in PyTorch's allocator
_MOST = 1024  # recorded calls per function; all are dropped when there are so many
_RECENT = 64  # hashes of shapes and calls that are remembered, to detect repeated ones
_UNKNOWN: Any = object()  # for a call that was not recorded; None is one that cannot be replayed

_Key = tuple[Any, ...]


def cached_launches(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of tensors and options a cache of its launches.

    The function may only allocate tensors and launch kernels. A call that does anything else is
    detected and bypasses the cache. All kernels of the function must be decorated with
    :func:`~rankgrad.kernels.gpu._launcher.cached_launch`. Interpreted kernels are not recorded.
    """
    return (
        LaunchCache(function) if launches_as_known() and not knobs.runtime.interpret else function
    )


class LaunchCache:
    """A function and its recorded calls, keyed by everything that their launches depend on.

    The key has all options and, of every tensor, its dtype, shape, device and whether its address
    is a multiple of 16, which Triton specializes kernels on. The first argument must be a tensor.
    Calls with tensors that are not contiguous bypass the cache.

    Attributes:
        function: the function whose calls are recorded.
        calls: the recorded calls by key; None for a call that cannot be replayed, for example since
            it does more than allocate and launch.
        shapes: the shapes of the first tensors of recorded calls.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: dict[_Key, RecordedCall | None] = {}
        self.shapes: set[torch.Size] = set()
        self._recent: set[int] = set()  # hashes of recent shapes and keys

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, or repeat the launches of a recorded call."""
        shape = arguments[0].shape
        if shape not in self.shapes and self._is_new(shape):
            return self.function(*arguments)
        key_parts: list[Any] = []
        tensors, addresses = [], []
        for argument in arguments:
            kind = type(argument)
            if kind in _OPTIONS:
                key_parts.append(argument)
            elif kind in _TENSORS and argument.is_contiguous():
                address = argument.data_ptr()
                tensors.append(argument)
                addresses.append(address)
                device, aligned = argument.get_device(), address % 16 == 0
                key_parts += (argument.dtype, argument.shape, device, aligned)
            else:
                return self.function(*arguments)
        key = tuple(key_parts)
        call = self.calls.get(key, _UNKNOWN)
        if recording.launches is not None or has_launch_hooks() or is_waiting():
            return self.function(*arguments)
        if call is _UNKNOWN:
            if self._is_new(key):
                return self.function(*arguments)
            return self._record(key, tensors, arguments)
        return self.function(*arguments) if call is None else call.replay(addresses)

    def _is_new(self, key: _Key) -> bool:
        """Whether a shape or the key of a call is not among the recent ones; it is then added.

        A new call is not recorded, since recording takes several times as long as the call itself
        and the call may never be repeated: options may follow a schedule, and the sizes of ragged
        batches vary.
        """
        digest = hash(key)
        if digest in self._recent:
            return False
        if len(self._recent) >= _RECENT:
            self._recent.clear()
        self._recent.add(digest)
        return True

    def _record(self, key: _Key, tensors: list[Tensor], arguments: tuple[Any, ...]) -> Any:
        """Call the function, record the call under its key, and return the result."""
        with Recorder() as recorder:
            result = self.function(*arguments)
        if len(self.calls) >= _MOST:
            self.calls.clear()
            self.shapes.clear()
        self.calls[key] = RecordedCall.of(recorder, tensors, result)
        self.shapes.add(tensors[0].shape)
        return result


class Recorder(TorchDispatchMode):
    """Records allocations and launches while active, and whether anything else happens.

    Attributes:
        made: allocated tensors, and whether they were zeroed. Holding a reference to them keeps
            PyTorch from using their memory again while recording.
        launches: the launches; None for a launch by Triton's own launcher, of which nothing is
            known.
        complete: whether every operation of PyTorch only allocated or viewed a tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Tensor, bool]] = []
        self.launches: list[Launch | None] = []
        self.complete = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: with True, PyTorch would import its compiler, which takes seconds."""
        return False

    def __enter__(self) -> Recorder:
        recording.launches = self.launches
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        recording.launches = None

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name
        if name in EMPTY + ZEROS:
            self.made.append((result, name in ZEROS))
        self.complete &= only_allocates(function)
        return result


class Allocation(NamedTuple):
    """A tensor to allocate."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    zeroed: bool

    def allocator(self, device: torch.device) -> Callable[[], Tensor]:
        """A function that allocates the tensor."""
        make = torch.zeros if self.zeroed else torch.empty
        return partial(make, self.shape, dtype=self.dtype, device=device)


class MemorySpan(NamedTuple):
    """The memory of a recorded tensor, and where a replay has it.

    Attributes:
        begin: its first address.
        end: the address after its last byte.
        piece: the index of its piece among the pieces of :class:`RecordedCall`.
        at: its offset in that piece, in bytes.
    """

    begin: int
    end: int
    piece: int
    at: int


class RecordedCall:
    """The allocations and launches of a call.

    The memory of a call is a list of pieces: each input, each output, and up to two buffers for all
    temporary tensors, one of them zeroed. A place is the index of a piece and an offset into it, in
    bytes.

    Args:
        allocations: the pieces after the inputs; outputs come first.
        outputs: the length of the tuple of outputs; 0 if the function returns one tensor.
        launches: the launches, with a place instead of each address.
        device: the device of the call.
    """

    def __init__(
        self,
        allocations: list[Allocation],
        outputs: int,
        launches: list[Launch],
        device: torch.device,
    ) -> None:
        self.device, self.outputs = device, outputs
        self.allocators = [allocation.allocator(device) for allocation in allocations]
        places = [launch.arguments[index] for launch in launches for index in launch.tensors]
        self.places: list[tuple[int, int]] = list(dict.fromkeys(places))
        self.constants: list[Any] = []
        self.launches = [self._enter(launch) for launch in launches]

    def _enter(self, launch: Launch) -> tuple[Any, ...]:
        """Add a launch's constants, and return what :meth:`replay` needs of the launch.

        Returns:
            The launcher of the compiled kernel, the grid, the first arguments of the launcher, and
            a getter of the kernel's arguments from ``[*addresses of places, *constants]``.
        """
        kernel, grid, arguments, tensors = launch
        picked = []
        for index, argument in enumerate(arguments):
            if index in tensors:
                picked.append(self.places.index(argument))
            else:
                picked.append(len(self.places) + len(self.constants))
                self.constants.append(argument)
        # None: no launch metadata, and no hooks at the beginning and the end of a launch.
        head = (kernel.function, kernel.packed_metadata, None, None, None)
        return kernel.run, grid, head, itemgetter(*picked)

    @classmethod
    def of(cls, recorder: Recorder, inputs: list[Tensor], result: Any) -> RecordedCall | None:
        """The recorded call; None if it cannot be replayed on other memory.

        Args:
            recorder: its record.
            inputs: the tensors among its arguments.
            result: what it returned, a tensor or a tuple of tensors.
        """
        single = isinstance(result, Tensor)
        outputs = [result] if single else list(result)
        if (
            not recorder.complete
            or not _are_disjoint(inputs)
            or not _are_own_allocations(outputs, recorder.made)
        ):
            return None
        allocations, spans = _lay_out(recorder.made, inputs, outputs)
        launches = []
        for launch in recorder.launches:
            if launch is None:
                return None
            arguments = list(launch.arguments)
            for index in launch.tensors:
                arguments[index] = _place(arguments[index], spans)
                if arguments[index] is None:
                    return None
            launches.append(launch._replace(arguments=arguments))
        return cls(allocations, 0 if single else len(outputs), launches, inputs[0].device)

    def replay(self, addresses: list[int]) -> Any:
        """Repeat the call on inputs at these addresses; returns its outputs."""
        made = [make() for make in self.allocators]
        # The last piece, of index -1, is the null pointer, which empty tensors have.
        pieces = [*addresses, *[tensor.data_ptr() for tensor in made], 0]
        picked_from = [pieces[piece] + offset for piece, offset in self.places] + self.constants
        stream = driver.active.get_current_stream(self.device.index)
        for run, grid, head, pick in self.launches:
            run(*grid, stream, *head, *pick(picked_from))
        return tuple(made[: self.outputs]) if self.outputs else made[0]


def _are_disjoint(inputs: list[Tensor]) -> bool:
    """Whether no two inputs overlap in memory."""
    spans = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in inputs)
    ends = [address + size for address, size in spans]
    return all(end <= spans[index + 1][0] for index, end in enumerate(ends[:-1]))


def _are_own_allocations(outputs: list[Tensor], made: list[tuple[Tensor, bool]]) -> bool:
    """Whether every output is all of an allocation, is not empty, and shares it with no other."""
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor, _ in made}
    complete = all(sizes.get(tensor.data_ptr()) == tensor.nbytes > 0 for tensor in outputs)
    return complete and len({tensor.data_ptr() for tensor in outputs}) == len(outputs)


def _lay_out(
    made: list[tuple[Tensor, bool]], inputs: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Allocation], list[MemorySpan]]:
    """The allocations of a call, and the span of every recorded tensor in its piece of memory.

    Args:
        made: allocated tensors, and whether they were zeroed.
        inputs: each is a piece.
        outputs: each is a piece; all other tensors of ``made`` share the one or two buffers.
    """
    allocations: list[Allocation] = []
    spans: list[MemorySpan] = []

    def add_span(tensor: Tensor, offset: int = 0) -> None:
        """Add the span of a tensor in the piece that follows the inputs and allocations so far."""
        begin, piece = tensor.data_ptr(), len(allocations) + min(len(spans), len(inputs))
        spans.append(MemorySpan(begin, begin + tensor.nbytes, piece, offset))

    for tensor in inputs:
        add_span(tensor)
    zeroed = {tensor.data_ptr(): zeros for tensor, zeros in made}
    for tensor in outputs:
        add_span(tensor)
        allocations.append(
            Allocation(tuple(tensor.shape), tensor.dtype, zeroed.pop(tensor.data_ptr()))
        )
    for zeros in (False, True):  # the buffers of the remaining tensors
        size = 0
        for tensor, _ in made:
            if zeroed.get(tensor.data_ptr()) is zeros:
                add_span(tensor, size)
                size += -(-tensor.nbytes // _APART) * _APART
        if size:
            allocations.append(Allocation((size,), torch.uint8, zeros))
    return allocations, spans


def _place(address: int, spans: list[MemorySpan]) -> tuple[int, int] | None:
    """The place of an address: its piece and the offset into it; None if no piece has it."""
    if address == 0:  # an empty tensor; replay has the null pointer as its last piece
        return -1, 0
    for begin, end, piece, offset in spans:
        if begin <= address < end:
            return piece, offset + address - begin
    return None
