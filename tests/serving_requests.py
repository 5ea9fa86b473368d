"""Requests to the service, for its tests."""

import asyncio
import io

import httpx
import pyarrow as pa

ARROW = "application/vnd.apache.arrow.stream"


async def send(app, *requests):
    """Requests to an application, several at once; the responses."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await asyncio.gather(*(client.request(*a, **named) for a, named in requests))


def stream(table, compression=None):
    """A table as bytes of an Arrow stream."""
    sent = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sent, table.schema, options=options) as writer:
        writer.write_table(table)
    return sent.getvalue()
