"""The `ucx` transport: listener and connector. How bytes travel: ucx_wire.py; how UCX is driven: ucx_driver.py."""

from __future__ import annotations

import asyncio
import logging
import socket as net
from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any

from wavepp.core.wire.hello import Hello
from wavepp.stage.devices import local_addresses
from wavepp.stage.links.base import LinkOptions
from wavepp.stage.links.errors import LinkConnectError
from wavepp.stage.links.handshake_queue import HandshakeQueue
from wavepp.stage.links.hello_check import HelloCheck
from wavepp.stage.links.open_links import OpenLinks
from wavepp.stage.links.session import LinkSession
from wavepp.stage.links.socket import split_address
from wavepp.stage.links.ucx_driver import UcxDriver, UcxProfile
from wavepp.stage.links.ucx_hosts import ipv4_addresses, replace_listener
from wavepp.stage.links.ucx_wire import UcxWire

_log = logging.getLogger(__name__)


class UcxListener:
    """A `LinkListener` of UCX. UCX knows no hosts: its socket is replaced by one that listens where it should."""

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
        try:
            found = await ipv4_addresses(self._host)
        except OSError as error:
            raise LinkConnectError(
                f"links over UCX listen on IPv4 only, and {self._host!r} is no such address ({error}): give link_host "
                "an IPv4 address, or use --link socket"
            ) from error
        address = found[0] if len(found) == 1 else IPv4Address(0)
        if len(found) > 1:
            _log.warning(
                "links listen on all IPv4 addresses of this machine: %r has several (%s), and UCX takes one or all; "
                "give link_host the address that is meant",
                self._host,
                ", ".join(map(str, found)),
            )
        try:
            # UCX answers from an address of a device, so all of 127.0.0.0/8 but 127.0.0.1 would never come up.
            if len(found) == 1 and str(address) not in local_addresses():
                raise LinkConnectError(
                    f"{self._host!r} is {address}, which no network device of this machine has: give link_host an "
                    "address that one has"
                )
            with net.create_server((str(address), self._port)) as own:
                own.setblocking(False)
                port = own.getsockname()[1]
                self._listener = self._driver.listen(self._newcomer)
                replace_listener(self._listener.port, own)
        except (OSError, self._driver.ucx_error) as error:
            self._listener = None
            raise LinkConnectError(f"cannot listen on {address}:{self._port} over UCX: {error}") from error
        return f"ucx://{self._host}:{port}"

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


class UcxTransport:
    """The `ucx` transport: one worker in this process's event loop."""

    def __init__(self, options: LinkOptions, profile: UcxProfile = "tcp", devices: Sequence[str] = ()) -> None:
        self.driver = UcxDriver(profile, devices)
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
            over = f" over {','.join(self.driver.devices)}" if self.driver.devices else ""
            raise LinkConnectError(f"cannot connect to {address}{over}: {error}") from error
        return session

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._links.close()
        self.driver.close()
