"""The router's side of the admission stream: to whichever directory leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, NoReturn

import grpc

from wavepp.codec import admission
from wavepp.core.errors import PeerProtocolError
from wavepp.core.router import events as router_ev
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.reconnect import ReconnectingStream
from wavepp.infra.registry import watch_leader
from wavepp.v1 import directory_pb2, directory_pb2_grpc

_log = logging.getLogger(__name__)

COMMANDS_MAX: Final = 16_384
CONNECT_TIMEOUT_S: Final = 3.0

_Stream = ReconnectingStream[directory_pb2.AdmissionCommand, directory_pb2.AdmissionEvent]


class DirectoryClient:
    """Keeps the stream to the leading directory. `hello` makes the first message of each stream."""

    def __init__(
        self,
        client: EtcdClient,
        keys: PipelineKeys,
        *,
        hello: Callable[[], directory_pb2.AdmissionHello],
        apply: Callable[[router_ev.Event], None],
        superseded: Callable[[], None],
    ) -> None:
        self.superseded = superseded
        self.address = ""
        self.directory_epoch = 0
        self.reason = "no directory leads"
        self._client = client
        self._keys = keys
        self._hello = hello
        self._apply = apply
        self._stream: _Stream | None = None
        self._moved = asyncio.Event()

    def send(self, command: directory_pb2.AdmissionCommand) -> None:
        """Put a command on the stream; dropped while there is none (the next hello says what is alive)."""
        if self._stream is not None:
            self._stream.send(command)

    async def follow(self) -> None:
        """Follow who leads; a task of the process."""
        async with contextlib.aclosing(watch_leader(self._client, self._keys.directory)) as leaders:
            async for leading in leaders:
                self.moved_to(leading.leader.address if leading else "")

    def moved_to(self, address: str) -> None:
        """The directory at this address leads; empty: none does."""
        self.address = address
        self._moved.set()

    async def run(self) -> NoReturn:
        """Keep a stream to whoever leads, until it is cancelled."""
        while True:
            address = self.address
            if address:
                await self._while_leading(address)
            else:
                self.reason = "no directory leads"
                self._moved.clear()
                await self._moved.wait()

    async def _while_leading(self, address: str) -> None:
        """Not beyond the leadership of that directory: one that hangs keeps its stream open."""
        stream = self._stream = _Stream(
            address,
            "directory",
            "admission",
            self,
            call=_call,
            commands_max=COMMANDS_MAX,
            connect_timeout_s=CONNECT_TIMEOUT_S,
        )
        talking = asyncio.create_task(stream.run(), name="directory-stream")
        try:
            while self.address == address and not talking.done():
                self._moved.clear()
                moved = asyncio.create_task(self._moved.wait())
                try:
                    await asyncio.wait({talking, moved}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    moved.cancel()
            if talking.done():
                talking.result()
            _log.info("directory at %s does not lead any more", address)
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
            # Another run may have begun meanwhile, with a stream of its own.
            if self._stream is stream:
                self._stream = None

    # ---- StreamOwner ----

    def hello(self) -> directory_pb2.AdmissionCommand:
        """That this router leads, and what it runs."""
        self.reason = "connecting"
        return directory_pb2.AdmissionCommand(hello=self._hello())

    def greeted(self, event: directory_pb2.AdmissionEvent) -> None:
        """The directory leads, too."""
        if event.WhichOneof("event") != "hello":
            raise PeerProtocolError("the directory did not answer the hello")
        self.directory_epoch = event.hello.directory_epoch

    def received(self, event: directory_pb2.AdmissionEvent) -> None:
        """Decisions, and whether grants can be made."""
        match event.WhichOneof("event"):
            case "decisions":
                self._apply(admission.decode_decisions(event.decisions))
            case "health":
                self.reason = event.health.reason
                self._apply(router_ev.DirectoryChanged(ready=event.health.ready))
            case other:
                raise PeerProtocolError(f"unexpected event {other!r} on the admission stream")

    def lost(self, reason: str) -> None:
        """Whatever was asked is void."""
        self.reason = reason
        self._apply(router_ev.DirectoryChanged(ready=False, new_stream=True))


def _call(channel: grpc.aio.Channel, commands: AsyncIterator[directory_pb2.AdmissionCommand]) -> Any:
    return directory_pb2_grpc.DirectoryServiceStub(channel).Admission(commands)
