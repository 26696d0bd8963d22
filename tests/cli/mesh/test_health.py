"""`wavepp health`: what probes of containers go by is its exit code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from typer.testing import CliRunner

from wavepp.cli.main import app
from wavepp.infra.rpc import RpcServer

NOBODY = "127.0.0.1:1"


@pytest.fixture
async def server() -> AsyncIterator[RpcServer]:
    made = RpcServer()
    yield made
    await made.stop(0)


async def ask(*arguments: str) -> tuple[int, str]:
    """Exit code and all that was said. In a thread: the server answers from this loop."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["health", *arguments])
    return result.exit_code, result.output


async def test_ready_is_0_and_not_ready_1(server: RpcServer) -> None:
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    assert await ask(address) == (1, f"wavepp health: {address} says NOT_SERVING\n")
    await server.set_serving(True)
    assert await ask(address) == (0, "SERVING\n")


async def test_not_ready_may_still_be_alive(server: RpcServer) -> None:
    address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
    assert await ask(address, "--live") == (0, "SERVING\n")


@pytest.mark.parametrize("address", ["::1:8470", "fd00::2"])
async def test_an_ipv6_address_without_brackets_is_told_from_one_where_nobody_is(address: str) -> None:
    said = f"wavepp health: {address!r} is not host:port; an IPv6 address needs brackets, as in [::1]:8470\n"
    assert await ask(address) == (1, said)


async def test_nobody_there_is_1_within_the_time() -> None:
    began = time.monotonic()
    code, said = await ask(NOBODY, "--timeout", "5")
    assert code == 1
    assert said.startswith("wavepp health: UNAVAILABLE")
    assert said.count("\n") == 1
    assert time.monotonic() - began < 5
