"""The probe of containers: what it says of processes that are ready, are not, hang, or are something else."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from wavepp.cli.mesh import probe
from wavepp.cli.mesh.probe import ProbeError, ask, main
from wavepp.infra.rpc import LIVENESS, RpcServer

HOST = "127.0.0.1"
NOBODY = 1
SHORT_S = 0.3
CPU_MAX_S = 0.2
"""Of a probe, start to end; far above what it takes, and far below what a client of the gRPC library does."""


@pytest.fixture
async def server() -> AsyncIterator[RpcServer]:
    made = RpcServer()
    yield made
    await made.stop(0)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Takes connections and says nothing, as a stopped process does."""
    with socket.create_server((HOST, 0)) as made:
        yield made


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and all that was said by the probe as the image runs it, with a proxy that is nobody."""
    env = {**os.environ, "http_proxy": f"http://{HOST}:{NOBODY}", "all_proxy": f"http://{HOST}:{NOBODY}"}
    command = [sys.executable, "-IS", probe.__file__, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout + done.stderr


async def says(host: str, port: int, service: str = "") -> str:
    return await asyncio.to_thread(ask, host, port, service)


async def test_ready_is_0_and_not_ready_1(server: RpcServer) -> None:
    port = await server.start(HOST, 0)
    assert await asyncio.to_thread(run, HOST, str(port)) == (1, f"{HOST}:{port} says NOT_SERVING\n")
    assert await asyncio.to_thread(run, HOST, str(port), LIVENESS) == (0, f"{HOST}:{port} says SERVING\n")
    await server.set_serving(True)
    assert await asyncio.to_thread(run, HOST, str(port)) == (0, f"{HOST}:{port} says SERVING\n")


async def test_the_answer_is_the_one_of_now(server: RpcServer) -> None:
    port = await server.start(HOST, 0)
    for serving in (True, False, True):
        await server.set_serving(serving)
        assert await says(HOST, port) == ("SERVING" if serving else "NOT_SERVING")


@pytest.mark.parametrize(("listens", "host"), [("0.0.0.0", "0.0.0.0"), ("127.0.0.2", "127.0.0.2"), (HOST, "localhost")])
async def test_it_reaches_a_process_where_it_listens(server: RpcServer, listens: str, host: str) -> None:
    assert await says(host, await server.start(listens, 0)) == "NOT_SERVING"


async def test_it_tries_all_addresses_of_a_name(server: RpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    port = await server.start(HOST, 0)
    found = [*socket.getaddrinfo(HOST, NOBODY, type=socket.SOCK_STREAM), *socket.getaddrinfo(HOST, port)]
    monkeypatch.setattr(probe, "getaddrinfo", lambda *_args, **_kwargs: found)
    assert await says("router", port) == "NOT_SERVING"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("host", ["::1", "::"])
async def test_it_reaches_a_process_that_listens_on_ipv6(server: RpcServer, host: str) -> None:
    assert await says(host, await server.start(host, 0)) == "NOT_SERVING"


async def test_an_event_loop_that_hangs_is_neither_ready_nor_alive(server: RpcServer) -> None:
    port = await server.start(HOST, 0)
    await server.set_serving(True)
    for service in ("", LIVENESS):
        with pytest.raises(ProbeError, match=f"gives no answer within {SHORT_S} s"):
            ask(HOST, port, service, timeout_s=SHORT_S)  # blocks the loop that would have to answer


def test_a_process_that_is_stopped_is_given_up_in_time(listener: socket.socket) -> None:
    began = time.monotonic()
    with pytest.raises(ProbeError, match=f"gives no answer within {SHORT_S} s"):
        ask(*listener.getsockname(), timeout_s=SHORT_S)
    assert time.monotonic() - began < 5


async def test_one_that_answers_a_byte_at_a_time_is_given_up_in_time() -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Settings of 60 bytes: each wait alone is short, all of them are not.
        for byte in b"\0\0\x3c\x04\0\0\0\0\0" + bytes(60):
            writer.write(bytes([byte]))
            await asyncio.sleep(SHORT_S / 3)
        writer.close()

    async with await asyncio.start_server(drip, HOST, 0) as slow:
        port = slow.sockets[0].getsockname()[1]
        began = time.monotonic()
        with pytest.raises(ProbeError, match="gives no answer within"):
            await asyncio.to_thread(ask, HOST, port, "", SHORT_S)
        assert time.monotonic() - began < SHORT_S * 10


def test_nobody_there_is_1_and_said_in_one_line() -> None:
    assert run(HOST, str(NOBODY)) == (1, f"{HOST}:{NOBODY} gives no answer: Connection refused\n")


@pytest.mark.parametrize("arguments", [(), (HOST,), (HOST, "http"), (HOST, "1", "", "")])
def test_wrong_arguments_are_1_as_docker_wants_it(arguments: tuple[str, ...]) -> None:
    assert main(list(arguments)) == 1


async def test_what_it_does_not_know_is_not_ready(server: RpcServer) -> None:
    port = await server.start(HOST, 0)
    with pytest.raises(ProbeError, match="does not know what it is asked for"):
        await says(HOST, port, "nothing-of-that-name")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak gRPC"),
        (b"", "the connection was closed"),
        (b"\0\0\0\x04", "the connection was closed"),
        (b"\0\0\x08\x07\0\0\0\0\0" + bytes(8), "refuses the call"),  # GOAWAY
        (b"\0\0\x04\x03\0\0\0\0\x01" + bytes(4), "refuses the call"),  # RST_STREAM
        (b"\0\0\0\x01\x05\0\0\0\x01", "has no health service"),  # the headers of an error, and no message
    ],
)
async def test_what_is_no_answer_is_said(answer: bytes, reason: str) -> None:
    async def say(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.write_eof()
        await _reader.read()
        writer.close()

    async with await asyncio.start_server(say, HOST, 0) as other:
        with pytest.raises(ProbeError, match=reason):
            await says(HOST, other.sockets[0].getsockname()[1])


async def test_it_imports_nothing_but_the_socket_module_in_c(server: RpcServer) -> None:
    port = await server.start(HOST, 0)

    def loaded(*arguments: str) -> set[str]:
        command = [sys.executable, "-IS", "-X", "importtime", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

    asked = await asyncio.to_thread(loaded, probe.__file__, HOST, str(port))
    assert asked - loaded("-c", "") == {"_socket"}


async def test_it_costs_a_fraction_of_what_a_client_of_the_library_does(server: RpcServer) -> None:
    port = await server.start(HOST, 0)

    def cost_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(HOST, str(port))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert await asyncio.to_thread(cost_s) < CPU_MAX_S
