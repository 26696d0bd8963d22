"""A stage that is told to stop leaves etcd, and does not come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from wavepp.infra.etcd import EtcdClient
from wavepp.infra.etcd_keys import PipelineKeys
from wavepp.infra.rpc import RpcServer
from wavepp.stage.app import run_stage
from wavepp.stage.config import StageConfig

LIMIT_S = 30.0
STREAMS_END_S = 0.5
"""Far more than registering takes."""


async def test_a_stage_that_stops_takes_its_registration_with_it(
    etcd_endpoint: str, etcd: EtcdClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_server = RpcServer.stop

    async def stop_slowly(server: RpcServer) -> None:
        await asyncio.sleep(STREAMS_END_S)
        await stop_server(server)

    monkeypatch.setattr(RpcServer, "stop", stop_slowly)
    keys = PipelineKeys("leaving", "p0")
    config = StageConfig(
        stage=0,
        stages=1,
        model="emulated",
        cluster=keys.cluster,
        pipeline=keys.pipeline,
        etcd_endpoints=etcd_endpoint,  # type: ignore[arg-type]
        link="socket",
        metrics_port=-1,
        run_dir=tmp_path,
    )
    stop = asyncio.Event()
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(run_stage(config, stop))
        while await etcd.get(keys.stage(0)) is None:
            assert not running.done(), running
            await asyncio.sleep(0.02)
        stop.set()
        await running
        assert await etcd.get(keys.stage(0)) is None
