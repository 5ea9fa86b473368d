"""Admission: bounds on the requests in progress and on their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rankgrad.serving._bodies import Limits, RequestError


class Admission:
    """Counts the requests in progress, and the bytes that they hold.

    Args:
        limits: of both.

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

        It yields a function that takes how many bytes the request holds from now on.

        Raises:
            RequestError: 503 if as many are in progress as may be; from the function, if all of
                them would hold too many bytes.
        """
        if self.requests >= self.limits.waiting:
            raise RequestError(
                503, f"{self.requests:,} requests are in progress, as many as may be: try again"
            )
        self.requests += 1
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            total = self.bytes - held + count
            if count > held and total > self.limits.waiting_bytes:
                message = f"requests in progress would hold {total:,} bytes, more than may be"
                raise RequestError(503, f"{message}: try again")
            self.bytes, held = total, count

        try:
            yield hold
        finally:
            self.requests -= 1
            hold(0)
