"""The router's stream to the directory that leads."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.router.directory_client import DirectoryClient
from wavepp.v1 import directory_pb2

LIMIT_S = 5.0
STREAM_TASK = "directory-stream"


def task_names() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def test_a_router_that_steps_down_leaves_no_task_of_the_stream_behind() -> None:
    talking = asyncio.Event()

    def hello() -> directory_pb2.AdmissionHello:
        talking.set()
        return directory_pb2.AdmissionHello()

    client = DirectoryClient(cast(EtcdClient, None), PipelineKeys("c", "p"), hello=hello, apply=lambda _event: None)
    client.address = "127.0.0.1:1"
    running = asyncio.create_task(client.run())
    async with asyncio.timeout(LIMIT_S):
        await talking.wait()
        assert STREAM_TASK in task_names()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert STREAM_TASK not in task_names()
