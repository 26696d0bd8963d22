"""A stream that is made again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from wavepp.core.errors import PeerProtocolError, WaveppError
from wavepp.infra import reconnect
from wavepp.infra.etcd.errors import SessionLostError
from wavepp.infra.reconnect import ReconnectingStream
from wavepp.infra.rpc_errors import SUPERSEDED
from wavepp.v1 import directory_pb2 as pb
from wavepp.v1 import directory_pb2_grpc

LIMIT_S = 10.0
ANSWER, END, MUTE, GARBAGE, REFUSE = "answer", "end", "mute", "garbage", "refuse"


class Server(directory_pb2_grpc.DirectoryServiceServicer):
    """Behaves, stream by stream, as listed; the last one for ever."""

    def __init__(self) -> None:
        self.behaviours = [ANSWER]
        self.got: list[str | None] = []

    async def Admission(  # noqa: N802 - the generated name
        self,
        request_iterator: AsyncIterator[pb.AdmissionCommand],
        context: grpc.aio.ServicerContext[pb.AdmissionCommand, pb.AdmissionEvent],
    ) -> AsyncIterator[pb.AdmissionEvent]:
        behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        if behaviour in (END, REFUSE):
            # Not before: to grpc it may be an internal error that a call has ended which is still being written to.
            await anext(request_iterator)
        if behaviour == END:
            return
        if behaviour == REFUSE:
            await context.abort(SUPERSEDED, "7 leads")
        async for command in request_iterator:
            kind = command.WhichOneof("command")
            self.got.append(kind)
            if behaviour == MUTE:
                continue
            if kind == "hello":
                yield pb.AdmissionEvent(hello=pb.AdmissionHelloAck(directory_epoch=1))
            elif behaviour == GARBAGE:
                yield pb.AdmissionEvent()
            elif kind == "epoch":
                return


class Owner:
    def __init__(self) -> None:
        self.story: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.speechless: list[WaveppError] = []

    def hello(self) -> pb.AdmissionCommand:
        if self.speechless:
            raise self.speechless.pop()
        return pb.AdmissionCommand(hello=pb.AdmissionHello())

    def greeted(self, event: pb.AdmissionEvent) -> None:
        self.story.put_nowait(("greeted", ""))

    def received(self, event: pb.AdmissionEvent) -> None:
        if event.WhichOneof("event") is None:
            raise PeerProtocolError("an event without content")

    def lost(self, reason: str) -> None:
        self.story.put_nowait(("lost", reason))

    def superseded(self) -> None:
        self.story.put_nowait(("superseded", ""))


class Bench:
    def __init__(self, server: Server, address: str) -> None:
        self.server, self.owner = server, Owner()
        self.stream: ReconnectingStream[pb.AdmissionCommand, pb.AdmissionEvent] = ReconnectingStream(
            address, "the server", "admission", self.owner, call=_call, commands_max=2, connect_timeout_s=0.3
        )

    async def next(self) -> tuple[str, str]:
        async with asyncio.timeout(LIMIT_S):
            return await self.owner.story.get()


def _call(channel: grpc.aio.Channel, commands: AsyncIterator[pb.AdmissionCommand]) -> Any:
    return directory_pb2_grpc.DirectoryServiceStub(channel).Admission(commands)


EPOCH = pb.AdmissionCommand(epoch=pb.EpochMoved(pipeline_epoch=1))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    server, servicer = grpc.aio.server(), Server()
    directory_pb2_grpc.add_DirectoryServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made = Bench(servicer, f"127.0.0.1:{port}")
    running = asyncio.create_task(made.stream.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await server.stop(None)


async def test_a_stream_that_the_peer_ends_is_made_again_and_each_loss_is_said_once(bench: Bench) -> None:
    for _ in range(3):
        assert await bench.next() == ("greeted", "")
        bench.stream.send(EPOCH)
        assert await bench.next() == ("lost", "the admission stream ended")


async def test_a_peer_that_ends_the_stream_before_it_answers_is_named(bench: Bench) -> None:
    bench.server.behaviours = [END, ANSWER]
    assert await bench.next() == ("lost", "the server did not answer the hello")
    assert await bench.next() == ("greeted", "")


async def test_a_stream_can_be_given_up_and_is_made_again(bench: Bench) -> None:
    for _ in range(2):
        assert await bench.next() == ("greeted", "")
        bench.stream.remake("no answer for long")
        assert await bench.next() == ("lost", "no answer for long")
        bench.stream.remake("there is none now")
    assert await bench.next() == ("greeted", "")


async def test_a_peer_that_has_seen_a_later_leader_says_so(bench: Bench) -> None:
    bench.server.behaviours = [REFUSE, ANSWER]
    assert await bench.next() == ("superseded", "")
    assert await bench.next() == ("lost", "PERMISSION_DENIED: 7 leads")
    assert await bench.next() == ("greeted", "")


async def test_a_lease_that_is_lost_between_two_streams_ends_neither_the_stream_nor_the_process(bench: Bench) -> None:
    assert await bench.next() == ("greeted", "")
    bench.owner.speechless = [SessionLostError("the lease is gone")]
    bench.stream.send(EPOCH)
    assert await bench.next() == ("lost", "the admission stream ended")
    assert await bench.next() == ("lost", "the lease is gone")
    assert await bench.next() == ("greeted", "")


async def test_a_peer_that_does_not_answer_in_time_is_given_up(bench: Bench) -> None:
    bench.server.behaviours = [MUTE, ANSWER]
    assert await bench.next() == ("lost", "no answer in time")
    assert await bench.next() == ("greeted", "")


async def test_a_breach_of_the_protocol_ends_the_stream(bench: Bench) -> None:
    bench.server.behaviours = [GARBAGE, ANSWER]
    assert await bench.next() == ("greeted", "")
    bench.stream.send(EPOCH)
    assert await bench.next() == ("lost", "an event without content")
    assert await bench.next() == ("greeted", "")


async def test_too_many_commands_for_a_peer_that_takes_none_end_the_stream(bench: Bench) -> None:
    assert await bench.next() == ("greeted", "")
    for _ in range(4):
        bench.stream.send(EPOCH)
    event, reason = await bench.next()
    assert event == "lost"
    assert "2 messages wait" in reason


async def test_what_is_sent_while_there_is_no_stream_is_dropped(bench: Bench) -> None:
    assert await bench.next() == ("greeted", "")
    bench.stream.send(EPOCH)
    assert (await bench.next())[0] == "lost"
    bench.stream.send(EPOCH)
    assert await bench.next() == ("greeted", "")
    assert bench.server.got == ["hello", "epoch", "hello"]


async def test_pauses_grow_until_a_hello_is_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await bench.next() == ("greeted", "")
    log: list[str] = []

    class Pauses:
        def next_s(self) -> float:
            log.append("pause")
            return 0.0

        def reset(self) -> None:
            log.append("reset")

    monkeypatch.setattr(reconnect, "Backoff", Pauses)
    bench.server.behaviours = [END, END, ANSWER]
    owner, stream = bench.owner, bench.stream
    running = asyncio.create_task(stream.run())
    for _ in range(2):
        assert (await bench.next())[0] == "lost"
    assert await bench.next() == ("greeted", "")
    assert log == ["pause", "pause", "reset"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert owner.story.qsize() == 1, "being given up is a loss too, and said once"


async def test_a_stream_that_is_given_up_is_lost_before_another_one_can_be_greeted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await bench.next() == ("greeted", "")
    closed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def slow_to_close(address: str) -> AsyncIterator[grpc.aio.Channel]:
        async with reconnect_open_channel(address) as channel:
            try:
                yield channel
            finally:
                await closed.wait()

    reconnect_open_channel = reconnect.open_channel
    monkeypatch.setattr(reconnect, "open_channel", slow_to_close)
    given_up = asyncio.create_task(bench.stream.run())
    assert await bench.next() == ("greeted", "")
    given_up.cancel()
    assert (await bench.next())[0] == "lost", "its channel is still open"
    closed.set()
    await asyncio.gather(given_up, return_exceptions=True)
