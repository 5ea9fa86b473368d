"""Calls of kernels made again, without working out anew what they launch.

Such a call chooses grids and tiles, allocates, and has the arguments of every launch checked, in
Python, which takes longer than its kernels do on lists of usual size. All of that follows from
options and shapes. So a call that comes again and again is noted: what it allocates, and what it
launches on which of its memory. From then on the same launches are made on new memory.
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

from rankgrad.kernels.gpu.launch import Launch, launches_as_known, noting, watched

_EMPTY = ("aten::empty", "aten::empty_like", "aten::new_empty")
_ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros")
_TENSORS = (Tensor, torch.nn.Parameter)
_OPTIONS = (int, float, str, bool, type(None))
_APART = 512  # bytes from one tensor to the next are a multiple of it, as PyTorch itself has it
_MOST = 1024  # calls remembered
_LATELY = 64  # shapes and calls among which another is looked for before it is noted
_UNKNOWN: Any = object()

_Key = tuple[Any, ...]


def replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors and options that allocates and launches, its calls replayed.

    If it does anything else that is seen, and it is called itself then. All of its kernels must be
    :func:`~rankgrad.kernels.gpu.launch.quick` ones. What interpreted kernels do is not noted.
    """
    return Replayed(function) if launches_as_known() and not knobs.runtime.interpret else function


class Replayed:
    """A function and its calls, by all that their launches follow from.

    That is the options, and of tensors, which have no gaps, their types and shapes and whether they
    lie at a multiple of 16.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: dict[_Key, Call | None] = {}  # None where there is more to it than launches
        self.shapes: set[torch.Size] = set()  # those of their first tensors
        self._lately: set[int] = set()

    def __call__(self, *arguments: Any) -> Any:
        shape = arguments[0].shape
        if shape not in self.shapes and self._is_new(shape):
            return self.function(*arguments)
        facts: list[Any] = []
        tensors, addresses = [], []
        for argument in arguments:
            kind = type(argument)
            if kind in _OPTIONS:
                facts.append(argument)
            elif kind in _TENSORS and argument.is_contiguous():
                address = argument.data_ptr()
                tensors.append(argument)
                addresses.append(address)
                facts += argument.dtype, argument.shape, argument.get_device(), address % 16 == 0
            else:
                return self.function(*arguments)
        key = tuple(facts)
        call = self.calls.get(key, _UNKNOWN)
        if noting.launches is not None or watched():
            return self.function(*arguments)
        if call is _UNKNOWN:
            if self._is_new(key):
                return self.function(*arguments)
            return self._note(key, tensors, arguments)
        return self.function(*arguments) if call is None else call.again(addresses)

    def _is_new(self, fact: _Key) -> bool:
        """Whether a shape or a call has not come lately.

        It may never again: options are scheduled, and ragged batches differ in size or only happen
        not to. Noting a call, which takes several times as long as making it, would be vain then.
        """
        mark = hash(fact)
        if mark in self._lately:
            return False
        if len(self._lately) >= _LATELY:
            self._lately.clear()
        self._lately.add(mark)
        return True

    def _note(self, key: _Key, tensors: list[Tensor], arguments: tuple[Any, ...]) -> Any:
        with Notes() as notes:
            result = self.function(*arguments)
        if len(self.calls) >= _MOST:
            self.calls.clear()
            self.shapes.clear()
        self.calls[key] = Call.of(notes, tensors, result)
        self.shapes.add(tensors[0].shape)
        return result


class Notes(TorchDispatchMode):
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

    def __enter__(self) -> Notes:
        noting.launches = self.launches
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        noting.launches = None

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


class Room(NamedTuple):
    """Memory to be allocated."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    zeroed: bool

    def maker(self, device: torch.device) -> Callable[[], Tensor]:
        """What allocates it."""
        make = torch.zeros if self.zeroed else torch.empty
        return partial(make, self.shape, dtype=self.dtype, device=device)


class Span(NamedTuple):
    """Memory as it lay when it was noted; its piece of memory, and how far into that it begins."""

    begin: int
    end: int
    piece: int
    at: int


class Call:
    """What a call allocates and launches.

    Its memory is in pieces: inputs, outputs, and all else that it needs in one or two.

    Args:
        rooms: the pieces after the inputs, outputs first.
        outputs: how many those are; 0 for one tensor that is not given in a tuple.
        launches: with addresses as pieces and how far into them.
        device: where.
    """

    def __init__(
        self, rooms: list[Room], outputs: int, launches: list[Launch], device: torch.device
    ) -> None:
        self.device, self.outputs = device, outputs
        self.makers = [room.maker(device) for room in rooms]
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
    def of(cls, notes: Notes, inputs: list[Tensor], result: Any) -> Call | None:
        """From notes of it; None where they do not say all."""
        single = isinstance(result, Tensor)
        outputs = [result] if single else list(result)
        if not notes.complete or not _apart(inputs) or not _own(outputs, notes.made):
            return None
        rooms, spans = _lay_out(notes.made, inputs, outputs)
        launches = []
        for launch in notes.launches:
            if launch is None:
                return None
            arguments = list(launch.arguments)
            for at in launch.tensors:
                arguments[at] = _place(arguments[at], spans)
                if arguments[at] is None:
                    return None
            launches.append(launch._replace(arguments=arguments))
        return cls(rooms, 0 if single else len(outputs), launches, inputs[0].device)

    def again(self, addresses: list[int]) -> Any:
        """The same on inputs at these addresses."""
        made = [make() for make in self.makers]
        pieces = [*addresses, *[tensor.data_ptr() for tensor in made], 0]
        given = [pieces[piece] + at for piece, at in self.places] + self.constants
        stream = driver.active.get_current_stream(self.device.index)
        for run, grid, head, pick in self.launches:
            run(*grid, stream, *head, *pick(given))
        return tuple(made[: self.outputs]) if self.outputs else made[0]


def _apart(inputs: list[Tensor]) -> bool:
    """Whether inputs are told apart by their addresses."""
    spans = sorted((tensor.data_ptr(), tensor.nbytes) for tensor in inputs)
    ends = [address + size for address, size in spans]
    return all(end <= spans[at + 1][0] for at, end in enumerate(ends[:-1]))


def _own(outputs: list[Tensor], made: list[tuple[Tensor, bool]]) -> bool:
    """Whether outputs are tensors that were made, each another, and not parts of them."""
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor, _ in made}
    whole = all(sizes.get(tensor.data_ptr()) == tensor.nbytes > 0 for tensor in outputs)
    return whole and len({tensor.data_ptr() for tensor in outputs}) == len(outputs)


def _lay_out(
    made: list[tuple[Tensor, bool]], inputs: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Room], list[Span]]:
    """The pieces of memory after the inputs; and where in all pieces the noted memory will be."""
    rooms: list[Room] = []
    spans: list[Span] = []

    def enter(tensor: Tensor, at: int = 0) -> None:
        begin, piece = tensor.data_ptr(), len(rooms) + min(len(spans), len(inputs))
        spans.append(Span(begin, begin + tensor.nbytes, piece, at))

    for tensor in inputs:
        enter(tensor)
    zeroed = {tensor.data_ptr(): zeros for tensor, zeros in made}
    for tensor in outputs:
        enter(tensor)
        rooms.append(Room(tuple(tensor.shape), tensor.dtype, zeroed.pop(tensor.data_ptr())))
    for zeros in (False, True):
        size = 0
        for tensor, _ in made:
            if zeroed.get(tensor.data_ptr()) is zeros:
                enter(tensor, size)
                size += -(-tensor.nbytes // _APART) * _APART
        if size:
            rooms.append(Room((size,), torch.uint8, zeros))
    return rooms, spans


def _place(address: int, spans: list[Span]) -> tuple[int, int] | None:
    """The piece of memory that an address is in, and how far into it."""
    if address == 0:  # of a tensor of no numbers
        return -1, 0
    for begin, end, piece, at in spans:
        if begin <= address < end:
            return piece, at + address - begin
    return None
