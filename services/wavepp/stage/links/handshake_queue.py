"""The accepting side of a listener: many handshakes at once, one bounded queue of what came of them."""

from __future__ import annotations

import asyncio
from typing import Final

from wavepp.stage.links.base import LinkOptions
from wavepp.stage.links.errors import HelloRefusedError, LinkConnectError
from wavepp.stage.links.session import LinkSession

HANDSHAKES_MAX: Final = 16
"""Connections that may be in their handshake, or done and not accepted, at one time. More are turned away."""


class HandshakeQueue:
    """Runs each newcomer's handshake in its own task, so that a mute connection keeps nobody else waiting."""

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self._handshakes: dict[asyncio.Task[None], LinkSession] = {}
        self._results: asyncio.Queue[LinkSession | HelloRefusedError | LinkConnectError] = asyncio.Queue()
        self._closed = False

    def welcome(self, session: LinkSession) -> None:
        """Take in a session whose wire is attached and whose answer is prepared; end it where there is no room."""
        if self._closed or len(self._handshakes) + self._results.qsize() >= HANDSHAKES_MAX:
            session.abort("too many connections are in their handshake")
            return
        task = asyncio.get_running_loop().create_task(self._receive(session))
        self._handshakes[task] = session
        task.add_done_callback(self._handshakes.pop)

    async def accept(self) -> LinkSession:
        """See `LinkListener.accept`."""
        result = await self._results.get()
        if self._closed:
            self._results.put_nowait(result)  # for whoever else waits here
        if not isinstance(result, LinkSession):
            raise result
        if result.lost is not None:
            raise LinkConnectError(f"the link was lost before it was accepted: {result.lost.detail}")
        return result

    async def close(self) -> None:
        """End the handshakes, abort the links that nobody accepted, and wake everybody who waits in `accept`."""
        self._closed = True
        pending = list(self._handshakes.items())
        for task, session in pending:
            session.abort("the listener was closed")
            task.cancel()
        await asyncio.gather(*(task for task, _ in pending), return_exceptions=True)
        while not self._results.empty():
            result = self._results.get_nowait()
            if isinstance(result, LinkSession):
                result.abort("the listener was closed")
        self._results.put_nowait(LinkConnectError("the listener was closed"))

    async def _receive(self, session: LinkSession) -> None:
        try:
            await session.answered(self._options.handshake_s)
        except (HelloRefusedError, LinkConnectError) as error:
            self._results.put_nowait(error)
        else:
            self._results.put_nowait(session)
