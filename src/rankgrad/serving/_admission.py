"""Admission: bounds on the number of requests in progress and on their bytes, for ``_app``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rankgrad.serving._bodies import Limits, RequestError


class Admission:
    """Counts the requests in progress, and the bytes of their bodies.

    Args:
        limits: ``waiting`` bounds the requests, ``waiting_bytes`` the bytes.

    >>> from rankgrad.serving import Limits
    >>> from rankgrad.serving._admission import Admission
    >>> admission = Admission(Limits(waiting=1))
    >>> with admission.request() as hold:
    ...     hold(100)
    ...     admission.requests, admission.bytes
    (1, 100)
    >>> admission.requests, admission.bytes
    (0, 0)
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests = self.bytes = 0

    @contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Admit a request, and count it until it is answered.

        The context manager yields a function. Call it with the number of bytes that the request
        holds from then on; this number replaces the one of an earlier call.

        Raises:
            RequestError: 503 if too many requests are in progress. The function raises it if all
                requests would hold too many bytes.
        """
        if self.requests >= self.limits.waiting:
            message = f"{self.requests:,} requests are in progress, as many as may be: try again"
            raise RequestError(503, message)
        self.requests += 1
        request_bytes = 0

        def hold(count: int) -> None:
            nonlocal request_bytes
            total = self.bytes - request_bytes + count
            # Only growth is refused: the last call, hold(0), must not fail.
            if count > request_bytes and total > self.limits.waiting_bytes:
                message = f"requests in progress would hold {total:,} bytes, more than may be"
                raise RequestError(503, f"{message}: try again")
            self.bytes, request_bytes = total, count

        try:
            yield hold
        finally:
            self.requests -= 1
            hold(0)
