"""A router process, put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from wavepp.core.router.epochs import EpochPhase
from wavepp.core.router.requests import FailureKind
from wavepp.infra.etcd.campaign import Post, campaign_forever, require_etcd
from wavepp.infra.metrics import Metrics, watch_loop_lag
from wavepp.infra.rpc import RpcServer
from wavepp.infra.tasks import TaskOwner
from wavepp.infra.telemetry import setup_telemetry
from wavepp.router.admin import AdminServicer
from wavepp.router.config import RouterConfig
from wavepp.router.errors import STATUS
from wavepp.router.front_door import PrefillServicer
from wavepp.router.leadership import Leadership
from wavepp.router.metrics import export_metrics
from wavepp.router.tokenizer import TextCodec
from wavepp.router.tracing import Tracing
from wavepp.v1 import prefill_pb2_grpc

_log = logging.getLogger(__name__)

WATCH_PERIOD_S: Final = 0.5
DRAIN_S: Final = 20.0


async def run_router(config: RouterConfig, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then let what runs end. Raises StartupError."""
    codec = await asyncio.to_thread(TextCodec, config.tokenizer) if config.tokenizer else None
    client = config.etcd_client()
    metrics = Metrics()
    telemetry = setup_telemetry("wavepp-router", config.tracing(pipeline=config.pipeline))
    tracing = Tracing(telemetry)
    server = RpcServer(errors=STATUS)
    try:
        async with TaskOwner(stop) as tasks, server:
            await require_etcd(client)
            leadership = Leadership(config, client, codec, tasks)
            front_door, admin = PrefillServicer(leadership, tracing), AdminServicer(leadership)
            server.add(prefill_pb2_grpc.add_PrefillServiceServicer_to_server, front_door, "wavepp.v1.PrefillService")
            server.add(prefill_pb2_grpc.add_AdminServiceServicer_to_server, admin, "wavepp.v1.AdminService")
            port = await server.start(config.bind_host, config.bind_port)
            admin.address = config.advertised(port)
            post = Post(leadership.keys.router, admin.address, own_address=config.advertise_address is None)
            metrics_port = metrics.serve(config.bind_host, config.metrics_port)
            export_metrics(metrics, leadership, tracing)
            tasks.spawn(watch_loop_lag(metrics), "loop-lag", endless=True)
            tasks.spawn(leadership.watch_stages(), "watch-stages", endless=True)
            tasks.spawn(leadership.directory.follow(), "follow-directory", endless=True)
            tasks.spawn(campaign_forever(client, post, config.lease_ttl_s, leadership), "leadership", endless=True)
            tasks.spawn(watch_progress(leadership, front_door, admin, server), "watch-progress")
            if telemetry.enabled:
                tasks.spawn(tracing.write(), "trace-write", endless=True)
            _log.info("router listening at %s, metrics port %d", admin.address, metrics_port)
            await stop.wait()
            await _drain(leadership, front_door, server)
    finally:
        await client.close()
        metrics.close()
        await asyncio.to_thread(tracing.write_rest)
        await asyncio.to_thread(telemetry.shutdown)


async def _drain(leadership: Leadership, front_door: PrefillServicer, server: RpcServer) -> None:
    """Take no new requests, let those that run end within the time, fail the rest."""
    front_door.drain()
    await server.set_serving(False)
    driver = leadership.driver
    if driver is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await driver.until_idle()
        driver.fail_all(FailureKind.SHUTDOWN, "this router stops; send the request again")
    leadership.step_down()
    await server.stop()


async def watch_progress(
    leadership: Leadership, front_door: PrefillServicer, admin: AdminServicer, server: RpcServer
) -> None:
    """Readiness follows progress, and a pipeline that does no wave is restarted; a task of the process.

    Serving: this router leads, the pipeline holds an epoch, and no work has been waiting without a wave done for
    `readiness_stall_s`. A degraded pipeline (etcd unavailable) is still serving what it has.
    """
    config = leadership.config
    serving = False
    while not front_door.draining:
        await asyncio.sleep(WATCH_PERIOD_S)
        driver, pipeline = leadership.driver, leadership.pipeline
        ready = driver is not None and pipeline is not None and pipeline.keeper.phase is EpochPhase.READY
        if driver is not None and pipeline is not None and ready:
            stalled_s = driver.stalled_s
            if driver.dispatcher.waves_in_flight and stalled_s > config.wave_timeout_s:
                pipeline.stalled(f"no wave was done for {stalled_s:.0f} s")
            ready = stalled_s <= config.readiness_stall_s
        if ready != serving:
            serving = ready
            _log.info("readiness: %s (%s)", "serving" if ready else "not serving", admin.state())
            await server.set_serving(ready)
