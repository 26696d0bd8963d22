"""The router's side of the admission stream: to whichever directory leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc

from wavepp.codec import admission
from wavepp.core.errors import PeerProtocolError
from wavepp.core.router import events as dm
from wavepp.infra.backoff import Backoff
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.watch import Delete, Put, Reset, snapshot_watch
from wavepp.infra.outbox import Outbox, OutboxFullError
from wavepp.infra.rpc import open_channel
from wavepp.infra.streams import client_stream
from wavepp.v1 import directory_pb2, directory_pb2_grpc

_log = logging.getLogger(__name__)

COMMANDS_MAX: Final = 16_384
CONNECT_TIMEOUT_S: Final = 3.0


class DirectoryClient:
    """Keeps the stream to the leading directory. `hello` makes the first message of each stream."""

    def __init__(
        self,
        client: EtcdClient,
        keys: PipelineKeys,
        *,
        hello: Callable[[], directory_pb2.AdmissionHello],
        apply: Callable[[dm.Event], None],
    ) -> None:
        self.address = ""
        self.directory_epoch = 0
        self.reason = "no directory leads"
        self._client = client
        self._keys = keys
        self._hello = hello
        self._apply = apply
        self._outbox: Outbox[directory_pb2.AdmissionCommand] = Outbox(COMMANDS_MAX)
        self._outbox.close()
        self._moved = asyncio.Event()

    def send(self, command: directory_pb2.AdmissionCommand) -> None:
        """Put a command on the stream; dropped while there is none (the next hello says what is alive)."""
        self._outbox.put(command)

    async def follow(self) -> None:
        """Follow who leads; a task of the process."""
        async with contextlib.aclosing(snapshot_watch(self._client, self._keys.directory)) as events:
            async for event in events:
                match event:
                    case Reset():
                        found = [i.value.decode() for i in event.items if i.key == self._keys.directory]
                        self.address = found[0] if found else ""
                    case Put() if event.item.key == self._keys.directory:
                        self.address = event.item.value.decode()
                    case Delete() if event.key == self._keys.directory:
                        self.address = ""
                self._moved.set()

    async def run(self) -> None:
        """Connect, and connect again, for ever; a task of the process."""
        backoff = Backoff()
        while True:
            address = self.address
            if not address:
                self.reason = "no directory leads"
                self._moved.clear()
                await self._moved.wait()
                continue
            self.reason = "connecting"
            try:
                async with open_channel(address) as channel:
                    talk = self._talk(directory_pb2_grpc.DirectoryServiceStub(channel), backoff)
                    await self._while_leading(address, talk)
                self.reason = "the admission stream ended"
            except grpc.aio.AioRpcError as error:
                self.reason = f"{error.code().name}: {error.details()}"
            except (PeerProtocolError, OutboxFullError, TimeoutError) as error:
                self.reason = str(error) or "no answer in time"
            finally:
                self._outbox.close()
                self._apply(dm.DirectoryChanged(ready=False, new_stream=True))
            _log.warning("directory at %s: %s", address, self.reason)
            await asyncio.sleep(backoff.next_s())

    async def _while_leading(self, address: str, talk: Coroutine[Any, Any, None]) -> None:
        """Run `talk`, but not beyond the leadership of that directory: one that hangs keeps its stream open."""
        task = asyncio.create_task(talk, name="directory-talk")
        try:
            while self.address == address and not task.done():
                self._moved.clear()
                moved = asyncio.create_task(self._moved.wait())
                try:
                    await asyncio.wait({task, moved}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    moved.cancel()
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _talk(self, stub: directory_pb2_grpc.DirectoryServiceAsyncStub, backoff: Backoff) -> None:
        self._outbox = Outbox(COMMANDS_MAX)
        self._outbox.put(directory_pb2.AdmissionCommand(hello=self._hello()))
        async with client_stream(stub.Admission(aiter(self._outbox)), self._outbox) as events:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                first = await anext(events, None)
            if first is None or first.WhichOneof("event") != "hello":
                raise PeerProtocolError("the directory did not answer the hello")
            self.directory_epoch = first.hello.directory_epoch
            backoff.reset()
            async for event in events:
                self._received(event)

    def _received(self, event: directory_pb2.AdmissionEvent) -> None:
        match event.WhichOneof("event"):
            case "decisions":
                self._apply(admission.decode_decisions(event.decisions))
            case "health":
                self.reason = event.health.reason
                self._apply(dm.DirectoryChanged(ready=event.health.ready))
            case other:
                raise PeerProtocolError(f"unexpected event {other!r} on the admission stream")
