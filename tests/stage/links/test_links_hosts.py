"""Where links listen: where they are asked to, or not at all."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address

import psutil
import pytest
from links_support import HELLO, OPTIONS, expecting

from wavepp.core.wire.hello import Hello
from wavepp.stage.links import ucx as ucx_module
from wavepp.stage.links.errors import LinkConnectError, TransportUnavailableError
from wavepp.stage.links.registry import make_transport
from wavepp.stage.links.ucx_hosts import devices_of

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


def listened_on() -> set[tuple[str, int]]:
    """Where this process listens."""
    return {(c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections() if c.status == "LISTEN"}


@pytest.mark.parametrize("own", ["loopback", "other"])
async def test_ucx_listens_where_it_is_asked_to_and_nowhere_else(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    host = "127.0.0.1" if own == "loopback" else other_address()
    before = listened_on()
    devices = await devices_of(host)
    left, right = (make_transport("ucx", OPTIONS, ucx_devices=devices) for _ in range(2))
    try:
        listener = right.listen(expecting(HELLO.mirrored()), host=host)
        address = await listener.start()
        assert (host, int(address.rpartition(":")[2])) in listened_on()
        assert {found for found, _ in listened_on() - before} == {host}
        # The socket in the place of UCX's own is one that UCX takes connections from.
        link, accepted = await asyncio.gather(left.connect(address, HELLO, LIMIT_S), listener.accept())
        await link.send(b"header", [b"payload"])
        assert (await accepted.recv()).payload == b"payload"
    finally:
        await left.close()
        await right.close()


async def test_ucx_tells_when_a_name_with_several_addresses_makes_it_listen_on_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def two(_host: str) -> list[IPv4Address]:
        return [IPv4Address("127.0.0.1"), IPv4Address("10.0.0.5")]

    monkeypatch.setattr(ucx_module, "ipv4_addresses", two)
    ucx = make_transport("ucx", OPTIONS)
    try:
        address = await ucx.listen(refuse, host="stage-1").start()
        assert ("0.0.0.0", int(address.rpartition(":")[2])) in listened_on()
    finally:
        await ucx.close()
    assert "'stage-1' has several (127.0.0.1, 10.0.0.5)" in caplog.text


async def test_ucx_refuses_an_address_that_no_device_has() -> None:
    ucx = make_transport("ucx", OPTIONS)
    try:
        with pytest.raises(LinkConnectError, match=r"127\.0\.0\.5, which no network device of this machine has"):
            await ucx.listen(refuse, host="127.0.0.5").start()
    finally:
        await ucx.close()


async def test_ucx_refuses_a_device_that_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    with pytest.raises(TransportUnavailableError, match=r"cannot use nope0 .*--link socket"):
        make_transport("ucx", OPTIONS, ucx_devices=("nope0",))


async def test_devices_that_a_user_names_for_ucx_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    before = listened_on()
    ucx = make_transport("ucx", OPTIONS, ucx_devices=("nope0",))
    try:
        assert {host for host, _ in listened_on() - before} == {"127.0.0.1"}
    finally:
        await ucx.close()


async def test_ucx_says_at_once_that_it_has_no_ipv6() -> None:
    ucx = make_transport("ucx", OPTIONS)
    try:
        with pytest.raises(LinkConnectError, match=r"IPv4 only.*'::1'.*--link socket"):
            await ucx.listen(refuse, host="::1").start()
    finally:
        await ucx.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_sockets_listen_where_they_are_asked_to_and_nowhere_else(host: str) -> None:
    sockets = make_transport("socket", OPTIONS)
    try:
        port = int((await sockets.listen(refuse, host=host).start()).rpartition(":")[2])
        found = [
            c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN" and c.laddr.port == port
        ]
        assert found == [host]
    finally:
        await sockets.close()
