"""Streams whose clients do not read them, over real connections."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from wavepp.infra.rpc import RpcServer, open_channel
from wavepp.router import unread
from wavepp.router.errors import STATUS
from wavepp.router.unread import write_in_time
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

WITHIN_S = 10.0
EVENT = prefill_pb2.PrefillEvent(token=prefill_pb2.PrefillToken(text="x" * 1000))


class Talker(prefill_pb2_grpc.PrefillServiceServicer):
    """Says as much as is asked for."""

    def __init__(self) -> None:
        self.written = 0
        self.ended = asyncio.Event()

    async def PrefillStream(self, request: prefill_pb2.PrefillRequest, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        self.ended.clear()
        try:
            for _ in range(request.max_tokens):
                await write_in_time(context, EVENT)
                self.written += 1
        finally:
            self.ended.set()


async def test_a_stream_that_nobody_reads_ends_and_says_so_to_who_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "READ_WITHIN_S", 0.3)
    talker = Talker()
    async with RpcServer(errors=STATUS) as server:
        server.add(prefill_pb2_grpc.add_PrefillServiceServicer_to_server, talker, "wavepp.v1.PrefillService")
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        async with open_channel(address) as channel, asyncio.timeout(WITHIN_S):
            unread_call = prefill_pb2_grpc.PrefillServiceStub(channel).PrefillStream(
                prefill_pb2.PrefillRequest(max_tokens=1_000_000), timeout=WITHIN_S
            )
            await unread_call.initial_metadata()
            await talker.ended.wait()
            assert 0 < talker.written < 1_000_000
            # Who reads on finds what had been sent, and why there is no more.
            with pytest.raises(grpc.aio.AioRpcError, match="was read for") as ended:
                _ = [event async for event in unread_call]
            assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
