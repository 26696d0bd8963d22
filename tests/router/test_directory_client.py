"""The router's stream to the directory that leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from types import CoroutineType
from typing import cast

import grpc
import pytest

from wavepp.core.router import events as router_ev
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.router.directory_client import DirectoryClient
from wavepp.v1 import directory_pb2, directory_pb2_grpc

LIMIT_S = 10.0


class Directory(directory_pb2_grpc.DirectoryServiceServicer):
    """Answers every hello, and counts what comes after it."""

    def __init__(self) -> None:
        self.commands: asyncio.Queue[str | None] = asyncio.Queue()

    async def Admission(  # noqa: N802 - the generated name
        self,
        request_iterator: AsyncIterator[directory_pb2.AdmissionCommand],
        context: grpc.aio.ServicerContext[directory_pb2.AdmissionCommand, directory_pb2.AdmissionEvent],
    ) -> AsyncIterator[directory_pb2.AdmissionEvent]:
        async for command in request_iterator:
            kind = command.WhichOneof("command")
            if kind == "hello":
                yield directory_pb2.AdmissionEvent(hello=directory_pb2.AdmissionHelloAck(directory_epoch=7))
            await self.commands.put(kind)


@pytest.fixture
async def directory() -> AsyncIterator[tuple[Directory, str]]:
    server, servicer = grpc.aio.server(), Directory()
    directory_pb2_grpc.add_DirectoryServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(None)


def made(apply: Callable[[router_ev.Event], None]) -> DirectoryClient:
    return DirectoryClient(
        cast(EtcdClient, None),
        PipelineKeys("c", "p"),
        hello=directory_pb2.AdmissionHello,
        apply=apply,
        superseded=lambda: None,
    )


@pytest.fixture
def client() -> DirectoryClient:
    return made(lambda _event: None)


def own_tasks() -> Iterator[str]:
    """Tasks that are not gRPC's own, which are compiled."""
    for task in asyncio.all_tasks():
        if isinstance(task.get_coro(), CoroutineType):
            yield task.get_name()


async def test_a_router_that_steps_down_leaves_no_task_of_the_stream_behind(
    client: DirectoryClient, directory: tuple[Directory, str]
) -> None:
    servicer, client.address = directory
    before = sorted(own_tasks())
    running = asyncio.create_task(client.run())
    async with asyncio.timeout(LIMIT_S):
        assert await servicer.commands.get() == "hello"
        assert "directory-stream" in own_tasks()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [name for name in sorted(own_tasks()) if name not in before] == []


async def test_a_run_that_ends_leaves_the_stream_of_the_next_one_alone(
    client: DirectoryClient, directory: tuple[Directory, str]
) -> None:
    servicer, client.address = directory
    first = asyncio.create_task(client.run())
    async with asyncio.timeout(LIMIT_S):
        assert await servicer.commands.get() == "hello"
        # As when stages of another shape replace the ones before: a leadership ends and begins at once.
        first.cancel()
        second = asyncio.create_task(client.run())
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await servicer.commands.get() == "hello"
        client.send(directory_pb2.AdmissionCommand(epoch=directory_pb2.EpochMoved(pipeline_epoch=1)))
        assert await servicer.commands.get() == "epoch"
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)


async def test_a_stream_is_given_up_when_its_directory_leads_no_more(directory: tuple[Directory, str]) -> None:
    servicer, address = directory
    changes: asyncio.Queue[router_ev.Event] = asyncio.Queue()
    client = made(changes.put_nowait)
    client.moved_to(address)
    running = asyncio.create_task(client.run())
    async with asyncio.timeout(LIMIT_S):
        assert await servicer.commands.get() == "hello"
        client.moved_to("")
        assert await changes.get() == router_ev.DirectoryChanged(ready=False, new_stream=True)
        client.moved_to(address)
        assert await servicer.commands.get() == "hello"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
