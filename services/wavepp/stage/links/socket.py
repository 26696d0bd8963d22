"""Links over plain TCP: a `BufferedProtocol` that reads straight into the payload's buffer.

On the wire a message is its prologue, its header and its payload, one after the other. Needs nothing but the
event loop; fast on uvloop, correct on asyncio's own.
"""

from __future__ import annotations

import asyncio
import socket as net
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from wavepp.core.errors import InvalidInputError, PeerProtocolError
from wavepp.core.wire.hello import Hello
from wavepp.core.wire.prologue import PROLOGUE_BYTES, Prologue
from wavepp.infra.addresses import join_host_port
from wavepp.stage.links.base import LinkOptions
from wavepp.stage.links.errors import LinkConnectError, LossReason
from wavepp.stage.links.handshake_queue import HandshakeQueue
from wavepp.stage.links.hello_check import HelloCheck
from wavepp.stage.links.open_links import OpenLinks
from wavepp.stage.links.session import LinkSession

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SCRATCH_BYTES: Final = 64 * 1024
"""Prologues, headers and small payloads are read into this, many in one system call."""


class SocketWire(asyncio.BufferedProtocol):
    """A `Wire` over one TCP connection."""

    def __init__(self, session: LinkSession) -> None:
        self.gone = asyncio.Event()
        self._session = session
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._drained: asyncio.Future[None] | None = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._at = self._filled = 0  # the bytes in between are read and not parsed yet
        self._prologue: Prologue | None = None  # of the message whose header is awaited
        self._large: memoryview | None = None  # a header above the scratch, or a payload, that is being read into
        self._large_at = 0
        self._header = b""
        self._payload: Buffer | None = None  # set while `_large` is a payload
        session.attach(self)

    # --- Wire ----------------------------------------------------------------------------------------------

    def post(self, prologue: bytes, header: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(prologue + header)

    async def write(self, prologue: bytes, header: bytes, payload: Sequence[memoryview]) -> None:
        if self._transport is None or self._transport.is_closing():
            self._session.lose(LossReason.RESET, "the connection is closed")
            self._session.raise_lost()
        if len(prologue) + len(header) <= 4096:
            self._transport.writelines([prologue + header, *payload])
        else:
            self._transport.writelines([prologue, header, *payload])
        # The high-water mark is 0: the loop paused us unless the kernel took everything, and it keeps
        # references, not copies. Until it resumes us, the buffers are in use.
        if self._paused:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        if self._session.lost is not None:
            self._session.raise_lost()

    def abort(self) -> None:
        self._drop_buffers()
        if self._transport is None:
            self.gone.set()
        else:
            self._transport.abort()

    # --- BufferedProtocol ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        stream.set_write_buffer_limits(high=0)
        stream.get_extra_info("socket").setsockopt(net.IPPROTO_TCP, net.TCP_NODELAY, 1)
        if self._session.lost is not None:
            stream.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.lose(LossReason.RESET, str(exc) if exc else "the peer closed the connection")
        self._drop_buffers()
        self.gone.set()

    def eof_received(self) -> bool:
        return False  # close our half too; connection_lost follows

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._release_writer()

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_at :]
        return self._scratch[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._session.lost is not None:
            return  # what still comes in is dropped
        self._session.touch()
        try:
            if self._large is None:
                self._filled += nbytes
            else:
                self._large_at += nbytes
                if self._large_at < self._large.nbytes:
                    return
                self._finish_large(self._large)
            self._parse()
        except PeerProtocolError as error:
            self._session.breach(error)

    # --- parsing -------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        """Take messages out of the scratch, until what is left is a part of one that more reads must complete."""
        while self._session.lost is None and self._large is None:
            there = self._filled - self._at
            if self._prologue is None:
                if there < PROLOGUE_BYTES:
                    break
                self._prologue = self._session.begin(self._take(PROLOGUE_BYTES))
            elif there >= self._prologue.header_bytes:
                self._take_header(bytes(self._take(self._prologue.header_bytes)))
            elif self._prologue.header_bytes > _SCRATCH_BYTES // 2:
                self._start_large(memoryview(bytearray(self._prologue.header_bytes)))
            else:
                break
        if self._at:
            rest = bytes(self._take(self._filled - self._at))
            self._scratch[: len(rest)] = rest
            self._at, self._filled = 0, len(rest)

    def _take(self, nbytes: int) -> memoryview:
        taken = self._scratch[self._at : self._at + nbytes]
        self._at += nbytes
        return taken

    def _take_header(self, header: bytes) -> None:
        assert self._prologue is not None
        prologue, self._prologue = self._prologue, None
        place = self._session.header(prologue, header)
        if place is None:
            return
        self._header, (self._payload, view) = header, place
        self._start_large(view)

    def _start_large(self, view: memoryview) -> None:
        """Read into `view` until it is full, starting with what the scratch holds of it."""
        here = min(self._filled - self._at, view.nbytes)
        view[:here] = self._take(here)
        if here == view.nbytes:
            self._finish_large(view)
        else:
            self._large, self._large_at = view, here

    def _finish_large(self, view: memoryview) -> None:
        self._large = None
        if self._payload is None:
            self._take_header(bytes(view))
            return
        payload, self._payload = self._payload, None
        self._session.arrived(self._header, payload, view.nbytes)

    def _drop_buffers(self) -> None:
        self._large = self._payload = None
        self._at = self._filled = 0
        self._release_writer()

    def _release_writer(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None


class SocketListener:
    """A `LinkListener` on one TCP port."""

    def __init__(self, links: OpenLinks, check: HelloCheck, host: str, port: int) -> None:
        self._links = links
        self._check = check
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._handshakes = HandshakeQueue(links.options)

    async def start(self) -> str:
        """See `LinkListener.start`."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._newcomer, self._host, self._port)
        except OSError as error:
            raise LinkConnectError(f"cannot listen on {join_host_port(self._host, self._port)}: {error}") from error
        port = self._server.sockets[0].getsockname()[1]
        return f"tcp://{join_host_port(self._host, port)}"

    async def accept(self) -> LinkSession:
        """See `LinkListener.accept`."""
        return await self._handshakes.accept()

    async def close(self) -> None:
        """See `LinkListener.close`."""
        if self._server is not None:
            self._server.close()
        await self._handshakes.close()

    def _newcomer(self) -> SocketWire:
        session = self._links.new_session()
        session.prepare_answer(self._check)
        wire = SocketWire(session)
        self._handshakes.welcome(session)
        return wire


class SocketTransport:
    """The `socket` transport."""

    def __init__(self, options: LinkOptions) -> None:
        self._links = OpenLinks(options)

    def listen(self, check: HelloCheck, *, host: str = "127.0.0.1", port: int = 0) -> SocketListener:
        """See `Transport.listen`."""
        listener = SocketListener(self._links, check, host, port)
        self._links.add_listener(listener)
        return listener

    async def connect(self, address: str, hello: Hello, timeout_s: float) -> LinkSession:
        """See `LinkConnector.connect`."""
        host, port = split_address(address, "tcp")
        self._links.require_open()
        session = self._links.new_session()
        loop = asyncio.get_running_loop()
        session.prepare_greeting(hello)
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await loop.create_connection(lambda: SocketWire(session), host, port)
        except TimeoutError:
            session.abort("connecting took too long")
            raise LinkConnectError(f"no connection to {address} within {timeout_s} s") from None
        except OSError as error:
            session.abort("connecting failed")
            raise LinkConnectError(f"cannot connect to {address}: {error}") from error
        await session.greet(hello, max(deadline - loop.time(), 0.0))
        return session

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._links.close()


def split_address(address: str, scheme: str) -> tuple[str, int]:
    """Host and port of "<scheme>://host:port". Raises InvalidInputError."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInputError(f"{address!r} is not an address: {error}") from error
    if parts.scheme != scheme or not host or not port:
        raise InvalidInputError(f"{address!r} is not an address of this transport ({scheme}://host:port)")
    return host, port
