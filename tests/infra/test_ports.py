"""Fixed ports that somebody else has: for a moment, or for longer."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest

from wavepp.infra.errors import StartupError
from wavepp.infra.ports import PORT_WAIT_S, PortTakenError, await_ports

LIMIT_S = 10 * PORT_WAIT_S


@pytest.fixture
def taken() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def until_it_waits(waiting: asyncio.Task[bool], log: Callable[[], str]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while "waiting for at most" not in log():
            assert not waiting.done()
            await asyncio.sleep(0.01)


async def test_a_port_is_had_when_its_holder_lets_go(taken: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    host, port = taken.getsockname()
    waiting = asyncio.create_task(await_ports([(host, 0), (host, -1), (host, port)], asyncio.Event(), LIMIT_S))
    await until_it_waits(waiting, lambda: caplog.text)
    taken.close()
    assert await asyncio.wait_for(waiting, LIMIT_S)
    assert len(caplog.records) == 1


async def test_a_port_that_stays_taken_is_an_error_that_names_who_has_it(taken: socket.socket) -> None:
    host, port = taken.getsockname()
    with taken, pytest.raises(PortTakenError) as raised:
        await await_ports([(host, port)], asyncio.Event(), 0.0)
    said = str(raised.value)
    assert said.startswith(f"cannot listen on {host}:{port}: Address already in use (process {os.getpid()}, ")
    assert "python" in said
    assert said.endswith("listens there)")


async def test_an_outgoing_connection_that_has_the_port_is_named_too(taken: socket.socket) -> None:
    with taken, socket.create_connection(taken.getsockname()) as connection:
        host, port = connection.getsockname()
        with pytest.raises(PortTakenError, match=rf"cannot listen on {host}:{port}: .* has a connection there"):
            await await_ports([(host, port)], asyncio.Event(), 0.0)


async def test_a_process_that_is_to_stop_waits_for_no_port(
    taken: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    stop = asyncio.Event()
    with taken:
        waiting = asyncio.create_task(await_ports([taken.getsockname()], stop, LIMIT_S))
        await until_it_waits(waiting, lambda: caplog.text)
        stop.set()
        assert not await asyncio.wait_for(waiting, PORT_WAIT_S)


async def test_a_host_of_another_machine_is_not_waited_for() -> None:
    async with asyncio.timeout(PORT_WAIT_S / 2):
        with pytest.raises(StartupError, match=r"cannot listen on 203\.0\.113\.9:4711: Cannot assign"):
            await await_ports([("203.0.113.9", 4711)], asyncio.Event(), LIMIT_S)
