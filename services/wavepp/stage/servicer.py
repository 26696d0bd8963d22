"""The stage's gRPC service: the rounds stream of the directory, the control stream of the router, status."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import grpc

from wavepp.codec import control, rounds
from wavepp.core.cache.types import PoolUsage
from wavepp.core.errors import PeerProtocolError, SupersededError
from wavepp.core.ids import GrantId
from wavepp.infra.memory import resident_bytes
from wavepp.infra.outbox import Outbox
from wavepp.infra.streams import serve_stream
from wavepp.stage.model.base import MemoryReport
from wavepp.stage.worker import StageWorker
from wavepp.v1 import prefill_pb2, stage_pb2, stage_pb2_grpc, types_pb2


class StageServicer(stage_pb2_grpc.StageServiceServicer):
    """One router and one directory at a time: a newer leader's stream ends the one before."""

    def __init__(
        self,
        worker: StageWorker,
        *,
        memory: MemoryReport,
        imports_bytes: int,
        emulated: bool,
        layers: tuple[int, int],
    ) -> None:
        self._worker = worker
        self.address = ""
        self._memory = memory
        self._imports_bytes = imports_bytes
        self._emulated = emulated
        self._layers = layers
        self._router_token = 0
        self._directory_epoch = 0

    # ---- rounds ----

    async def Rounds(  # noqa: N802 - the generated name
        self,
        request_iterator: AsyncIterator[stage_pb2.RoundsCommand],
        context: grpc.aio.ServicerContext[stage_pb2.RoundsCommand, stage_pb2.RoundsEvent],
    ) -> AsyncIterator[stage_pb2.RoundsEvent]:
        """Leases and escrows, in the directory's order."""
        outbox: Outbox[stage_pb2.RoundsEvent] = Outbox()
        expected = 0

        def receive(command: stage_pb2.RoundsCommand) -> None:
            nonlocal expected
            if command.number != expected:
                raise PeerProtocolError(f"command {command.number} of the rounds stream, {expected} was due")
            expected += 1
            if command.number == 0:
                self._rounds_hello(command.hello, outbox)
            elif self._worker.rounds is outbox:
                self._round(command)

        async for event in serve_stream(request_iterator, outbox, receive):
            yield event

    def _rounds_hello(self, hello: stage_pb2.RoundsHello, outbox: Outbox[stage_pb2.RoundsEvent]) -> None:
        worker = self._worker
        if hello.pipeline != worker.config.pipeline or hello.stage != worker.stage:
            raise PeerProtocolError(
                f"the directory means stage {hello.stage} of {hello.pipeline}, this is stage {worker.stage} of "
                f"{worker.config.pipeline}"
            )
        if hello.directory_epoch < self._directory_epoch or not hello.directory_epoch:
            raise SupersededError(f"directory epoch {hello.directory_epoch} is over, {self._directory_epoch} leads")
        self._directory_epoch = hello.directory_epoch
        worker.rounds.close()
        worker.rounds = outbox
        ack = worker.directory_connected(frozenset(GrantId(g) for g in hello.known_grants))
        outbox.put(stage_pb2.RoundsEvent(hello=ack))

    def _round(self, command: stage_pb2.RoundsCommand) -> None:
        match command.WhichOneof("command"):
            case "prepare":
                self._worker.apply(rounds.decode_prepare(command.prepare))
            case "lower":
                self._worker.apply(rounds.decode_lower(command.lower))
            case "abort":
                self._worker.apply(rounds.decode_abort(command.abort))
            case "dump":
                self._worker.send_dump()
            case other:
                raise PeerProtocolError(f"unexpected command {other!r} on the rounds stream")

    # ---- control ----

    async def Control(  # noqa: N802 - the generated name
        self,
        request_iterator: AsyncIterator[stage_pb2.ControlCommand],
        context: grpc.aio.ServicerContext[stage_pb2.ControlCommand, stage_pb2.ControlEvent],
    ) -> AsyncIterator[stage_pb2.ControlEvent]:
        """Epochs, and waves on stage 0."""
        outbox: Outbox[stage_pb2.ControlEvent] = Outbox()
        greeted = False

        def receive(command: stage_pb2.ControlCommand) -> None:
            nonlocal greeted
            if not greeted:
                self._control_hello(command, outbox)
                greeted = True
            elif self._worker.control is outbox:
                self._control(command)

        try:
            async for event in serve_stream(request_iterator, outbox, receive):
                yield event
        finally:
            self._worker.router_gone(outbox)

    def _control_hello(self, command: stage_pb2.ControlCommand, outbox: Outbox[stage_pb2.ControlEvent]) -> None:
        hello, worker = command.hello, self._worker
        mine = (worker.config.cluster, worker.config.pipeline, worker.stage, worker.config.stages)
        theirs = (hello.cluster, hello.pipeline, hello.stage, hello.stages)
        if mine != theirs or hello.incarnation != worker.incarnation:
            raise PeerProtocolError(
                f"the router means {theirs} {hello.incarnation}, this is {mine} {worker.incarnation}"
            )
        if hello.router_token < self._router_token or not hello.router_token:
            raise SupersededError(f"router {hello.router_token} is deposed, {self._router_token} leads")
        if hello.wave_tokens_max > worker.config.wave_tokens_max:
            raise PeerProtocolError(
                f"the router plans waves of {hello.wave_tokens_max} tokens, this stage has room for "
                f"{worker.config.wave_tokens_max}: start both with the same wave_tokens_max"
            )
        if hello.step_tokens:
            worker.executor.bound.observe(hello.step_tokens, hello.step_ms)
        self._router_token = hello.router_token
        worker.router_connected(outbox)

    def _control(self, command: stage_pb2.ControlCommand) -> None:
        match command.WhichOneof("command"):
            case "epoch":
                self._worker.set_epoch(control.decode_announce(self._worker.stage, command.epoch))
            case "wave":
                self._worker.wave_from_router(command.wave)
            case "drained":
                self._worker.drained()
            case other:
                raise PeerProtocolError(f"unexpected command {other!r} on the control stream")

    # ---- status ----

    async def GetStageStatus(  # noqa: N802 - the generated name
        self,
        request: stage_pb2.GetStageStatusRequest,
        context: grpc.aio.ServicerContext[stage_pb2.GetStageStatusRequest, prefill_pb2.StageStatus],
    ) -> prefill_pb2.StageStatus:
        """What this stage holds and does."""
        worker, sequencer = self._worker, self._worker.sequencer
        usage = sequencer.cache.usage()
        return prefill_pb2.StageStatus(
            stage=worker.stage,
            address=self.address,
            reachable=True,
            incarnation=worker.incarnation,
            first_layer=self._layers[0],
            last_layer=self._layers[1],
            pipeline_epoch=sequencer.epoch,
            pools=[_pool_usage(name, u) for name, u in usage.items() if u.capacity],
            leases=len(sequencer.grants),
            waves_queued=sequencer.waves_queued,
            waves_done=sequencer.waves_done,
            link=worker.neighbours.describe(),
            weights_bytes=self._memory.weights_bytes,
            pools_bytes=self._memory.pools_bytes,
            activation_bytes_max=self._memory.activation_bytes_max,
            rss_bytes=resident_bytes(),
            pid=os.getpid(),
            emulated=self._emulated,
            imports_bytes=self._imports_bytes,
        )


def _pool_usage(name: str, usage: PoolUsage) -> types_pb2.PoolUsage:
    return types_pb2.PoolUsage(
        pool=name,
        capacity=usage.capacity,
        free=usage.free,
        cached=usage.cached,
        pinned=usage.pinned,
        owned=usage.owned,
        reserved=usage.reserved,
    )
