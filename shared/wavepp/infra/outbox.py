"""Messages on their way into a stream: bounded, filled without awaiting, emptied by the stream's writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Generic, TypeVar

from wavepp.core.errors import WaveppError

M = TypeVar("M")

OUTBOX_MESSAGES_MAX: Final = 65_536


class OutboxFullError(WaveppError):
    """The other side reads too slowly, or not at all: its stream is ended."""


class Outbox(Generic[M]):
    """Filled by `put`, read by one `async for`. Ends after `close`, or with OutboxFullError once it overflowed."""

    def __init__(self, messages_max: int = OUTBOX_MESSAGES_MAX) -> None:
        self._messages: deque[M] = deque()
        self._messages_max = messages_max
        self._changed = asyncio.Event()
        self._closed = False
        self._overflowed = False

    def put(self, message: M) -> None:
        """Append. After `close`, or once it overflowed, what is put is dropped: the stream is over."""
        if self._closed or self._overflowed:
            return
        if len(self._messages) >= self._messages_max:
            self._overflowed = True
            self._messages.clear()
        else:
            self._messages.append(message)
        self._changed.set()

    def close(self) -> None:
        """Let the reader end when it has read what is there."""
        self._closed = True
        self._changed.set()

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed or self._overflowed

    def check(self) -> None:
        """Raises OutboxFullError if it overflowed."""
        if self._overflowed:
            raise OutboxFullError(f"{self._messages_max} messages wait for a stream that does not take them")

    def __len__(self) -> int:
        return len(self._messages)

    async def __aiter__(self) -> AsyncIterator[M]:
        while True:
            while self._messages:
                yield self._messages.popleft()
            self.check()
            if self._closed:
                return
            self._changed.clear()
            await self._changed.wait()
