"""A link that fails on purpose, for tests of whatever lies above links."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wavepp.core.errors import InvalidInputError
from wavepp.core.wire.hello import Hello
from wavepp.core.wire.prologue import FrameKind, Prologue
from wavepp.stage.links.base import Link, LinkCounters, LinkListener, ReceivedFrame, Transport
from wavepp.stage.links.errors import LinkLostError
from wavepp.stage.links.framing import flat_views
from wavepp.stage.links.hello_check import HelloCheck
from wavepp.stage.links.session import LinkSession

if TYPE_CHECKING:
    from typing_extensions import Buffer

Delay = Callable[[int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong with the frames that one link sends; they count from 0."""

    cut_before: int | None = None
    """The link is aborted in place of sending this frame."""
    corrupt_frame: int | None = None
    corrupt_at: int = 0
    """Which byte of that frame is inverted on the wire: an offset into prologue + header + payload."""
    delay: Delay | None = None
    """Awaited with the frame's number before it is sent: a sleep, or an event that the test sets."""


class FaultyLink:
    """Wraps a link; everything that the plan does not name goes through."""

    def __init__(self, inner: LinkSession, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan
        self._next = 0

    @property
    def peer(self) -> Hello:
        return self._inner.peer

    @property
    def counters(self) -> LinkCounters:
        return self._inner.counters

    @property
    def closed(self) -> asyncio.Future[LinkLostError]:
        return self._inner.closed

    async def send(self, header: bytes, payload: Sequence[Buffer] = ()) -> None:
        """See `Link.send`."""
        number, self._next = self._next, self._next + 1
        if self._plan.delay is not None:
            await self._plan.delay(number)
        if number == self._plan.cut_before:
            self.abort(f"fault plan: cut before frame {number}")
        if number == self._plan.corrupt_frame:
            await self._send_corrupted(header, payload)
        else:
            await self._inner.send(header, payload)

    async def recv(self) -> ReceivedFrame:
        """See `Link.recv`."""
        return await self._inner.recv()

    async def close(self, reason: str = "") -> None:
        """See `Link.close`."""
        await self._inner.close(reason)

    def abort(self, detail: str = "aborted") -> None:
        """See `Link.abort`."""
        self._inner.abort(detail)

    async def _send_corrupted(self, header: bytes, payload: Sequence[Buffer]) -> None:
        body = b"".join(flat_views(payload))
        prologue = Prologue.of(FrameKind.WAVE, header, len(body)).pack()
        frame = bytearray(prologue + header + body)
        if not 0 <= self._plan.corrupt_at < len(frame):
            raise InvalidInputError(f"corrupt_at {self._plan.corrupt_at} is outside a frame of {len(frame)} bytes")
        frame[self._plan.corrupt_at] ^= 0xFF
        head = len(prologue) + len(header)
        wrong_body = memoryview(bytes(frame[head:]))
        await self._inner.send_packed(
            bytes(frame[: len(prologue)]), bytes(frame[len(prologue) : head]), [wrong_body] if body else []
        )


class FaultyListener:
    """Wraps what a listener accepts."""

    def __init__(self, inner: LinkListener, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan

    async def start(self) -> str:
        """See `LinkListener.start`."""
        return await self._inner.start()

    async def accept(self) -> Link:
        """See `LinkListener.accept`."""
        return wrap(await self._inner.accept(), self._plan)

    async def close(self) -> None:
        """See `LinkListener.close`."""
        await self._inner.close()


class FaultyTransport:
    """Wraps every link of a transport, each with the same plan and its own count of frames."""

    def __init__(self, inner: Transport, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan

    def listen(self, check: HelloCheck, *, host: str = "127.0.0.1", port: int = 0) -> LinkListener:
        """See `Transport.listen`."""
        return FaultyListener(self._inner.listen(check, host=host, port=port), self._plan)

    async def connect(self, address: str, hello: Hello, timeout_s: float) -> Link:
        """See `LinkConnector.connect`."""
        return wrap(await self._inner.connect(address, hello, timeout_s), self._plan)

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._inner.close()


def wrap(link: Link, plan: FaultPlan) -> FaultyLink:
    """Put the plan in front of a link of one of the real transports."""
    if not isinstance(link, LinkSession):
        raise InvalidInputError(f"a {type(link).__name__} cannot be made faulty; it must come from a real transport")
    return FaultyLink(link, plan)
