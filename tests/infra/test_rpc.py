"""gRPC servers and channels: statuses of errors, limits, keepalive, health, start and stop."""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from etcd_support import LossyProxy
from wavepp.core.errors import InvalidInputError, InvariantError, WaveppError
from wavepp.core.limits import MESSAGE_BYTES_MAX
from wavepp.infra import rpc
from wavepp.infra.errors import StartupError
from wavepp.infra.etcd import channel as etcd_channel
from wavepp.infra.etcd.errors import EtcdAmbiguousError, EtcdUnavailableError, FencedError
from wavepp.infra.rpc_errors import ErrorStatus, retry_after_ms, status_of

SERVICE = "test.Echo"
LIMIT_S = 5.0
Handler = Callable[[Any, Any], Any]


class BusyError(WaveppError):
    """A service's own error."""

    retry_after_ms = 1234


def register(handlers: dict[str, grpc.RpcMethodHandler[Any, Any]], server: grpc.aio.Server) -> None:
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class Bench:
    """A server with one method of each kind, which all run `body`, and a channel to it."""

    def __init__(self, server: rpc.RpcServer, channel: grpc.aio.Channel, port: int) -> None:
        self.server = server
        self.channel = channel
        self.port = port
        self.body: Callable[[], Awaitable[bytes]] | None = None

    async def call(self, kind: str, request: bytes = b"") -> bytes:
        path = f"/{SERVICE}/{kind}"
        channel: Any = self.channel  # without serializers its type would allow no request at all
        if kind == "uu":
            return bytes(await channel.unary_unary(path)(request, timeout=LIMIT_S))
        if kind == "su":
            return bytes(await channel.stream_unary(path)(iter([request]), timeout=LIMIT_S))
        if kind == "us" or kind == "us_write":
            stream = channel.unary_stream(path)(request, timeout=LIMIT_S)
        else:
            stream = channel.stream_stream(path)(iter([request]), timeout=LIMIT_S)
        return b"".join([part async for part in stream])

    async def failure(self, kind: str = "uu", request: bytes = b"") -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.call(kind, request)
        return error.value


KINDS = ["uu", "us", "us_write", "su", "ss"]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    server = rpc.RpcServer(errors={BusyError: ErrorStatus(grpc.StatusCode.RESOURCE_EXHAUSTED)}, rpcs_max=8)

    async def body(request: bytes) -> bytes:
        return request if made.body is None else await made.body()

    async def uu(request: bytes, _context: object) -> bytes:
        return await body(request)

    async def us(request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield b"1"
        yield await body(request)

    async def us_write(request: bytes, context: Any) -> None:
        await context.write(b"1")
        await context.write(await body(request))

    async def su(requests: AsyncIterator[bytes], _context: object) -> bytes:
        return await body(b"".join([part async for part in requests]))

    async def ss(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        yield b"1"
        async for request in requests:
            yield await body(request)

    server.add(
        register,
        {
            "uu": grpc.unary_unary_rpc_method_handler(uu),
            "us": grpc.unary_stream_rpc_method_handler(us),
            "us_write": grpc.unary_stream_rpc_method_handler(us_write),
            "su": grpc.stream_unary_rpc_method_handler(su),
            "ss": grpc.stream_stream_rpc_method_handler(ss),
        },
        SERVICE,
    )
    port = await server.start("127.0.0.1", 0)
    channel = rpc.open_channel(f"127.0.0.1:{port}")
    made = Bench(server, channel, port)
    yield made
    await channel.close()
    await server.stop(0)


def raising(error: BaseException) -> Callable[[], Awaitable[bytes]]:
    async def body() -> bytes:
        raise error

    return body


async def cancelled_inside() -> bytes:
    inner = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner
    return b""


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_method_passes_through_unharmed(bench: Bench, kind: str) -> None:
    assert await bench.call(kind, b"abc") == (b"abc" if kind in ("uu", "su") else b"1abc")


@pytest.mark.parametrize("kind", KINDS)
async def test_inner_cancellation_reaches_the_client_as_a_status(bench: Bench, kind: str) -> None:
    bench.body = cancelled_inside
    began = time.monotonic()
    error = await bench.failure(kind)
    assert error.code() is grpc.StatusCode.ABORTED
    assert time.monotonic() - began < LIMIT_S / 2


@pytest.mark.parametrize("kind", KINDS)
async def test_typed_error_becomes_its_status_with_its_text(bench: Bench, kind: str) -> None:
    bench.body = raising(InvalidInputError("tokens 9 over the limit 8"))
    error = await bench.failure(kind)
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "tokens 9 over the limit 8")


async def test_retry_delay_comes_as_standard_trailing_metadata(bench: Bench) -> None:
    bench.body = raising(BusyError("full"))
    error = await bench.failure()
    assert (error.code(), retry_after_ms(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1234)
    bench.body = raising(InvalidInputError("x"))
    assert retry_after_ms(await bench.failure()) is None


async def test_unknown_error_is_internal_logged_and_tells_the_client_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.body = raising(KeyError("secret"))
    error = await bench.failure()
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error: KeyError")
    assert any(record.exc_info and "uu failed" in record.message for record in caplog.records)


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(bench: Bench, kind: str) -> None:
    path = "/grpc.health.v1.Health/" + {"unary_unary": "Check", "unary_stream": "Watch"}[kind]
    call: Any = getattr(bench.channel, kind)(path)(b"\xff" * 9, timeout=LIMIT_S)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call if kind == "unary_unary" else call.read())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the 9 bytes of the request are malformed" in (caught.value.details() or "")


async def test_status_that_a_handler_chose_itself_stays(bench: Bench) -> None:
    async def choose(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.DATA_LOSS, "mine")
        return b""

    server = rpc.RpcServer()
    server.add(register, {"uu": grpc.unary_unary_rpc_method_handler(choose)}, SERVICE)
    port = await server.start("127.0.0.1", 0)
    async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
        error = await Bench(server, channel, port).failure()
    await server.stop(0)
    assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, "mine")


@pytest.mark.parametrize(
    ("error", "code", "retry_ms"),
    [
        (EtcdUnavailableError("x"), grpc.StatusCode.UNAVAILABLE, 500),
        (EtcdAmbiguousError("x"), grpc.StatusCode.UNAVAILABLE, 500),
        (FencedError("k", 1, 2), grpc.StatusCode.ABORTED, None),
        (InvariantError("x"), grpc.StatusCode.INTERNAL, None),
        (TimeoutError(), grpc.StatusCode.DEADLINE_EXCEEDED, None),
        (ZeroDivisionError(), grpc.StatusCode.INTERNAL, None),
        (BusyError(), grpc.StatusCode.INTERNAL, 1234),
    ],
)
def test_table_of_statuses(error: Exception, code: grpc.StatusCode, retry_ms: int | None) -> None:
    assert status_of(error) == ErrorStatus(code, retry_ms)


async def test_status_of_a_failed_call_behind_is_passed_on_only_if_it_says_later(bench: Bench) -> None:
    for code, seen in ((grpc.StatusCode.UNAVAILABLE,) * 2, (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL)):
        bench.body = raising(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "behind"))
        assert (await bench.failure()).code() is seen


async def test_call_cancelled_by_the_client_cancels_the_handler(bench: Bench) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def body() -> bytes:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    bench.body = body
    call = asyncio.ensure_future(bench.call("uu"))
    await asyncio.wait_for(started.wait(), LIMIT_S)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(ended.wait(), LIMIT_S)


async def test_message_at_the_limit_passes_and_one_byte_more_names_the_limit(bench: Bench) -> None:
    bench.body = raising(InvalidInputError("it arrived"))
    assert (await bench.failure("uu", bytes(MESSAGE_BYTES_MAX))).code() is grpc.StatusCode.INVALID_ARGUMENT
    error = await bench.failure("uu", bytes(MESSAGE_BYTES_MAX + 1))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MESSAGE_BYTES_MAX) in (error.details() or "")


async def test_more_calls_than_the_bound_are_refused(bench: Bench) -> None:
    release, running = asyncio.Event(), asyncio.Semaphore(0)

    async def body() -> bytes:
        running.release()
        await release.wait()
        return b"done"

    bench.body = body
    calls = [asyncio.ensure_future(bench.call("uu")) for _ in range(8)]
    async with asyncio.timeout(LIMIT_S):
        for _ in calls:
            await running.acquire()
    assert (await bench.failure()).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    release.set()
    assert await asyncio.gather(*calls) == [b"done"] * 8


def test_keepalive_of_clients_is_within_what_servers_tolerate() -> None:
    server, client = dict(rpc.SERVER_OPTIONS), dict(rpc.CHANNEL_OPTIONS)
    tolerated = server["grpc.http2.min_ping_interval_without_data_ms"]
    for options in (server, client):
        assert options["grpc.keepalive_time_ms"] >= tolerated
        assert options["grpc.keepalive_permit_without_calls"] == 1
        assert options["grpc.max_receive_message_length"] == MESSAGE_BYTES_MAX


@pytest.mark.parametrize("options", [rpc.SERVER_OPTIONS, rpc.CHANNEL_OPTIONS, etcd_channel.OPTIONS])
def test_silence_is_noticed_within_the_keepalive_limit(options: tuple[tuple[str, object], ...]) -> None:
    # Without a limit of its own a ping waits for a minute, whatever the keepalive's limit is.
    named = dict(options)
    assert named["grpc.http2.ping_timeout_ms"] == named["grpc.keepalive_timeout_ms"]


@pytest.mark.parametrize("options", [rpc.SERVER_OPTIONS, rpc.CHANNEL_OPTIONS, etcd_channel.OPTIONS])
def test_grpc_knows_every_option_that_we_set(options: tuple[tuple[str, object], ...]) -> None:
    # gRPC ignores a name that it does not know, without a word; the names stand in its library.
    (library_path,) = Path(grpc.__file__).parent.glob("_cython/cygrpc*.so")
    with library_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        for name, _ in options:
            assert library.find(name.encode() + b"\0") >= 0, name
        assert library.find(b"grpc.http2.min_recv_ping_interval_without_data_ms\0") < 0  # as the C macro is called


async def test_idle_channel_is_sent_away_for_its_pings_only_by_a_server_with_other_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Our own periods, 100 times as fast (gRPC sends a ping a second at most), and a server that soon loses patience.
    def faster(options: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return tuple(
            (name, value // 100 if name.endswith(("time_ms", "data_ms")) else value) for name, value in options
        )

    async def leaves(server_options: tuple[tuple[str, int], ...]) -> bool:
        monkeypatch.setattr(rpc, "SERVER_OPTIONS", (*server_options, ("grpc.http2.max_ping_strikes", 1)))
        server = rpc.RpcServer()
        port = await server.start("127.0.0.1", 0)
        async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
            await asyncio.wait_for(channel.channel_ready(), LIMIT_S)
            try:
                await asyncio.wait_for(channel.wait_for_state_change(channel.get_state()), 4.0)
            except TimeoutError:
                return False
            finally:
                await server.stop(0)
        return True

    ours = faster(rpc.SERVER_OPTIONS)
    monkeypatch.setattr(rpc, "CHANNEL_OPTIONS", faster(rpc.CHANNEL_OPTIONS))
    impatient = tuple(option for option in ours if "ping_interval" not in option[0])
    assert list(await asyncio.gather(leaves(ours), leaves(impatient))) == [False, True]


async def test_a_peer_that_has_gone_silent_ends_the_stream_within_the_keepalive_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Our own periods and limits, 20 times as fast (gRPC sends a ping a second at most).
    faster = tuple((name, value // 20 if name.endswith("_ms") else value) for name, value in rpc.CHANNEL_OPTIONS)
    monkeypatch.setattr(rpc, "CHANNEL_OPTIONS", faster)
    server = rpc.RpcServer()
    proxy = LossyProxy(f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
    await proxy.start()
    async with rpc.open_channel(proxy.endpoint) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await call.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        # Its machine has lost power, or its process is frozen: nothing comes, and nothing says that nothing will.
        proxy.swallow_answers = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(call.read(), 2 * LIMIT_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await proxy.close()
    await server.stop(0)


@pytest.mark.parametrize(("first", "second"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("0.0.0.0",) * 2])
async def test_two_servers_never_share_a_port(first: str, second: str) -> None:
    async with rpc.RpcServer() as one, rpc.RpcServer() as other:
        port = await one.start(first, 0)
        with pytest.raises(StartupError, match=f"cannot listen on {second}:{port}: Address already in use"):
            await other.start(second, port)


async def test_port_in_use_is_a_startup_error_of_one_line(bench: Bench) -> None:
    other = rpc.RpcServer()
    with pytest.raises(StartupError) as error:
        await other.start("127.0.0.1", bench.port)
    assert str(error.value).startswith(f"cannot listen on 127.0.0.1:{bench.port}: Address already in use (process ")
    assert "\n" not in str(error.value)
    await other.stop(0)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
async def test_address_that_is_not_ours_is_a_startup_error(host: str) -> None:
    server = rpc.RpcServer()
    with pytest.raises(StartupError, match="cannot listen on"):
        await server.start(host, 0)
    await server.stop(0)


async def test_health_follows_what_the_service_says_until_it_stops(bench: Bench) -> None:
    stub: Any = health_pb2_grpc.HealthStub(bench.channel)

    async def status(service: str) -> int:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=LIMIT_S)
        return int(answer.status)

    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert [await status(""), await status(SERVICE)] == [not_serving, not_serving]
    await bench.server.set_serving(True)
    assert [await status(""), await status(SERVICE)] == [serving, serving]
    with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
        await status("no.such.Service")


async def test_a_process_that_is_not_ready_is_alive(bench: Bench) -> None:
    stub: Any = health_pb2_grpc.HealthStub(bench.channel)

    async def alive() -> bool:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=rpc.LIVENESS), timeout=LIMIT_S)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    assert await alive(), "before it was ready for the first time"
    await bench.server.set_serving(True)
    await bench.server.set_serving(False)
    assert await alive(), "when it is not ready any more"


async def test_reflection_lists_the_services(bench: Bench) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(bench.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async with asyncio.timeout(LIMIT_S):
        answers = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
    assert SERVICE in [service.name for service in answers[0].list_services_response.service]


async def test_stop_lets_running_calls_end_but_not_for_ever(bench: Bench) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def body() -> bytes:
        started.set()
        await release.wait()
        return b"done"

    bench.body = body
    call = asyncio.ensure_future(bench.call("uu"))
    await asyncio.wait_for(started.wait(), LIMIT_S)
    stop = asyncio.ensure_future(bench.server.stop(LIMIT_S))
    release.set()
    assert await call == b"done"
    await asyncio.wait_for(stop, LIMIT_S)


async def test_stop_cancels_calls_that_outlast_its_grace(bench: Bench) -> None:
    started = asyncio.Event()

    async def body() -> bytes:
        started.set()
        await asyncio.Event().wait()
        return b""

    bench.body = body
    failing = asyncio.ensure_future(bench.failure())
    await asyncio.wait_for(started.wait(), LIMIT_S)
    await asyncio.wait_for(bench.server.stop(0.1), LIMIT_S)
    assert (await failing).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
