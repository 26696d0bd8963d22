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


async def test_a_router_that_steps_down_leaves_no_task_of_the_stream_behind() -> None:
    client = DirectoryClient(
        cast(EtcdClient, None), PipelineKeys("c", "p"), hello=directory_pb2.AdmissionHello, apply=lambda _event: None
    )
    client.address = "127.0.0.1:1"
    talking = asyncio.Event()

    async def talk() -> None:
        talking.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    running = asyncio.create_task(client._while_leading(client.address, talk()))
    async with asyncio.timeout(LIMIT_S):
        await talking.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
