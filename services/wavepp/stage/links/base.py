"""The interface of links: what the stage uses, and what a transport must do, whatever carries the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wavepp.core.errors import InvalidInputError
from wavepp.core.limits import FRAME_PAYLOAD_BYTES_MAX
from wavepp.core.wire.hello import Hello
from wavepp.stage.links.errors import LinkLostError
from wavepp.stage.links.hello_check import HelloCheck

if TYPE_CHECKING:
    from typing_extensions import Buffer

Allocate = Callable[[bytes, int], "Buffer"]
"""Given a frame's header (its checksum is verified) and the payload's size in bytes (> 0): a writable,
C-contiguous buffer of exactly that size. Called from the event loop; it must not block."""


def allocate_plain(_header: bytes, nbytes: int) -> memoryview:
    """Fresh memory that is not cleared: the payload overwrites all of it before anybody sees it."""
    return np.empty(nbytes, dtype=np.uint8).data


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """What a deployment may tune. Both ends should agree on `heartbeat_s` < the other's `silence_s`."""

    payload_bytes_max: int
    """Largest payload that is sent or accepted: what one wave can need at this cut. A link holds at most
    FRAMES_UNREAD_MAX payloads that nobody has taken, so this bounds its memory."""
    heartbeat_s: float = 1.0
    """A heartbeat leaves when nothing else was sent for so long."""
    silence_s: float = 5.0
    """The link is lost when nothing was heard for so long."""
    handshake_s: float = 5.0
    """Time that an accepted connection has to say a proper hello."""
    goodbye_s: float = 0.5
    """Time that a close (or a refusal) waits for the goodbye to arrive."""
    allocate: Allocate = allocate_plain

    def __post_init__(self) -> None:
        if not 0 <= self.payload_bytes_max <= FRAME_PAYLOAD_BYTES_MAX:
            raise InvalidInputError(
                f"payload_bytes_max is {self.payload_bytes_max}; it must be in [0, {FRAME_PAYLOAD_BYTES_MAX}]"
            )
        if not 0 < self.heartbeat_s < self.silence_s:
            raise InvalidInputError(
                f"heartbeat_s ({self.heartbeat_s}) must be above 0 and below silence_s ({self.silence_s})"
            )
        if self.handshake_s <= 0 or self.goodbye_s <= 0:
            raise InvalidInputError("handshake_s and goodbye_s must be above 0")


@dataclass(frozen=True, slots=True)
class ReceivedFrame:
    """A frame that arrived whole. The payload is what `allocate` returned, filled; the receiver owns it."""

    header: bytes
    payload: Buffer


@dataclass(slots=True)
class LinkCounters:
    """Running totals of one link, for metrics. Bytes are of headers and payloads."""

    frames_sent: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    credit_waits: int = 0
    """Sends that had to wait because the receiver had FRAMES_UNREAD_MAX frames unread."""

    def __add__(self, other: LinkCounters) -> LinkCounters:
        """The totals of both."""
        return LinkCounters(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


class Link(Protocol):
    """One ordered, two-way stream of frames to one neighbour. Dead after the first error, for good."""

    @property
    def peer(self) -> Hello:
        """The other end's hello, as verified."""

    @property
    def counters(self) -> LinkCounters: ...

    @property
    def closed(self) -> asyncio.Future[LinkLostError]:
        """Done when the link is dead, with the error that `send` and `recv` raise from then on.

        Shared: await it through `asyncio.shield` or `asyncio.wait`, so that nobody cancels it.
        """

    async def send(self, header: bytes, payload: Sequence[Buffer] = ()) -> None:
        """Send one frame; its payload is the buffers joined in order (each C-contiguous).

        Waits while the receiver has FRAMES_UNREAD_MAX frames unread. When it returns, the buffers may be
        reused; the frame is on its way, which does not say that it arrived. Several tasks may send; each
        frame goes out whole. Cancelled while it waits, it leaves no trace; cancelled after a part of the
        frame left, the link is lost (SEND_ABANDONED).
        Raises InvalidInputError (header or payload above its bound; the link goes on) and LinkLostError.
        """

    async def recv(self) -> ReceivedFrame:
        """The next frame, in the order sent. Taking it lets the sender send another.

        May be cancelled (`asyncio.wait_for`) without losing a frame. Raises LinkLostError; frames that had
        arrived and were not taken are dropped with the link, since their epoch is over.
        """

    async def close(self, reason: str = "") -> None:
        """Say goodbye and tear down, within `goodbye_s`. Pending calls raise LinkLostError at once. Idempotent."""

    def abort(self, detail: str = "aborted") -> None:
        """Tear down at once, without a goodbye. Idempotent."""


class Wire(Protocol):
    """One connection: what a transport does for a session, which is to move bytes, and to end.

    Incoming messages go to the session, in three steps: `begin`, `header`, `arrived`.
    """

    @property
    def gone(self) -> asyncio.Event:
        """Set when the connection is torn down and its buffers are free."""

    def post(self, prologue: bytes, header: bytes) -> None:
        """Send a small message, in order with other small messages. Never waits and never raises."""

    async def write(self, prologue: bytes, header: bytes, payload: Sequence[memoryview]) -> None:
        """Send a frame; returns when the buffers may be reused. Raises LinkLostError as soon as it is lost."""

    def abort(self) -> None:
        """Tear down at once; sets `gone` soon. Idempotent."""


class LinkListener(Protocol):
    """Accepts links of peers whose hello passed the check."""

    async def start(self) -> str:
        """Listen; returns the address to publish, such as "tcp://10.0.0.7:4711". Raises LinkConnectError."""

    async def accept(self) -> Link:
        """The next link, or the error of a handshake that failed; after an error, call again.

        Raises HelloRefusedError (the check refused the peer) and LinkConnectError (no proper hello in time,
        or the connection went away). May be cancelled without losing a link.
        """

    async def close(self) -> None:
        """Stop listening; links that were accepted live on. Idempotent."""


class LinkConnector(Protocol):
    """Makes links to listeners."""

    async def connect(self, address: str, hello: Hello, timeout_s: float) -> Link:
        """Connect and exchange hellos within `timeout_s`.

        Raises InvalidInputError (not an address of this transport), LinkConnectError and HelloRefusedError.
        """


class Transport(LinkConnector, Protocol):
    """One way to carry links. Made by `make_transport`, inside a running event loop; belongs to that loop."""

    def listen(self, check: HelloCheck, *, host: str = "127.0.0.1", port: int = 0) -> LinkListener:
        """A listener on `host` (a name or address of this machine, which also goes into the published
        address) and `port` (0: any free one). It listens from `start` on."""

    async def close(self) -> None:
        """Close the listeners and abort the links that are left. Idempotent."""
