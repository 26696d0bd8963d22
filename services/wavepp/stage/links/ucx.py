"""The `ucx` transport: listener and connector. How bytes travel: ucx_wire.py; how UCX is driven: ucx_driver.py."""

from __future__ import annotations

import asyncio
import os
import socket as net
import stat
from ipaddress import IPv4Address
from typing import Any

from wavepp.core.wire.hello import Hello
from wavepp.stage.links.base import LinkOptions
from wavepp.stage.links.errors import LinkConnectError
from wavepp.stage.links.handshake_queue import HandshakeQueue
from wavepp.stage.links.hello_check import HelloCheck
from wavepp.stage.links.open_links import OpenLinks
from wavepp.stage.links.session import LinkSession
from wavepp.stage.links.socket import split_address
from wavepp.stage.links.ucx_driver import UcxDriver, UcxProfile
from wavepp.stage.links.ucx_wire import UcxWire


class UcxListener:
    """A `LinkListener` of UCX, which knows ports but no hosts: it listens on all IPv4 addresses of the machine. On a
    loopback address it is then tied to the loopback device; another address is only published.
    """

    def __init__(self, driver: UcxDriver, links: OpenLinks, check: HelloCheck, host: str, port: int) -> None:
        self._driver = driver
        self._links = links
        self._check = check
        self._host = host
        self._port = port
        self._listener: Any = None
        self._handshakes = HandshakeQueue(links.options)

    async def start(self) -> str:
        """See `LinkListener.start`."""
        own = await _ipv4_address(self._host)
        try:
            self._listener = self._driver.listen(self._port, self._newcomer)
        except self._driver.ucx_error as error:
            raise LinkConnectError(f"UCX cannot listen on port {self._port}: {error}") from error
        if own.is_loopback:
            try:
                _tie_to_loopback(self._listener.port)
            except OSError as error:
                raise LinkConnectError(f"UCX listens on all addresses, and cannot be kept to {own}: {error}") from error
        return f"ucx://{self._host}:{self._listener.port}"

    async def accept(self) -> LinkSession:
        """See `LinkListener.accept`."""
        return await self._handshakes.accept()

    async def close(self) -> None:
        """See `LinkListener.close`."""
        self._listener = None
        await self._handshakes.close()

    def _newcomer(self, endpoint: Any) -> None:
        session = self._links.new_session()
        session.prepare_answer(self._check)
        UcxWire(self._driver, endpoint, session)
        self._handshakes.welcome(session)


async def _ipv4_address(host: str) -> IPv4Address:
    """Raises LinkConnectError unless `host` has one."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, family=net.AF_INET, type=net.SOCK_STREAM)
    except OSError as error:
        raise LinkConnectError(
            f"links over UCX listen on IPv4 only, and {host!r} is no such address ({error}): give link_host an IPv4 "
            "address, or use --link socket"
        ) from error
    return IPv4Address(found[0][4][0])


def _tie_to_loopback(port: int) -> None:
    """Let the listening socket of this process at `port` take only what comes over the loopback device.

    Raises OSError. UCX has no handle for its listener's socket, so it is looked for.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            own = net.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed meanwhile
        with own:
            listens = own.family == net.AF_INET and own.getsockopt(net.SOL_SOCKET, net.SO_ACCEPTCONN)
            if listens and own.getsockname()[1] == port:
                own.setsockopt(net.SOL_SOCKET, net.SO_BINDTODEVICE, b"lo")
                return
    raise OSError(f"no socket of this process listens on port {port}")


class UcxTransport:
    """The `ucx` transport: one worker in this process's event loop."""

    def __init__(self, options: LinkOptions, profile: UcxProfile = "tcp") -> None:
        self.driver = UcxDriver(profile)
        self._links = OpenLinks(options)

    def listen(self, check: HelloCheck, *, host: str = "127.0.0.1", port: int = 0) -> UcxListener:
        """See `Transport.listen`."""
        listener = UcxListener(self.driver, self._links, check, host, port)
        self._links.add_listener(listener)
        return listener

    async def connect(self, address: str, hello: Hello, timeout_s: float) -> LinkSession:
        """See `LinkConnector.connect`."""
        host, port = split_address(address, "ucx")
        self._links.require_open()
        session = self._links.new_session()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        session.prepare_greeting(hello)
        try:
            async with asyncio.timeout_at(deadline):
                # UCX would resolve the name by itself, and block the loop meanwhile.
                found = await loop.getaddrinfo(host, port, type=net.SOCK_STREAM)
            UcxWire(self.driver, self.driver.connect(str(found[0][4][0]), port), session)
            # UCX connects in the background; the hello waits for that, and the answer shows that it worked.
            await session.greet(hello, max(deadline - loop.time(), 0.0))
        except TimeoutError:
            raise LinkConnectError(f"the name of {address} was not resolved within {timeout_s} s") from None
        except (OSError, LinkConnectError, self.driver.ucx_error) as error:
            raise LinkConnectError(f"cannot connect to {address}: {error}") from error
        return session

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._links.close()
        self.driver.close()
