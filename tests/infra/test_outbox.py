"""Outboxes: in order, bounded, and streams that end when they should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from wavepp.core.errors import PeerProtocolError
from wavepp.infra.outbox import Outbox, OutboxFullError
from wavepp.infra.streams import client_stream, serve_stream

LIMIT_S = 5.0


async def test_messages_come_in_order_and_end_after_close() -> None:
    outbox: Outbox[int] = Outbox()
    for i in range(3):
        outbox.put(i)
    outbox.close()
    outbox.put(99)
    assert [m async for m in outbox] == [0, 1, 2]


async def test_a_reader_waits_for_what_comes_later() -> None:
    outbox: Outbox[int] = Outbox()

    async def read() -> list[int]:
        return [m async for m in outbox]

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    outbox.put(1)
    await asyncio.sleep(0)
    outbox.put(2)
    outbox.close()
    async with asyncio.timeout(LIMIT_S):
        assert await reader == [1, 2]


async def test_a_peer_that_does_not_read_ends_the_stream() -> None:
    outbox: Outbox[int] = Outbox(messages_max=2)
    for i in range(3):
        outbox.put(i)
    assert outbox.closed
    with pytest.raises(OutboxFullError, match="2 messages"):
        _ = [m async for m in outbox]


async def never() -> AsyncIterator[int]:
    await asyncio.Event().wait()
    yield 0


async def test_a_stream_ends_when_another_takes_its_outbox() -> None:
    outbox: Outbox[int] = Outbox()
    outbox.put(1)
    outbox.close()
    async with asyncio.timeout(LIMIT_S):
        assert [m async for m in serve_stream(never(), outbox, lambda _: None)] == [1]


async def test_what_receiving_raises_ends_the_stream_with_that_error() -> None:
    outbox: Outbox[int] = Outbox()

    async def incoming() -> AsyncIterator[int]:
        yield 7

    def receive(message: int) -> None:
        raise PeerProtocolError(f"unexpected {message}")

    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(PeerProtocolError, match="unexpected 7"):
            _ = [m async for m in serve_stream(incoming(), outbox, receive)]


async def test_a_stream_ends_when_the_peer_has_ended_its_side() -> None:
    outbox: Outbox[int] = Outbox()
    received: list[int] = []

    async def incoming() -> AsyncIterator[int]:
        yield 1
        yield 2

    def receive(message: int) -> None:
        received.append(message)
        outbox.put(10 * message)

    async with asyncio.timeout(LIMIT_S):
        assert [m async for m in serve_stream(incoming(), outbox, receive)] == [10, 20]
    assert received == [1, 2]


class Deaf(grpc.GenericRpcHandler):
    """Serves streams and takes nothing from them."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def handle(_requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
            yield b"hello"
            await asyncio.Event().wait()

        return grpc.stream_stream_rpc_method_handler(handle)  # type: ignore[arg-type]


async def test_the_client_of_a_peer_that_does_not_read_hears_of_it_as_an_error() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Deaf(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    outbox: Outbox[bytes] = Outbox(messages_max=2)
    came = []

    async def talk(channel: grpc.aio.Channel) -> None:
        async with client_stream(channel.stream_stream("/any/Stream")(aiter(outbox)), outbox) as events:
            async for event in events:
                came.append(event)
                for _ in range(3):
                    outbox.put(b"x")

    try:
        async with asyncio.timeout(LIMIT_S), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(OutboxFullError, match="2 messages"):
                await talk(channel)
    finally:
        await server.stop(0)
    assert came == [b"hello"]


async def test_a_client_that_is_cancelled_is_cancelled() -> None:
    class Silent:
        async def __aiter__(self) -> AsyncIterator[int]:
            await asyncio.Event().wait()
            yield 0

        def cancel(self) -> None:
            pass

    outbox: Outbox[int] = Outbox(messages_max=1)
    outbox.put(1)
    outbox.put(2)

    async def read() -> None:
        async with client_stream(Silent(), outbox) as events:
            async for _ in events:
                pass

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait({reader}, timeout=LIMIT_S)
    assert reader.cancelled()
