"""Two-way gRPC streams as services keep them: one reader that applies messages, one outbox that is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from wavepp.infra.outbox import Outbox

In = TypeVar("In")
Out = TypeVar("Out")


async def serve_stream(
    incoming: AsyncIterator[In], outbox: Outbox[Out], receive: Callable[[In], None]
) -> AsyncIterator[Out]:
    """The server's side of a stream: yield what is put into `outbox`, give what comes to `receive`.

    Ends when the peer has ended its side, or when the outbox is closed (another stream took over). What `receive`
    raises ends the stream with that error.
    """

    async def read() -> None:
        try:
            async for message in incoming:
                receive(message)
        finally:
            outbox.close()

    reader = asyncio.create_task(read(), name="stream-read")
    try:
        async for message in outbox:
            yield message
        if reader.done():
            await reader
    finally:
        outbox.close()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
