"""A stage that is connected and does not answer an admission round: the round ends, and the stream is made again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest

from directory_support import STAGE
from wavepp.core.directory import events as directory_ev
from wavepp.core.ids import DirectoryEpoch, GrantId, PipelineEpoch, StageIndex, grant_id
from wavepp.directory.config import DirectoryConfig
from wavepp.directory.ledger_writer import LedgerWriter
from wavepp.directory.pipeline_admission import PipelineAdmission
from wavepp.infra.outbox import Outbox
from wavepp.infra.tasks import TaskOwner
from wavepp.v1 import directory_pb2, stage_pb2, stage_pb2_grpc

LIMIT_S = 10.0
EPOCH = PipelineEpoch(1)


class SilentStage(stage_pb2_grpc.StageServiceServicer):
    """Answers nothing but hellos: a real stage cannot be made to do that."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    async def Rounds(  # noqa: N802 - the generated name
        self,
        request_iterator: AsyncIterator[stage_pb2.RoundsCommand],
        context: grpc.aio.ServicerContext[stage_pb2.RoundsCommand, stage_pb2.RoundsEvent],
    ) -> AsyncIterator[stage_pb2.RoundsEvent]:
        async for command in request_iterator:
            kind = command.WhichOneof("command") or ""
            self.heard.put_nowait(kind)
            if kind == "hello":
                yield stage_pb2.RoundsEvent(hello=stage_pb2.RoundsHelloAck(incarnation=STAGE.incarnation))

    async def hears(self, kind: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while await self.heard.get() != kind:
                pass


class NoLedger:
    """A ledger that is never written: rounds wait for it."""

    def set(self, record: directory_ev.SetRecord) -> None:
        pass


class Bench:
    def __init__(self, stage: SilentStage, address: str, tasks: TaskOwner) -> None:
        self.stage = stage
        registration = STAGE.model_copy(update={"address": address})
        self.admission = PipelineAdmission(
            DirectoryConfig(round_timeout_s=0.2),
            DirectoryEpoch(1),
            {0: registration},
            (),
            tasks,
            superseded=lambda: None,
        )
        self.router: Outbox[directory_pb2.AdmissionEvent] = Outbox()
        self.admission.router_connected(self.router, cast(LedgerWriter, NoLedger()), EPOCH, frozenset(), 32)
        self._told = aiter(self.router)

    def admit(self) -> GrantId:
        grant = grant_id(EPOCH, 1)
        attempt = directory_ev.Attempt(grant, 40, 40, bytes(16), b"")
        self.admission.apply(directory_ev.Admit(1, EPOCH, (attempt,)))
        return grant

    async def decided(self) -> Any:
        """What the router hears of its batch."""
        async with asyncio.timeout(LIMIT_S):
            while (event := await anext(self._told)).WhichOneof("event") != "decisions":
                pass
        return event.decisions


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    server, servicer = grpc.aio.server(), SilentStage()
    stage_pb2_grpc.add_StageServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with TaskOwner(asyncio.Event()) as tasks:
        made = Bench(servicer, f"127.0.0.1:{port}", tasks)
        await servicer.hears("hello")
        await servicer.hears("dump")
        yield made
        made.admission.close()
    await server.stop(None)


async def test_a_round_that_a_stage_does_not_answer_ends_and_the_stream_is_made_again(bench: Bench) -> None:
    grant = bench.admit()
    await bench.stage.hears("prepare")
    decided = await bench.decided()
    assert decided.answered
    (decision,) = decided.decisions
    assert (decision.grant, decision.void.reason, decision.void.stage) == (grant, "unanswered", 0)
    await bench.stage.hears("hello")
    await bench.stage.hears("dump")
    assert bench.admission.core.connected(StageIndex(0))
