"""The router's side of one stage process' control stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import grpc

from wavepp.codec import control
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import Incarnation, StageIndex
from wavepp.core.router import epochs as ep
from wavepp.infra.backoff import Backoff
from wavepp.infra.outbox import Outbox, OutboxFullError
from wavepp.infra.registration import StageRegistration
from wavepp.infra.rpc import open_channel
from wavepp.infra.streams import client_stream
from wavepp.v1 import stage_pb2, stage_pb2_grpc

_log = logging.getLogger(__name__)

COMMANDS_MAX: Final = 1024
CONNECT_TIMEOUT_S: Final = 3.0


class StageControl:
    """Keeps the control stream to one registered stage process, and says when it is up or down."""

    def __init__(
        self,
        registration: StageRegistration,
        hello: stage_pb2.ControlHello,
        *,
        on_epoch_event: Callable[[ep.Event], None],
        on_report: Callable[[StageIndex, stage_pb2.ControlEvent], None],
    ) -> None:
        self.registration = registration
        self.stage = StageIndex(registration.stage)
        self._hello = hello
        self._on_epoch_event = on_epoch_event
        self._on_report = on_report
        self._outbox: Outbox[stage_pb2.ControlCommand] = Outbox(COMMANDS_MAX)
        self._outbox.close()

    def send(self, command: stage_pb2.ControlCommand) -> None:
        """Put a command on the stream; dropped while there is none (the epoch moves then)."""
        self._outbox.put(command)

    async def run(self) -> None:
        """Connect, and connect again, for ever; a task of the process."""
        backoff = Backoff()
        while True:
            reason = "the control stream ended"
            try:
                async with open_channel(self.registration.address) as channel:
                    await self._talk(stage_pb2_grpc.StageServiceStub(channel), backoff)
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except (PeerProtocolError, OutboxFullError, TimeoutError) as error:
                reason = str(error) or "no answer in time"
            finally:
                self._outbox.close()
                self._on_epoch_event(ep.StageDown(self.stage, reason))
            _log.warning("stage %d: %s", self.stage, reason)
            await asyncio.sleep(backoff.next_s())

    async def _talk(self, stub: stage_pb2_grpc.StageServiceAsyncStub, backoff: Backoff) -> None:
        self._outbox = Outbox(COMMANDS_MAX)
        self._outbox.put(stage_pb2.ControlCommand(hello=self._hello))
        async with client_stream(stub.Control(aiter(self._outbox)), self._outbox) as events:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                first = await anext(events, None)
            if first is None or first.WhichOneof("event") != "hello":
                raise PeerProtocolError("the stage did not answer the hello")
            backoff.reset()
            incarnation = Incarnation(first.hello.incarnation)
            self._on_epoch_event(ep.StageUp(self.stage, incarnation, self.registration.link_address))
            async for event in events:
                self._received(event)

    def _received(self, event: stage_pb2.ControlEvent) -> None:
        match event.WhichOneof("event"):
            case "epoch":
                self._on_epoch_event(control.decode_ack(self.stage, event.epoch))
            case "link_lost":
                self._on_epoch_event(control.decode_link_lost(self.stage, event.link_lost))
            case _:
                self._on_report(self.stage, event)
