"""The router's side of one stage process' control stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NoReturn

import grpc

from wavepp.codec import control
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import Incarnation, StageIndex
from wavepp.core.router import epochs as ep
from wavepp.infra.reconnect import ReconnectingStream
from wavepp.infra.registration import StageRegistration
from wavepp.v1 import stage_pb2, stage_pb2_grpc

COMMANDS_MAX: Final = 1024
CONNECT_TIMEOUT_S: Final = 3.0


class StageControl:
    """Keeps the control stream to one registered stage process, and says when it is up or down."""

    def __init__(
        self,
        registration: StageRegistration,
        hello: Callable[[], stage_pb2.ControlHello],
        *,
        on_epoch_event: Callable[[ep.Event], None],
        on_report: Callable[[StageIndex, stage_pb2.ControlEvent], None],
        superseded: Callable[[], None],
    ) -> None:
        """`hello` makes the first message of each stream; `superseded` hears of a router with a higher token."""
        self.superseded = superseded
        self.registration = registration
        self.stage = StageIndex(registration.stage)
        self._hello = hello
        self._on_epoch_event = on_epoch_event
        self._on_report = on_report
        self._stream: ReconnectingStream[stage_pb2.ControlCommand, stage_pb2.ControlEvent] = ReconnectingStream(
            registration.address,
            f"stage {self.stage}",
            "control",
            self,
            call=_call,
            commands_max=COMMANDS_MAX,
            connect_timeout_s=CONNECT_TIMEOUT_S,
        )

    def send(self, command: stage_pb2.ControlCommand) -> None:
        """Put a command on the stream; dropped while there is none (the epoch moves then)."""
        self._stream.send(command)

    async def run(self) -> NoReturn:
        """Keep the stream until it is cancelled."""
        await self._stream.run()

    # ---- StreamOwner ----

    def hello(self) -> stage_pb2.ControlCommand:
        """Whom this router means, and that it leads."""
        return stage_pb2.ControlCommand(hello=self._hello())

    def greeted(self, event: stage_pb2.ControlEvent) -> None:
        """The stage is the one that was meant."""
        if event.WhichOneof("event") != "hello":
            raise PeerProtocolError("the stage did not answer the hello")
        incarnation = Incarnation(event.hello.incarnation)
        self._on_epoch_event(ep.StageUp(self.stage, incarnation, self.registration.link_address))

    def received(self, event: stage_pb2.ControlEvent) -> None:
        """Epochs and links are the keeper's, the rest is reported."""
        match event.WhichOneof("event"):
            case "epoch":
                self._on_epoch_event(control.decode_ack(self.stage, event.epoch))
            case "link_lost":
                self._on_epoch_event(control.decode_link_lost(self.stage, event.link_lost))
            case "draining":
                self._on_epoch_event(ep.StageDraining(self.stage))
            case _:
                self._on_report(self.stage, event)

    def lost(self, reason: str) -> None:
        """Nothing can be said to the stage."""
        self._on_epoch_event(ep.StageDown(self.stage, reason))


def _call(channel: grpc.aio.Channel, commands: AsyncIterator[stage_pb2.ControlCommand]) -> Any:
    return stage_pb2_grpc.StageServiceStub(channel).Control(commands)
