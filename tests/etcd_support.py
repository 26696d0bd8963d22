"""What tests do to etcd, and how they wait for it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdError
from wavepp.infra.etcd.types import DeleteOp

T = TypeVar("T")

WAIT_S = 10.0
"""No test waits longer for an event; far above what a busy machine needs."""


async def delete(client: EtcdClient, key: str) -> None:
    """As an operator would: guarded by nothing."""
    await client.txn([], [DeleteOp(key)])


async def eventually(call: Callable[[], Awaitable[T]]) -> T:
    """What `call` gives once etcd can be reached again."""
    ends = time.monotonic() + WAIT_S
    while True:
        try:
            return await call()
        except EtcdError:
            if time.monotonic() > ends:
                raise
            await asyncio.sleep(0.02)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again until it holds."""
    ends = time.monotonic() + WAIT_S
    while not await holds():
        assert time.monotonic() < ends, "it does not come to hold"
        await asyncio.sleep(0.02)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process does not run (SIGSTOP), but its connections stay open."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class LossyProxy:
    """Passes bytes between clients and etcd, until it is told to swallow what etcd answers, or to cut."""

    def __init__(self, target: str) -> None:
        self._host, port = target.split(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.swallow_answers = False
        self.refuse = False
        self.refused = 0

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection; new ones are answered, unless `refuse` is set."""
        self.swallow_answers = False
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            self.refused += 1
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer, False), self._pump(far_reader, writer, True))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if not (answers and self.swallow_answers):
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
