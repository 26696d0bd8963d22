"""The client's side of a long-lived two-way stream: made again whenever it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import grpc

from wavepp.core.errors import InvariantError, PeerProtocolError, WaveppError
from wavepp.infra.backoff import Backoff
from wavepp.infra.outbox import Outbox
from wavepp.infra.rpc import open_channel
from wavepp.infra.rpc_errors import SUPERSEDED
from wavepp.infra.streams import client_stream

_log = logging.getLogger(__name__)

Command = TypeVar("Command")
Command_co = TypeVar("Command_co", covariant=True)
Event = TypeVar("Event")
Event_contra = TypeVar("Event_contra", contravariant=True)


class StreamOwner(Protocol[Command_co, Event_contra]):
    """What talks over a stream. Called on the event loop; must not block."""

    def hello(self) -> Command_co:
        """The first message of a new stream. Raises WaveppError when there is nothing to say now."""

    def greeted(self, event: Event_contra) -> None:
        """The answer to the hello: the stream is up. Raises PeerProtocolError for anything else."""

    def received(self, event: Event_contra) -> None:
        """What came next. Raises PeerProtocolError for what the peer must not send."""

    def lost(self, reason: str) -> None:
        """The stream broke, could not be made, or is given up."""

    def superseded(self) -> None:
        """The peer has seen a later leader than the one that this stream speaks for."""


class ReconnectingStream(Generic[Command, Event]):
    """Keeps a stream to one address; one at a time, with pauses that grow while the peer does not answer a hello."""

    def __init__(
        self,
        address: str,
        peer: str,
        kind: str,
        owner: StreamOwner[Command, Event],
        *,
        call: Callable[[grpc.aio.Channel, AsyncIterator[Command]], Any],
        commands_max: int,
        connect_timeout_s: float,
    ) -> None:
        """`peer` and `kind` (of the stream): names for logs and reasons. `call` begins the RPC, given what is to be
        sent. `connect_timeout_s`: for the answer to the hello.
        """
        self._address = address
        self._peer = peer
        self._kind = kind
        self._owner = owner
        self._call = call
        self._commands_max = commands_max
        self._connect_timeout_s = connect_timeout_s
        self._outbox: Outbox[Command] = Outbox(commands_max)
        self._outbox.close()
        self._talking: asyncio.Timeout | None = None
        self._ended_for = ""

    def send(self, command: Command) -> None:
        """Put a command on the stream; dropped while there is none: the next hello begins anew."""
        self._outbox.put(command)

    def remake(self, reason: str) -> None:
        """End the stream as if it had broken; nothing while there is none."""
        if self._talking is not None:
            self._ended_for = reason
            self._talking.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> NoReturn:
        """Connect, and connect again, until it is cancelled."""
        backoff = Backoff()
        while True:
            reason = f"the {self._kind} stream ended"
            async with open_channel(self._address) as channel:
                try:
                    await self._talk(channel, backoff)
                except grpc.aio.AioRpcError as error:
                    reason = f"{error.code().name}: {error.details()}"
                    if error.code() is SUPERSEDED:
                        self._owner.superseded()
                except InvariantError:
                    raise
                except (WaveppError, TimeoutError) as error:
                    reason = self._ended_for or str(error) or "no answer in time"
                finally:
                    self._talking, self._ended_for = None, ""
                    self._outbox.close()
                    # Before anything is waited for: who has cancelled this one may have begun another.
                    self._owner.lost(reason)
            _log.warning("%s at %s: %s", self._peer, self._address, reason)
            await asyncio.sleep(backoff.next_s())

    async def _talk(self, channel: grpc.aio.Channel, backoff: Backoff) -> None:
        self._outbox = Outbox(self._commands_max)
        self._outbox.put(self._owner.hello())
        async with client_stream(self._call(channel, aiter(self._outbox)), self._outbox) as events:
            async with asyncio.timeout(self._connect_timeout_s):
                first = await anext(events, None)
            if first is None:
                raise PeerProtocolError(f"{self._peer} did not answer the hello")
            self._owner.greeted(first)
            backoff.reset()
            async with asyncio.timeout(None) as self._talking:
                async for event in events:
                    self._owner.received(event)
