"""A cache of the launches of kernel calls.

A call chooses grids and tiles, allocates, and has the arguments of every launch checked, in Python,
which takes longer than its kernels do on lists of usual size. All of that follows from options and
shapes. So a call that is repeated is recorded: what it allocates, and what it launches on which of
its memory. From then on the recorded launches are made on new memory.
"""

# mypy: disable-error-code="import-untyped"

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

from rankgrad.kernels.gpu.launcher import Launch, launches_as_known, recording, watched

_EMPTY = ("aten::empty", "aten::empty_like", "aten::new_empty")
_ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros")
_TENSORS = (Tensor, torch.nn.Parameter)
_OPTIONS = (int, float, str, bool, type(None))
_APART = 512  # bytes from one tensor to the next are a multiple of it, as PyTorch itself has it
_MOST = 1024  # calls remembered
_RECENT = 64  # recent shapes and calls; one that is repeated among them is recorded
_UNKNOWN: Any = object()

_Key = tuple[Any, ...]


def cached_launches(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors and options that allocates and launches, with a cache of its launches.

    A call that does anything else is detected, and then made without the cache. All kernels of the
    function must be :func:`~rankgrad.kernels.gpu.launcher.cached_launch` ones. Interpreted kernels
    are not recorded.
    """
    return (
        LaunchCache(function) if launches_as_known() and not knobs.runtime.interpret else function
    )


class LaunchCache:
    """A function and its calls, by all that their launches follow from.

    That is the options, and of tensors, which have no gaps, their types and shapes and whether they
    lie at a multiple of 16.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: dict[
            _Key, RecordedCall | None
        ] = {}  # None where there is more to it than launches
        self.shapes: set[torch.Size] = set()  # those of their first tensors
        self._recent: set[int] = set()

    def __call__(self, *arguments: Any) -> Any:
        """Call the function, or launch what was recorded of such a call."""
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
                key_parts += (
                    argument.dtype,
                    argument.shape,
                    argument.get_device(),
                    address % 16 == 0,
                )
            else:
                return self.function(*arguments)
        key = tuple(key_parts)
        call = self.calls.get(key, _UNKNOWN)
        if recording.launches is not None or watched():
            return self.function(*arguments)
        if call is _UNKNOWN:
            if self._is_new(key):
                return self.function(*arguments)
            return self._record(key, tensors, arguments)
        return self.function(*arguments) if call is None else call.replay(addresses)

    def _is_new(self, key: _Key) -> bool:
        """Whether a shape or a call has not come lately.

        It may never again: options are scheduled, and ragged batches differ in size or only happen
        not to. Recording a call takes several times as long as making it.
        """
        digest = hash(key)
        if digest in self._recent:
            return False
        if len(self._recent) >= _RECENT:
            self._recent.clear()
        self._recent.add(digest)
        return True

    def _record(self, key: _Key, tensors: list[Tensor], arguments: tuple[Any, ...]) -> Any:
        with Recorder() as recorder:
            result = self.function(*arguments)
        if len(self.calls) >= _MOST:
            self.calls.clear()
            self.shapes.clear()
        self.calls[key] = RecordedCall.of(recorder, tensors, result)
        self.shapes.add(tensors[0].shape)
        return result


class Recorder(TorchDispatchMode):
    """What is allocated and launched for a while, and whether that is all that happens.

    Args:
        made: tensors, and whether they were zeroed. Held, so that no memory comes twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[Tensor, bool]] = []
        self.launches: list[Launch | None] = []
        self.complete = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: PyTorch would import its compiler for that, which takes seconds."""
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
        found = function(*args, **(kwargs or {}))
        name = function._schema.name
        if name in _EMPTY + _ZEROS:
            self.made.append((found, name in _ZEROS))
        elif not function.is_view:
            self.complete = False
        return found


class Allocation(NamedTuple):
    """Memory to be allocated."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    zeroed: bool

    def allocator(self, device: torch.device) -> Callable[[], Tensor]:
        """What allocates it."""
        make = torch.zeros if self.zeroed else torch.empty
        return partial(make, self.shape, dtype=self.dtype, device=device)


class MemorySpan(NamedTuple):
    """Recorded memory: its addresses, the piece it belongs to, and its offset in that piece."""

    begin: int
    end: int
    piece: int
    at: int


class RecordedCall:
    """What a call allocates and launches.

    Its memory is in pieces: inputs, outputs, and all else that it needs in one or two.

    Args:
        allocations: the pieces after the inputs, outputs first.
        outputs: how many those are; 0 for one tensor that is not given in a tuple.
        launches: with addresses as pieces and how far into them.
        device: where.
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
        places = [launch.arguments[at] for launch in launches for at in launch.tensors]
        self.places: list[tuple[int, int]] = list(dict.fromkeys(places))
        self.constants: list[Any] = []
        self.launches = [self._enter(launch) for launch in launches]

    def _enter(self, launch: Launch) -> tuple[Any, ...]:
        """A launch, with what picks its arguments from all addresses and then all constants."""
        kernel, grid, arguments, tensors = launch
        picked = []
        for at, argument in enumerate(arguments):
            if at in tensors:
                picked.append(self.places.index(argument))
            else:
                picked.append(len(self.places) + len(self.constants))
                self.constants.append(argument)
        head = (kernel.function, kernel.packed_metadata, None, None, None)
        return kernel.run, grid, head, itemgetter(*picked)

    @classmethod
    def of(cls, recorder: Recorder, inputs: list[Tensor], result: Any) -> RecordedCall | None:
        """The call that was recorded; None where the record is incomplete."""
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
            for at in launch.tensors:
                arguments[at] = _place(arguments[at], spans)
                if arguments[at] is None:
                    return None
            launches.append(launch._replace(arguments=arguments))
        return cls(allocations, 0 if single else len(outputs), launches, inputs[0].device)

    def replay(self, addresses: list[int]) -> Any:
        """The same on inputs at these addresses."""
        made = [make() for make in self.allocators]
        pieces = [*addresses, *[tensor.data_ptr() for tensor in made], 0]
        picked_from = [pieces[piece] + at for piece, at in self.places] + self.constants
        stream = driver.active.get_current_stream(self.device.index)
        for run, grid, head, pick in self.launches:
            run(*grid, stream, *head, *pick(picked_from))
        return tuple(made[: self.outputs]) if self.outputs else made[0]


def _are_disjoint(inputs: list[Tensor]) -> bool:
    """Whether no two inputs overlap in memory."""
    spans = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in inputs)
    ends = [address + size for address, size in spans]
    return all(end <= spans[at + 1][0] for at, end in enumerate(ends[:-1]))


def _are_own_allocations(outputs: list[Tensor], made: list[tuple[Tensor, bool]]) -> bool:
    """Whether outputs are tensors that were made, each another, and not parts of them."""
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor, _ in made}
    whole = all(sizes.get(tensor.data_ptr()) == tensor.nbytes > 0 for tensor in outputs)
    return whole and len({tensor.data_ptr() for tensor in outputs}) == len(outputs)


def _lay_out(
    made: list[tuple[Tensor, bool]], inputs: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Allocation], list[MemorySpan]]:
    """The pieces of memory after the inputs, and the spans of all recorded memory in the pieces."""
    allocations: list[Allocation] = []
    spans: list[MemorySpan] = []

    def enter(tensor: Tensor, at: int = 0) -> None:
        begin, piece = tensor.data_ptr(), len(allocations) + min(len(spans), len(inputs))
        spans.append(MemorySpan(begin, begin + tensor.nbytes, piece, at))

    for tensor in inputs:
        enter(tensor)
    zeroed = {tensor.data_ptr(): zeros for tensor, zeros in made}
    for tensor in outputs:
        enter(tensor)
        allocations.append(
            Allocation(tuple(tensor.shape), tensor.dtype, zeroed.pop(tensor.data_ptr()))
        )
    for zeros in (False, True):
        size = 0
        for tensor, _ in made:
            if zeroed.get(tensor.data_ptr()) is zeros:
                enter(tensor, size)
                size += -(-tensor.nbytes // _APART) * _APART
        if size:
            allocations.append(Allocation((size,), torch.uint8, zeros))
    return allocations, spans


def _place(address: int, spans: list[MemorySpan]) -> tuple[int, int] | None:
    """The piece of memory that an address is in, and how far into it."""
    if address == 0:  # of a tensor of no numbers
        return -1, 0
    for begin, end, piece, at in spans:
        if begin <= address < end:
            return piece, at + address - begin
    return None
