"""How messages travel over UCX: on the endpoint's stream, as over a socket, one after the other.

A message is its prologue and header, sent as one, and its payload. A short message goes out whole; a long payload
goes in segments of at most 4 MiB, two on the way at a time, so that its progress is a sign of life at the other end.
What is posted while a frame goes out (heartbeats, credits) follows it. A receive is always posted, and never
cancelled: the endpoint is closed instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from wavepp.core.errors import PeerProtocolError
from wavepp.core.wire.prologue import PROLOGUE_BYTES, Prologue
from wavepp.stage.links.errors import LossReason
from wavepp.stage.links.session import LinkSession
from wavepp.stage.links.ucx_driver import Done, UcxDriver

if TYPE_CHECKING:
    from typing_extensions import Buffer

SEGMENT_BYTES: Final = 4 * 1024 * 1024
"""Long enough that the cost of one message does not count, short enough to be a sign of life on a slow network."""

_WHOLE_BYTES: Final = 8 * 1024
"""Up to this size a frame is copied together: that costs less than a second operation."""
_SEGMENTS_AHEAD: Final = 2


class UcxWire:
    """A `Wire` over one UCX endpoint."""

    def __init__(self, driver: UcxDriver, endpoint: Any, session: LinkSession) -> None:
        self.gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._driver = driver
        self._endpoint = endpoint
        self._session = session
        self._dead = False
        # Sending.
        self._in_frame = False
        self._held: list[bytes] = []  # small messages that wait for the frame to be out; heartbeats bound them
        self._unsent = 0
        self._writer: asyncio.Future[None] | None = None
        # Receiving.
        self._raw_prologue = bytearray(PROLOGUE_BYTES)
        self._header = b""
        self._payload: Buffer = b""
        self._view = memoryview(b"")
        self._sizes: Iterator[int] = iter(())
        self._posted = self._filled = 0  # bytes of the view
        self._segments_posted = 0
        session.attach(self)
        driver.on_close(endpoint, self._on_close)
        self._await_message()

    # --- Wire ----------------------------------------------------------------------------------------------

    def post(self, prologue: bytes, header: bytes) -> None:
        if self._dead:
            return
        if self._in_frame:
            self._held.append(prologue + header)
        else:
            self._send(prologue + header, self._on_posted)

    async def write(self, prologue: bytes, header: bytes, payload: Sequence[memoryview]) -> None:
        self._in_frame = True
        if len(prologue) + len(header) + sum(view.nbytes for view in payload) <= _WHOLE_BYTES:
            await self._write(b"".join((prologue, header, *payload)))
        else:
            await self._write(prologue + header)
            for segment in segments(payload):
                await self._write(segment)
        self._in_frame = False
        if self._held:
            self._send(b"".join(self._held), self._on_posted)
            self._held.clear()
        while self._unsent:
            await self._one_sent()
        if self._session.lost is not None:
            self._session.raise_lost()

    def abort(self) -> None:
        if self._dead:
            return
        self._dead = True
        self._payload = b""
        self._view = memoryview(b"")
        self._held.clear()
        self._wake_writer()
        # Not here: we may be inside a round of callbacks of the very driver.
        self._loop.call_soon(self._tear_down)

    # --- sending -------------------------------------------------------------------------------------------

    async def _write(self, data: Buffer) -> None:
        while self._unsent >= _SEGMENTS_AHEAD:
            await self._one_sent()
        if self._session.lost is not None:
            self._session.raise_lost()
        self._unsent += 1
        self._send(data, self._on_written)

    def _send(self, data: Buffer, done: Done) -> None:
        if self._dead:
            return
        try:
            if self._driver.send(self._endpoint, data, self, done):
                done(None)
        except self._driver.ucx_error as error:
            self._fail(error)

    async def _one_sent(self) -> None:
        if self._session.lost is not None:
            self._session.raise_lost()
        self._writer = self._loop.create_future()
        await self._writer

    def _on_posted(self, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)

    def _on_written(self, error: Exception | None) -> None:
        self._unsent -= 1
        if error is not None:
            self._fail(error)
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
        self._writer = None

    # --- receiving -----------------------------------------------------------------------------------------

    def _receive(self, into: Buffer, done: Done) -> None:
        if self._dead:
            return
        try:
            self._driver.receive(self._endpoint, into, self, done)
        except self._driver.ucx_error as error:
            self._fail(error)

    def _await_message(self) -> None:
        self._receive(self._raw_prologue, self._on_prologue)

    def _on_prologue(self, error: Exception | None) -> None:
        if not self._is_fine(error):
            return
        try:
            prologue = self._session.begin(self._raw_prologue)
            if prologue.header_bytes == 0:
                self._take_header(prologue, b"")
                return
        except PeerProtocolError as breach:
            self._session.breach(breach)
            return
        header = bytearray(prologue.header_bytes)
        self._receive(header, lambda error: self._on_header(prologue, header, error))

    def _on_header(self, prologue: Prologue, header: bytearray, error: Exception | None) -> None:
        if not self._is_fine(error):
            return
        try:
            self._take_header(prologue, bytes(header))
        except PeerProtocolError as breach:
            self._session.breach(breach)

    def _take_header(self, prologue: Prologue, header: bytes) -> None:
        place = self._session.header(prologue, header)
        if self._dead:
            return
        if place is None:
            self._await_message()
            return
        self._header, (self._payload, self._view) = header, place
        self._sizes = segment_sizes(self._view.nbytes)
        self._posted = self._filled = 0
        self._advance()

    def _advance(self) -> None:
        """Report the frame when its payload is complete; until then keep receives for its segments posted."""
        if self._filled == self._view.nbytes:
            payload, nbytes = self._payload, self._view.nbytes
            self._payload, self._view = b"", memoryview(b"")
            self._session.arrived(self._header, payload, nbytes)
            self._await_message()
            return
        while self._segments_posted < _SEGMENTS_AHEAD and (size := next(self._sizes, 0)):
            into = self._view[self._posted : self._posted + size]
            self._posted += size
            self._segments_posted += 1
            self._receive(into, self._segment_done(size))

    def _segment_done(self, size: int) -> Done:
        def done(error: Exception | None) -> None:
            if self._is_fine(error):
                self._segments_posted -= 1
                self._filled += size
                self._advance()

        return done

    # --- the end -------------------------------------------------------------------------------------------

    def _is_fine(self, error: Exception | None) -> bool:
        """Whether a receive brought something that is to be looked at."""
        if self._dead:
            return False
        if error is not None:
            self._fail(error)
            return False
        self._session.touch()
        return True

    def _fail(self, error: Exception) -> None:
        # When the endpoint is dead, what it says tells more than a request that was cut short by that.
        detail = str(error) if self._dead or self._endpoint.alive else self._driver.error_of(self._endpoint)
        self._session.lose(LossReason.RESET, f"UCX: {detail}")

    def _on_close(self) -> None:
        if not self._dead:
            self._session.lose(LossReason.RESET, f"UCX: {self._driver.error_of(self._endpoint)}")

    def _tear_down(self) -> None:
        self._driver.close_endpoint(self._endpoint, self)
        self._endpoint = None
        self.gone.set()


def segment_sizes(nbytes: int, segment_bytes: int = SEGMENT_BYTES) -> Iterator[int]:
    """Sizes of the segments of a payload of `nbytes`: all `segment_bytes` long but for the last."""
    for start in range(0, nbytes, segment_bytes):
        yield min(segment_bytes, nbytes - start)


def segments(buffers: Sequence[memoryview], segment_bytes: int = SEGMENT_BYTES) -> Iterator[memoryview]:
    """The joined buffers (flat byte views), cut at multiples of `segment_bytes`.

    A segment that lies in one buffer is a view of it; one that straddles buffers is a copy.
    """
    parts: list[memoryview] = []
    room = segment_bytes
    for buffer in buffers:
        at = 0
        while at < buffer.nbytes:
            part = buffer[at : at + room]
            parts.append(part)
            at += part.nbytes
            room -= part.nbytes
            if room == 0:
                yield _join(parts)
                parts, room = [], segment_bytes
    if parts:
        yield _join(parts)


def _join(parts: list[memoryview]) -> memoryview:
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
