"""Where links listen: where they are asked to, or not at all."""

from __future__ import annotations

import asyncio
import os
import socket

import psutil
import pytest

from wavepp.core.wire.hello import Hello
from wavepp.stage.links.base import LinkOptions
from wavepp.stage.links.errors import LinkConnectError
from wavepp.stage.links.registry import make_transport

LIMIT_S = 5.0


def refuse(_hello: Hello) -> Hello:
    raise AssertionError("nobody says hello")


def other_address() -> str:
    """An IPv4 address of this machine that is not loopback."""
    for addresses in psutil.net_if_addrs().values():
        for found in addresses:
            if found.family is socket.AF_INET and not found.address.startswith("127."):
                return str(found.address)
    pytest.skip("this machine has the loopback device only")


async def connects(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(LIMIT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def test_ucx_on_a_loopback_address_takes_nothing_from_outside() -> None:
    ucx = make_transport("ucx", LinkOptions(payload_bytes_max=1))
    try:
        address = await ucx.listen(refuse, host="127.0.0.1").start()
        port = int(address.rpartition(":")[2])
        assert address == f"ucx://127.0.0.1:{port}"
        (listener,) = [c for c in psutil.Process().net_connections() if c.status == "LISTEN" and c.laddr.port == port]
        with socket.socket(fileno=os.dup(listener.fd)) as own:
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == b"lo"
        assert await connects("127.0.0.1", port)
    finally:
        await ucx.close()


async def test_ucx_on_another_address_is_not_tied_to_a_device() -> None:
    ucx = make_transport("ucx", LinkOptions(payload_bytes_max=1))
    try:
        address = await ucx.listen(refuse, host=other_address()).start()
        assert await connects(other_address(), int(address.rpartition(":")[2]))
    finally:
        await ucx.close()


async def test_ucx_says_at_once_that_it_has_no_ipv6() -> None:
    ucx = make_transport("ucx", LinkOptions(payload_bytes_max=1))
    try:
        with pytest.raises(LinkConnectError, match=r"IPv4 only.*'::1'.*--link socket"):
            await ucx.listen(refuse, host="::1").start()
    finally:
        await ucx.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_sockets_listen_where_they_are_asked_to_and_nowhere_else(host: str) -> None:
    sockets = make_transport("socket", LinkOptions(payload_bytes_max=1))
    try:
        port = int((await sockets.listen(refuse, host=host).start()).rpartition(":")[2])
        found = [
            c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN" and c.laddr.port == port
        ]
        assert found == [host]
    finally:
        await sockets.close()
