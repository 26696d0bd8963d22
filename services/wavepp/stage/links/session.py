"""One link's life, the same over every transport: hello, credits, heartbeats, loss.

A `LinkSession` decides; a `Wire` moves bytes. Incoming messages come in three steps, so that nothing is
allocated before it was verified: `begin` (prologue), `header` (checksum; returns where the payload goes) and
`arrived` (payload complete). Everything here runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from wavepp.core.errors import InvalidInputError, PeerProtocolError
from wavepp.core.limits import FRAME_HEADER_BYTES_MAX, FRAMES_UNREAD_MAX
from wavepp.core.wire.goodbye import BYE_BYTES_MAX, ByeCode, decode_bye, encode_bye
from wavepp.core.wire.hello import HELLO_BYTES_MAX, Hello, decode_hello, encode_hello
from wavepp.core.wire.prologue import FrameError, FrameKind, Prologue
from wavepp.stage.links.base import LinkCounters, LinkOptions, ReceivedFrame, Wire
from wavepp.stage.links.errors import HelloRefusedError, LinkConnectError, LinkLostError, LossReason
from wavepp.stage.links.framing import flat_views, writable_view
from wavepp.stage.links.hello_check import HelloCheck, require_mirror
from wavepp.stage.links.keepalive import Keepalive

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HEADER_BYTES_MAX = {
    FrameKind.HELLO: HELLO_BYTES_MAX,
    FrameKind.WAVE: FRAME_HEADER_BYTES_MAX,
    FrameKind.HEARTBEAT: 0,
    FrameKind.CREDIT: 0,
    FrameKind.BYE: BYE_BYTES_MAX,
}
_CREDIT = Prologue.of(FrameKind.CREDIT, b"").pack()
_HEARTBEAT = Prologue.of(FrameKind.HEARTBEAT, b"").pack()


class LinkSession:
    """The `Link` of both transports. States: greeting, open, lost."""

    def __init__(self, options: LinkOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._check_hello: Callable[[Hello], Hello | None] | None = None
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._peer: Hello | None = None
        self._lost: LinkLostError | None = None
        self._closed: asyncio.Future[LinkLostError] = self._loop.create_future()
        self._counters = LinkCounters()
        self._unread: deque[ReceivedFrame] = deque()
        self._untaken = 0  # frames announced by the peer and not taken yet, arriving ones included
        self._readable = asyncio.Event()
        self._credits = FRAMES_UNREAD_MAX
        self._credit_waiter: asyncio.Future[None] | None = None
        self._sending = asyncio.Lock()
        self._keepalive = Keepalive(
            options.heartbeat_s,
            options.silence_s,
            beat=lambda: self._post(_HEARTBEAT, b""),
            silent=lambda seconds: self.lose(LossReason.SILENT, f"nothing was heard for {seconds:.2f} s"),
        )

    # --- what the owner of the link sees -------------------------------------------------------------------

    @property
    def peer(self) -> Hello:
        if self._peer is None:
            raise InvalidInputError("the link has no peer before its handshake is done")
        return self._peer

    @property
    def counters(self) -> LinkCounters:
        return self._counters

    @property
    def closed(self) -> asyncio.Future[LinkLostError]:
        return self._closed

    @property
    def lost(self) -> LinkLostError | None:
        """The error that ended the link, or None while it lives."""
        return self._lost

    async def send(self, header: bytes, payload: Sequence[Buffer] = ()) -> None:
        """See `Link.send`."""
        views = flat_views(payload)
        nbytes = sum(view.nbytes for view in views)
        if nbytes > self._options.payload_bytes_max:
            raise InvalidInputError(
                f"payload of {nbytes} bytes; this link takes at most {self._options.payload_bytes_max} "
                "(payload_bytes_max)"
            )
        await self.send_packed(Prologue.of(FrameKind.WAVE, header, nbytes).pack(), header, views)

    async def send_packed(self, prologue: bytes, header: bytes, payload: Sequence[memoryview]) -> None:
        """`send` without its checks, for whoever wants to put wrong bytes on the wire (tests do)."""
        async with self._sending:
            await self._take_credit()
            self._keepalive.spoke()
            try:
                await self._live_wire().write(prologue, header, payload)
            except asyncio.CancelledError:
                self.lose(LossReason.SEND_ABANDONED, "a send was cancelled after a part of its frame had left")
                raise
            self._counters.frames_sent += 1
            self._counters.bytes_sent += len(header) + sum(view.nbytes for view in payload)

    async def recv(self) -> ReceivedFrame:
        """See `Link.recv`."""
        while True:
            if self._lost is not None:
                self.raise_lost()
            if self._unread:
                break
            self._readable.clear()
            await self._readable.wait()
        frame = self._unread.popleft()
        self._untaken -= 1
        self._post(_CREDIT, b"")
        return frame

    async def close(self, reason: str = "") -> None:
        """See `Link.close`."""
        await self._part(ByeCode.CLOSED, reason or "closed", LossReason.CLOSED)

    def abort(self, detail: str = "aborted") -> None:
        """See `Link.abort`."""
        self.lose(LossReason.CUT, detail)

    async def torn_down(self) -> None:
        """Wait, after the link was lost, until its connection is gone and its buffers are free."""
        if self._wire is not None:
            await self._wire.gone.wait()

    # --- the handshake -------------------------------------------------------------------------------------

    def attach(self, wire: Wire) -> None:
        """Give the session its transport, before any byte comes in."""
        self._wire = wire

    def prepare_answer(self, check: HelloCheck) -> None:
        """Be the accepting side; call it before any byte comes in."""
        self._check_hello = check

    async def answered(self, timeout_s: float) -> None:
        """Wait until the connecting side said a hello that the check accepted.

        Raises HelloRefusedError and LinkConnectError; the link is dead after either.
        """
        await self._handshake(timeout_s)

    def prepare_greeting(self, own: Hello) -> None:
        """Be the connecting side; call it before any byte comes in."""

        def check(peer: Hello) -> None:
            require_mirror(own, peer)

        self._check_hello = check

    async def greet(self, own: Hello, timeout_s: float) -> None:
        """Say hello and wait for the answer. Raises HelloRefusedError and LinkConnectError."""
        self._post_kind(FrameKind.HELLO, encode_hello(own))
        await self._handshake(timeout_s)

    async def _handshake(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._greeted)
        except TimeoutError:
            detail = f"no proper hello within {timeout_s} s; is the other end a WavePP stage of this version?"
            self.lose(LossReason.SILENT, detail)
            raise LinkConnectError(detail) from None
        except HelloRefusedError as error:
            await self._part(ByeCode.REFUSED, str(error), LossReason.PROTOCOL)
            raise
        except LinkLostError as error:
            raise LinkConnectError(f"the connection ended in the handshake: {error.detail}") from error
        except asyncio.CancelledError:
            self.abort("the handshake was cancelled")
            raise

    def _on_hello(self, peer: Hello) -> None:
        if self._check_hello is None:
            raise FrameError("hello on a link that is not in its handshake")
        check, self._check_hello = self._check_hello, None
        try:
            answer = check(peer)
        except HelloRefusedError as error:
            self._fail_greeting(error)
            return
        except Exception as error:
            self.lose(LossReason.FAULT, f"the hello check raised {error!r}")
            raise
        if answer is not None:
            self._post_kind(FrameKind.HELLO, encode_hello(answer))
        self._peer = peer
        if not self._greeted.done():
            self._greeted.set_result(None)
        if self._lost is None:
            self._keepalive.start()

    # --- what the wire reports -----------------------------------------------------------------------------

    def touch(self) -> None:
        """Bytes came in."""
        self._keepalive.heard()

    def begin(self, raw: Buffer) -> Prologue:
        """Verify a prologue against the protocol, the bounds and the link's state, before anything is allocated.

        Raises PeerProtocolError; the wire then calls `breach`.
        """
        prologue = Prologue.unpack(raw)
        kind = prologue.kind
        greeting = self._peer is None
        if greeting and kind not in (FrameKind.HELLO, FrameKind.BYE):
            raise FrameError(f"{kind.name} before the handshake is done")
        if prologue.header_bytes > _HEADER_BYTES_MAX[kind]:
            raise FrameError(f"{kind.name} header of {prologue.header_bytes} bytes, at most {_HEADER_BYTES_MAX[kind]}")
        payload_max = self._options.payload_bytes_max if kind is FrameKind.WAVE else 0
        if prologue.payload_bytes > payload_max:
            raise FrameError(
                f"{kind.name} payload of {prologue.payload_bytes} bytes, at most {payload_max} (payload_bytes_max)"
            )
        if kind is FrameKind.WAVE:
            if self._untaken >= FRAMES_UNREAD_MAX:
                raise FrameError(f"frame without credit: {FRAMES_UNREAD_MAX} frames are unread")
            self._untaken += 1
        return prologue

    def header(self, prologue: Prologue, header: bytes) -> tuple[Buffer, memoryview] | None:
        """Verify a header. For a frame: its payload buffer and a flat view of it to fill; then call `arrived`.

        Other messages are dealt with at once, and None is returned. Raises PeerProtocolError; an exception
        of the allocation hook loses the link and goes on.
        """
        prologue.verify_header(header)
        match prologue.kind:
            case FrameKind.WAVE:
                return self._allocate(header, prologue.payload_bytes)
            case FrameKind.HELLO:
                self._on_hello(decode_hello(header))
            case FrameKind.CREDIT:
                self._on_credit()
            case FrameKind.BYE:
                self._on_bye(*decode_bye(header))
            case FrameKind.HEARTBEAT:
                pass
        return None

    def arrived(self, header: bytes, payload: Buffer, nbytes: int) -> None:
        """A frame is complete; frames are reported in the order in which their prologues were."""
        if self._lost is not None:
            return
        self._counters.frames_received += 1
        self._counters.bytes_received += len(header) + nbytes
        self._unread.append(ReceivedFrame(header, payload))
        self._readable.set()

    def breach(self, error: PeerProtocolError) -> None:
        """The peer broke the protocol: tell it why, as far as that still goes, and lose the link."""
        if self._lost is None:
            self._post_kind(FrameKind.BYE, encode_bye(ByeCode.PROTOCOL, str(error)))
            self.lose(LossReason.PROTOCOL, str(error))

    def lose(self, reason: LossReason, detail: str) -> None:
        """End the link now: pending calls raise, frames that nobody took are dropped, the wire is torn down."""
        self._end(reason, detail)
        if self._wire is not None:
            self._wire.abort()

    # --- inside --------------------------------------------------------------------------------------------

    def _allocate(self, header: bytes, nbytes: int) -> tuple[Buffer, memoryview]:
        if nbytes == 0:
            empty = bytearray()
            return empty, memoryview(empty)
        try:
            buffer = self._options.allocate(header, nbytes)
            return buffer, writable_view(buffer, nbytes)
        except Exception as error:
            self.lose(LossReason.FAULT, f"no buffer for a payload of {nbytes} bytes: {error}")
            raise

    def _on_credit(self) -> None:
        if self._credits >= FRAMES_UNREAD_MAX:
            raise FrameError("credit for a frame that was never sent")
        self._credits += 1
        if self._credit_waiter is not None and not self._credit_waiter.done():
            self._credit_waiter.set_result(None)

    def _on_bye(self, code: ByeCode, text: str) -> None:
        if code is ByeCode.REFUSED:
            self._fail_greeting(HelloRefusedError(f"the other end refused: {text}"))
        detail = f"the peer takes what we sent for a breach: {text}" if code is ByeCode.PROTOCOL else text
        self.lose(LossReason.CLOSED_BY_PEER, detail)

    async def _take_credit(self) -> None:
        if self._lost is None and self._credits == 0:
            self._counters.credit_waits += 1
        while self._lost is None and self._credits == 0:
            self._credit_waiter = self._loop.create_future()
            try:
                await self._credit_waiter
            finally:
                self._credit_waiter = None
        if self._lost is not None:
            self.raise_lost()
        self._credits -= 1

    def _post_kind(self, kind: FrameKind, header: bytes) -> None:
        self._post(Prologue.of(kind, header).pack(), header)

    def _post(self, prologue: bytes, header: bytes) -> None:
        self._keepalive.spoke()
        self._live_wire().post(prologue, header)

    def _live_wire(self) -> Wire:
        if self._lost is not None:
            self.raise_lost()
        if self._wire is None:
            raise InvalidInputError("attach a wire before the session is used")
        return self._wire

    def raise_lost(self) -> NoReturn:
        """Raise what ended the link. Only for a link that is lost."""
        assert self._lost is not None
        # A new object each time: raising a shared one from several tasks would pile up their tracebacks on it.
        raise LinkLostError(self._lost.reason, self._lost.detail)

    def _end(self, reason: LossReason, detail: str) -> None:
        if self._lost is not None:
            return
        self._lost = error = LinkLostError(reason, detail)
        self._unread.clear()
        self._readable.set()
        self._keepalive.stop()
        if self._credit_waiter is not None and not self._credit_waiter.done():
            self._credit_waiter.set_result(None)
        self._fail_greeting(error)
        if not self._closed.done():
            self._closed.set_result(error)

    def _fail_greeting(self, error: HelloRefusedError | LinkLostError) -> None:
        if not self._greeted.done():
            self._greeted.set_exception(error)
            self._greeted.exception()  # whoever waited may have given up; asyncio need not report that

    async def _part(self, code: ByeCode, text: str, reason: LossReason) -> None:
        """Say goodbye, then wait for the other end to hang up, at most `goodbye_s`; tear down in any case."""
        wire = self._wire
        if wire is None:
            self._end(reason, text)
            return
        if self._lost is None:
            self._post_kind(FrameKind.BYE, encode_bye(code, text))
            self._end(reason, text)
        try:
            async with asyncio.timeout(self._options.goodbye_s):
                await wire.gone.wait()
        except TimeoutError:
            pass
        finally:
            wire.abort()
        await wire.gone.wait()
