"""A router process, put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final, NoReturn

from wavepp.core.router.epochs import EpochPhase
from wavepp.core.router.requests import FailureKind
from wavepp.infra.etcd.campaign import Post, await_etcd, campaign_forever, other_candidates
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdError
from wavepp.infra.leader import Leader, is_alive, new_instance
from wavepp.infra.metrics import Metrics, watch_loop_lag
from wavepp.infra.ports import await_ports
from wavepp.infra.rpc import RpcServer
from wavepp.infra.tasks import TaskOwner
from wavepp.infra.telemetry import setup_telemetry
from wavepp.router.admin import AdminServicer
from wavepp.router.config import RouterConfig
from wavepp.router.errors import STATUS
from wavepp.router.front_door import PrefillServicer
from wavepp.router.leadership import Leadership
from wavepp.router.metrics import export_metrics
from wavepp.router.relay import Relay
from wavepp.router.request_size import check_request
from wavepp.router.tokenizer import TextCodec
from wavepp.router.tracing import Tracing
from wavepp.v1 import prefill_pb2_grpc

_log = logging.getLogger(__name__)

WATCH_PERIOD_S: Final = 0.5
LINGER_S: Final = 2.0
"""A router that has handed over takes calls for so long, and sends them on."""


async def run_router(config: RouterConfig, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then let what runs end. Raises StartupError."""
    codec = await asyncio.to_thread(TextCodec, config.tokenizer) if config.tokenizer else None
    client = config.etcd_client()
    instance = new_instance()
    metrics = Metrics()
    telemetry = setup_telemetry("wavepp-router", config.tracing(pipeline=config.pipeline))
    tracing = Tracing(telemetry)
    server = RpcServer(errors=STATUS, instance=instance, check=check_request)
    try:
        async with TaskOwner(stop) as tasks, server:
            if not await await_etcd(client, config.etcd_wait_s, stop):
                return
            if not await await_ports(config.listens, stop):
                return
            leadership = Leadership(config, client, codec, tasks, instance)
            relay = Relay(leadership)
            front_door, admin = PrefillServicer(leadership, relay, tracing), AdminServicer(leadership, relay)
            server.add(prefill_pb2_grpc.add_PrefillServiceServicer_to_server, front_door, "wavepp.v1.PrefillService")
            server.add(prefill_pb2_grpc.add_AdminServiceServicer_to_server, admin, "wavepp.v1.AdminService")
            port = await server.start(config.bind_host, config.bind_port)
            admin.address = config.advertised(port)
            leader = Leader(address=admin.address, instance=instance)
            post = Post(leadership.keys.router, leadership.keys.router_candidates, leader)
            metrics_port = metrics.serve(config.bind_host, config.metrics_port)
            export_metrics(metrics, leadership, tracing)
            tasks.spawn(watch_loop_lag(metrics), "loop-lag", endless=True)
            tasks.spawn(leadership.watch_stages(), "watch-stages", endless=True)
            tasks.spawn(leadership.directory.follow(), "follow-directory", endless=True)
            tasks.spawn(leadership.watch_leader(), "watch-leader", endless=True)
            campaign = campaign_forever(client, post, config.lease_ttl_s, leadership)
            leading = tasks.spawn(campaign, "leadership", endless=True)
            tasks.spawn(watch_progress(leadership, admin, server, stop), "watch-progress")
            if telemetry.enabled:
                tasks.spawn(tracing.write(), "trace-write", endless=True)
            _log.info("router listening at %s, metrics port %d", admin.address, metrics_port)
            await stop.wait()
            await server.set_serving(False)
            if await hand_over(client, post, leading):
                await _finish_elsewhere(config, server)
            else:
                await _finish_here(config, leadership, front_door, server)
            await relay.close()
    finally:
        await client.close()
        metrics.close()
        await asyncio.to_thread(tracing.write_rest)
        await asyncio.to_thread(telemetry.shutdown)


async def hand_over(client: EtcdClient, post: Post, leading: asyncio.Task[NoReturn]) -> bool:
    """Let another router lead at once, if there is one that could; False when there is none."""
    try:
        others = await other_candidates(client, post)
    except EtcdError as error:
        _log.warning("not handed over: %s", error)
        return False
    alive = await asyncio.gather(*(is_alive(other) for other in others))
    if not any(alive):
        return False
    leading.cancel()
    await asyncio.wait({leading})
    _log.info("handed over: another router leads from now on")
    return True


async def _finish_elsewhere(config: RouterConfig, server: RpcServer) -> None:
    """What runs here is sent on. New calls are, too, for a moment: whoever balances load has to learn that this router
    is not ready. Then clients are told to go elsewhere, and the last calls have their time.
    """
    linger_s = min(LINGER_S, config.drain_s)
    await asyncio.sleep(linger_s)
    await server.stop(config.drain_s - linger_s)


async def _finish_here(
    config: RouterConfig, leadership: Leadership, front_door: PrefillServicer, server: RpcServer
) -> None:
    """Nobody takes over: take no new requests, let those that run end within the time, fail the rest."""
    front_door.drain()
    driver = leadership.driver
    if driver is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(config.drain_s):
                await driver.until_idle()
        driver.fail_all(FailureKind.SHUTDOWN, "this router stops; send the request again")
    leadership.step_down()
    await server.stop()


async def watch_progress(leadership: Leadership, admin: AdminServicer, server: RpcServer, stop: asyncio.Event) -> None:
    """Readiness follows progress, and a pipeline that does no wave is restarted; a task of the process.

    Serving: this router leads, the pipeline holds an epoch, and no work has been waiting without a wave done for
    `readiness_stall_s`. A degraded pipeline (etcd unavailable) is still serving what it has. Serving, too: another
    router leads and says that it is ready, so that calls can be sent on to it.
    """
    config = leadership.config
    serving = False
    while not stop.is_set():
        await asyncio.sleep(WATCH_PERIOD_S)
        driver, pipeline = leadership.driver, leadership.pipeline
        ready = driver is not None and pipeline is not None and pipeline.keeper.phase is EpochPhase.READY
        if driver is not None and pipeline is not None and ready:
            stalled_s = driver.stalled_s
            limit_s = max(config.wave_timeout_s, driver.wave_limit_s(pipeline.stages))
            if driver.dispatcher.waves_in_flight and stalled_s > limit_s:
                pipeline.stalled(f"no wave was done for {stalled_s:.0f} s")
            ready = stalled_s <= config.readiness_stall_s
        if leadership.leader is not None:
            ready = leadership.leader_ready
        if ready != serving and not stop.is_set():
            serving = ready
            _log.info("readiness: %s (%s)", "serving" if ready else "not serving", admin.state())
            await server.set_serving(ready)
