"""Ctrl-C as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from rankgrad.training import children


class Interrupts:
    """While open, the first Ctrl-C sets ``asked``; the second one interrupts as usual.

    Outside the main thread, where signals do not arrive, nothing is changed.

    Args:
        on_asked: called at the first one.
    """

    def __init__(self, on_asked: Callable[[], None] | None = None) -> None:
        self.asked = False
        self._on_asked = on_asked
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
            children.take_interrupts()  # one that came before, to a process of several, counts now
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self._on_asked is not None:
            self._on_asked()
