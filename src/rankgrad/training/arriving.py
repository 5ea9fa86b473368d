"""Numbers on their way from the device to the host, which goes on with its work meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor


class Arriving:
    """A copy of a few numbers, made when the device comes to it.

    >>> few = torch.tensor([1.0, 2.0])
    >>> later = Arriving(few)
    >>> few += 1
    >>> later.here, later.numbers()
    (True, [1.0, 2.0])
    """

    def __init__(self, numbers: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if not numbers.is_cuda:
            self._numbers = numbers.detach().clone()
            return
        self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=True)
        self._numbers.copy_(numbers.detach(), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(numbers.device))

    @property
    def here(self) -> bool:
        """Whether they have come."""
        return self._event is None or bool(self._event.query())

    def numbers(self) -> list[float]:
        """The numbers, waited for if they are not here."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._numbers.tolist()
        return values
