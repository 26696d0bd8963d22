"""The directory's side of one stage's rounds stream: made again whenever it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

import grpc

from wavepp.codec import rounds
from wavepp.core.directory.events import Event, StageConnected, StageDisconnected
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import DirectoryEpoch, GrantId, StageIndex
from wavepp.infra.backoff import Backoff
from wavepp.infra.outbox import Outbox, OutboxFullError
from wavepp.infra.registration import StageRegistration
from wavepp.infra.rpc import open_channel
from wavepp.infra.streams import client_stream
from wavepp.v1 import stage_pb2, stage_pb2_grpc

_log = logging.getLogger(__name__)

COMMANDS_MAX: Final = 4096


class StageStream:
    """Keeps the stream to one registered stage process. `known` says what the stage must keep when it connects."""

    def __init__(
        self,
        registration: StageRegistration,
        directory_epoch: DirectoryEpoch,
        pipeline: str,
        *,
        known: Callable[[], frozenset[GrantId]],
        apply: Callable[[Event], None],
        connect_timeout_s: float,
    ) -> None:
        self.registration = registration
        self.stage = StageIndex(registration.stage)
        self._directory_epoch = directory_epoch
        self._pipeline = pipeline
        self._known = known
        self._apply = apply
        self._connect_timeout_s = connect_timeout_s
        self._outbox: Outbox[stage_pb2.RoundsCommand] = Outbox(COMMANDS_MAX)
        self._outbox.close()

    def send(self, command: stage_pb2.RoundsCommand) -> None:
        """Put a command on the stream; dropped while there is none (the next hello says what is to be kept)."""
        self._outbox.put(command)

    async def run(self) -> None:
        """Connect, and connect again, for ever; a task of the process."""
        backoff = Backoff()
        while True:
            try:
                async with open_channel(self.registration.address) as channel:
                    await self._talk(stage_pb2_grpc.StageServiceStub(channel), backoff)
            except (grpc.aio.AioRpcError, PeerProtocolError, OutboxFullError, TimeoutError) as error:
                _log.warning("stage %d: %s", self.stage, _words(error))
            finally:
                self._outbox.close()
                self._apply(StageDisconnected(self.stage))
            await asyncio.sleep(backoff.next_s())

    async def _talk(self, stub: stage_pb2_grpc.StageServiceAsyncStub, backoff: Backoff) -> None:
        known = self._known()
        self._outbox = Outbox(COMMANDS_MAX)
        hello = stage_pb2.RoundsHello(
            directory_epoch=self._directory_epoch, pipeline=self._pipeline, stage=self.stage, known_grants=known
        )
        self._outbox.put(stage_pb2.RoundsCommand(hello=hello))
        async with client_stream(stub.Rounds(_numbered(self._outbox)), self._outbox) as events:
            async with asyncio.timeout(self._connect_timeout_s):
                first = await anext(events, None)
            if first is None or first.WhichOneof("event") != "hello":
                raise PeerProtocolError("the stage did not answer the hello")
            if first.hello.incarnation != self.registration.incarnation:
                raise PeerProtocolError(
                    f"incarnation {first.hello.incarnation} answered, {self.registration.incarnation} is registered"
                )
            backoff.reset()
            self._apply(StageConnected(self.stage, first.hello.incarnation, first.hello.next_change, known))
            async for event in events:
                self._received(event)

    def _received(self, event: stage_pb2.RoundsEvent) -> None:
        match event.WhichOneof("event"):
            case "prepared":
                self._apply(rounds.decode_answers(self.stage, event.prepared, lowered=False))
            case "lowered":
                self._apply(rounds.decode_answers(self.stage, event.lowered, lowered=True))
            case "changes":
                self._apply(rounds.decode_changes(self.stage, event.changes))
            case "dump":
                self._apply(rounds.decode_dump(self.stage, event.dump))
            case other:
                raise PeerProtocolError(f"unexpected event {other!r}")


async def _numbered(outbox: Outbox[stage_pb2.RoundsCommand]) -> AsyncIterator[stage_pb2.RoundsCommand]:
    number = 0
    async for command in outbox:
        command.number = number
        number += 1
        yield command


def _words(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
