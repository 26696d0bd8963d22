"""The router's stream to the directory that leads."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from wavepp.core import dispatch_messages as dm
from wavepp.infra.etcd import EtcdClient
from wavepp.infra.etcd_keys import PipelineKeys
from wavepp.router.directory_client import DirectoryClient
from wavepp.v1 import directory_pb2

LIMIT_S = 5.0


async def test_a_router_that_steps_down_leaves_no_task_of_the_stream_behind() -> None:
    applied: asyncio.Queue[Any] = asyncio.Queue()
    talking = asyncio.Event()

    def hello() -> directory_pb2.AdmissionHello:
        talking.set()
        return directory_pb2.AdmissionHello()

    client = DirectoryClient(
        cast(EtcdClient, None),
        PipelineKeys("c", "p"),
        hello=hello,
        apply=applied.put_nowait,
    )
    # Takes connections and never answers.
    silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    client.address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    before = asyncio.all_tasks()
    running = asyncio.create_task(client.run())
    async with asyncio.timeout(LIMIT_S):
        await talking.wait()
        running.cancel()
        await asyncio.wait({running})
        assert await applied.get() == dm.DirectoryChanged(ready=False, new_stream=True)
        await asyncio.sleep(0)
    silent.close()
    assert asyncio.all_tasks() == before
