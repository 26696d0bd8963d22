"""Two-way gRPC streams as services keep them: one reader that applies messages, one outbox that is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

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


@asynccontextmanager
async def client_stream(call: Any, outbox: Outbox[Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """The client's side of a stream: `call` sends what is put into `outbox`; gives what comes. Ended on leaving.

    Raises OutboxFullError when the peer does not take what is sent. gRPC itself would only cancel the call, and reading
    it then looks like a cancellation of the task that reads: nobody would hear that it ended.
    """
    try:
        yield aiter(call)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            outbox.check()
        raise
    finally:
        call.cancel()
