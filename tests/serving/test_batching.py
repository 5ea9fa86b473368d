"""Batches of requests."""

import asyncio
import time

import numpy as np
import pytest

from rankgrad.serving._batching import Batcher, Request
from rankgrad.serving._bodies import Lists, RequestError


def test_a_long_request_does_not_keep_the_service_from_stopping():
    scored = []

    def score(items, offsets):
        scored.append(len(items))
        time.sleep(0.05)
        return np.zeros(len(items), np.float32)

    def parse():
        offsets = np.arange(0, 400_001, 1000)
        return Lists(np.zeros((400_000, 1), np.float32), offsets, [None] * 400)

    async def stop():
        batcher = Batcher(score)
        response = asyncio.create_task(batcher.respond(Request(1, parse, lambda *_: b"")))
        while not scored:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(batcher.close)
        with pytest.raises(RequestError, match="has stopped"):
            await response

    asyncio.run(stop())
    assert sum(scored) <= 100_000 and max(scored) == 4000
