"""How a stage enters etcd and leaves it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from wavepp.infra.errors import StartupError
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.registration import StageRegistration
from wavepp.infra.rpc import RpcServer
from wavepp.stage import app as stage_app
from wavepp.stage.app import run_stage
from wavepp.stage.config import StageConfig

LIMIT_S = 30.0
STREAMS_END_S = 0.5
"""Far more than registering takes."""


def stage_config(keys: PipelineKeys, etcd_endpoint: str, tmp_path: Path, **values: Any) -> StageConfig:
    return StageConfig(
        stage=1,
        stages=2,
        model="emulated",
        cluster=keys.cluster,
        pipeline=keys.pipeline,
        etcd_endpoints=etcd_endpoint,  # type: ignore[arg-type]
        link="socket",
        metrics_port=-1,
        run_dir=tmp_path,
        **values,
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
def test_a_wildcard_is_no_address_to_publish_for_links(host: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"link_host .* is no address to connect to"):
        stage_config(PipelineKeys("c", "p0"), "127.0.0.1:1", tmp_path, link_host=host)


async def registration(etcd: EtcdClient, keys: PipelineKeys, running: asyncio.Task[None]) -> StageRegistration:
    """Of the stage that starts, once it is there."""
    while (held := await etcd.get(keys.stage(1))) is None:
        assert not running.done(), running
        await asyncio.sleep(0.02)
    return StageRegistration.decode(held.value)


async def test_a_stage_that_stops_takes_its_registration_with_it(
    etcd_endpoint: str, etcd: EtcdClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_server = RpcServer.stop

    async def stop_slowly(server: RpcServer) -> None:
        await asyncio.sleep(STREAMS_END_S)
        await stop_server(server)

    monkeypatch.setattr(RpcServer, "stop", stop_slowly)
    keys = PipelineKeys("leaving", "p0")
    config = stage_config(keys, etcd_endpoint, tmp_path)
    stop = asyncio.Event()
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(run_stage(config, stop))
        await registration(etcd, keys, running)
        stop.set()
        await running
        assert await etcd.get(keys.stage(1)) is None


async def test_a_stage_that_listens_everywhere_publishes_where_it_can_be_reached(
    etcd_endpoint: str, etcd: EtcdClient, tmp_path: Path
) -> None:
    keys = PipelineKeys("wildcard", "p0")
    config = stage_config(keys, etcd_endpoint, tmp_path, bind_host="0.0.0.0", advertise_address="127.0.0.1")
    stop = asyncio.Event()
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(run_stage(config, stop))
        found = await registration(etcd, keys, running)
        stop.set()
        await running
    assert found.address.startswith("127.0.0.1:")
    assert found.link_address.startswith("tcp://127.0.0.1:")


async def test_a_stage_that_is_to_stop_while_its_model_loads_does_not_wait_for_it(
    etcd_endpoint: str, etcd: EtcdClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, loaded = threading.Event(), threading.Event()

    def load_slowly(*_args: object) -> NoReturn:
        loading.set()
        loaded.wait(LIMIT_S)
        raise AssertionError("nobody waits for it")

    monkeypatch.setattr(stage_app, "load_model", load_slowly)
    keys = PipelineKeys("loading", "p0")
    stop = asyncio.Event()
    try:
        running = asyncio.create_task(run_stage(stage_config(keys, etcd_endpoint, tmp_path), stop))
        assert await asyncio.to_thread(loading.wait, LIMIT_S)
        stop.set()
        await asyncio.wait_for(running, 2.0)
    finally:
        loaded.set()
    assert await etcd.get(keys.stage(1)) is None


async def test_a_stage_whose_place_is_taken_does_not_load(
    etcd_endpoint: str, etcd: EtcdClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = PipelineKeys("taken", "p0")
    config = stage_config(keys, etcd_endpoint, tmp_path)
    stop = asyncio.Event()
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(run_stage(config, stop))
        await registration(etcd, keys, running)
        loads: list[object] = []
        monkeypatch.setattr(stage_app, "load_model", lambda *args: loads.append(args))
        with pytest.raises(StartupError, match="stage 1 of pipeline p0 runs already at"):
            await run_stage(config, stop)
        assert not loads
        stop.set()
        await running
