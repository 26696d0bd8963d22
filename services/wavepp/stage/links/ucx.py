"""The `ucx` transport: listener and connector. How bytes travel: ucx_wire.py; how UCX is driven: ucx_driver.py."""

from __future__ import annotations

import asyncio
import socket as net
import weakref
from typing import Any

from wavepp.core.wire.hello import Hello
from wavepp.stage.links.base import LinkOptions
from wavepp.stage.links.errors import LinkConnectError
from wavepp.stage.links.handshake_queue import HandshakeQueue
from wavepp.stage.links.hello_check import HelloCheck
from wavepp.stage.links.session import LinkSession
from wavepp.stage.links.socket import split_address
from wavepp.stage.links.ucx_driver import UcxDriver, UcxProfile
from wavepp.stage.links.ucx_wire import UcxWire


class UcxListener:
    """A `LinkListener` of UCX. UCX listens on all addresses of the machine; `host` is only published."""

    def __init__(self, transport: UcxTransport, check: HelloCheck, host: str, port: int) -> None:
        self._transport = transport
        self._check = check
        self._host = host
        self._port = port
        self._listener: Any = None
        self._handshakes = HandshakeQueue(transport.options)

    async def start(self) -> str:
        """See `LinkListener.start`."""
        driver = self._transport.driver
        try:
            self._listener = driver.listen(self._port, self._newcomer)
        except driver.ucx_error as error:
            raise LinkConnectError(f"UCX cannot listen on port {self._port}: {error}") from error
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"ucx://{host}:{self._listener.port}"

    async def accept(self) -> LinkSession:
        """See `LinkListener.accept`."""
        return await self._handshakes.accept()

    async def close(self) -> None:
        """See `LinkListener.close`."""
        self._listener = None
        await self._handshakes.close()

    def _newcomer(self, endpoint: Any) -> None:
        session = self._transport.new_session()
        session.prepare_answer(self._check)
        UcxWire(self._transport.driver, endpoint, session)
        if self._handshakes.has_room():
            self._handshakes.welcome(session)
        else:
            session.abort("too many connections are in their handshake")


class UcxTransport:
    """The `ucx` transport: one worker in this process's event loop."""

    def __init__(self, options: LinkOptions, profile: UcxProfile = "tcp") -> None:
        self.options = options
        self.driver = UcxDriver(profile)
        self._closed = False
        self._listeners: list[UcxListener] = []
        self._sessions: weakref.WeakSet[LinkSession] = weakref.WeakSet()

    def new_session(self) -> LinkSession:
        """A session that `close` will find."""
        session = LinkSession(self.options)
        self._sessions.add(session)
        return session

    def listen(self, check: HelloCheck, *, host: str = "127.0.0.1", port: int = 0) -> UcxListener:
        """See `Transport.listen`."""
        listener = UcxListener(self, check, host, port)
        self._listeners.append(listener)
        return listener

    async def connect(self, address: str, hello: Hello, timeout_s: float) -> LinkSession:
        """See `LinkConnector.connect`."""
        host, port = split_address(address, "ucx")
        if self._closed:
            raise LinkConnectError("this transport is closed")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        session = self.new_session()
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
        self._closed = True
        for listener in self._listeners:
            await listener.close()
        for session in list(self._sessions):
            session.abort("the transport was closed")
            await session.torn_down()
        self.driver.close()
