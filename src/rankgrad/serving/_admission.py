"""Admission: bounds on the requests in progress and on their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rankgrad.serving._bodies import Limits, RequestError


class Admission:
    """Counts the requests in progress, and the bytes that they hold.

    Args:
        limits: of both.

    >>> from rankgrad.serving import Limits
    >>> from rankgrad.serving._admission import Admission
    >>> admission = Admission(Limits(waiting=1))
    >>> with admission.request() as held:
    ...     held.hold(100)
    ...     admission.requests, admission.bytes
    (1, 100)
    >>> admission.requests, admission.bytes
    (0, 0)
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = self.bytes = 0

    @contextmanager
    def request(self) -> Iterator[Held]:
        """Admit a request, and count it until it is answered.

        Raises:
            RequestError: 503 if as many are in progress as may be.
        """
        if self.requests >= self.limits.waiting:
            raise RequestError(
                503, f"{self.requests:,} requests are in progress, as many as may be: try again"
            )
        self.requests += 1
        held = Held(self)
        try:
            yield held
        finally:
            self.requests -= 1
            held.hold(0)


class Held:
    """The bytes that one request holds."""

    def __init__(self, admission: Admission) -> None:
        self._admission, self._bytes = admission, 0

    def hold(self, count: int) -> None:
        """Set how many bytes the request holds from now on.

        Raises:
            RequestError: 503 if those of all requests are too many.
        """
        admission = self._admission
        total = admission.bytes - self._bytes + count
        if count > self._bytes and total > admission.limits.waiting_bytes:
            raise RequestError(
                503, f"requests in progress would hold {total:,} bytes, more than may be: try again"
            )
        admission.bytes, self._bytes = total, count
