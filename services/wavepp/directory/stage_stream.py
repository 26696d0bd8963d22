"""The directory's side of one stage's rounds stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NoReturn

import grpc

from wavepp.codec import rounds
from wavepp.core.directory.events import Event, StageConnected, StageDisconnected
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import DirectoryEpoch, GrantId, StageIndex
from wavepp.infra.reconnect import ReconnectingStream
from wavepp.infra.registration import StageRegistration
from wavepp.v1 import stage_pb2, stage_pb2_grpc

COMMANDS_MAX: Final = 4096


class StageStream:
    """Keeps the stream to one registered stage process. `known` says what the stage must keep when it connects,
    `superseded` hears of a directory with a higher epoch."""

    def __init__(
        self,
        registration: StageRegistration,
        directory_epoch: DirectoryEpoch,
        pipeline: str,
        *,
        known: Callable[[], frozenset[GrantId]],
        apply: Callable[[Event], None],
        superseded: Callable[[], None],
        connect_timeout_s: float,
    ) -> None:
        self.superseded = superseded
        self.registration = registration
        self.stage = StageIndex(registration.stage)
        self._directory_epoch = directory_epoch
        self._pipeline = pipeline
        self._known = known
        self._told: frozenset[GrantId] = frozenset()
        self._apply = apply
        self._stream: ReconnectingStream[stage_pb2.RoundsCommand, stage_pb2.RoundsEvent] = ReconnectingStream(
            registration.address,
            f"stage {self.stage}",
            "rounds",
            self,
            call=_call,
            commands_max=COMMANDS_MAX,
            connect_timeout_s=connect_timeout_s,
        )

    def send(self, command: stage_pb2.RoundsCommand) -> None:
        """Put a command on the stream; dropped while there is none (the next hello says what is to be kept)."""
        self._stream.send(command)

    def remake(self, reason: str) -> None:
        """The stage is silent: end the stream and make another."""
        self._stream.remake(reason)

    async def run(self) -> NoReturn:
        """Keep the stream until it is cancelled."""
        await self._stream.run()

    # ---- StreamOwner ----

    def hello(self) -> stage_pb2.RoundsCommand:
        """That this directory leads, and which grants the stage is to keep."""
        self._told = self._known()
        hello = stage_pb2.RoundsHello(
            directory_epoch=self._directory_epoch, pipeline=self._pipeline, stage=self.stage, known_grants=self._told
        )
        return stage_pb2.RoundsCommand(hello=hello)

    def greeted(self, event: stage_pb2.RoundsEvent) -> None:
        """The stage is the registered process."""
        if event.WhichOneof("event") != "hello":
            raise PeerProtocolError("the stage did not answer the hello")
        if event.hello.incarnation != self.registration.incarnation:
            raise PeerProtocolError(
                f"incarnation {event.hello.incarnation} answered, {self.registration.incarnation} is registered"
            )
        self._apply(StageConnected(self.stage, event.hello.incarnation, event.hello.next_change, self._told))

    def received(self, event: stage_pb2.RoundsEvent) -> None:
        """Answers, and what the cache holds."""
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

    def lost(self, reason: str) -> None:
        """Nothing can be asked of the stage."""
        self._apply(StageDisconnected(self.stage))


def _call(channel: grpc.aio.Channel, commands: AsyncIterator[stage_pb2.RoundsCommand]) -> Any:
    return stage_pb2_grpc.StageServiceStub(channel).Rounds(_numbered(commands))


async def _numbered(commands: AsyncIterator[stage_pb2.RoundsCommand]) -> AsyncIterator[stage_pb2.RoundsCommand]:
    number = 0
    async for command in commands:
        command.number = number
        number += 1
        yield command
