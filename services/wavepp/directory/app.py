"""A cache directory process, put together."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import grpc

from wavepp.directory.config import DirectoryConfig
from wavepp.directory.leadership import DirectoryNotReadyError, Leadership
from wavepp.directory.servicer import DirectoryServicer
from wavepp.infra.etcd.campaign import Post, await_etcd, campaign_forever
from wavepp.infra.leader import Leader, new_instance
from wavepp.infra.metrics import Metrics, watch_loop_lag
from wavepp.infra.ports import await_ports
from wavepp.infra.rpc import RpcServer
from wavepp.infra.rpc_errors import ErrorStatus, ErrorTable
from wavepp.infra.tasks import TaskOwner
from wavepp.v1 import directory_pb2_grpc

_log = logging.getLogger(__name__)

ERRORS: Final[ErrorTable] = {DirectoryNotReadyError: ErrorStatus(grpc.StatusCode.UNAVAILABLE, 200)}


async def run_directory(config: DirectoryConfig, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. Raises StartupError."""
    client = config.etcd_client()
    metrics = Metrics()
    instance = new_instance()
    server = RpcServer(errors=ERRORS, instance=instance)
    try:
        async with TaskOwner(stop) as tasks, server:
            if not await await_etcd(client, config.etcd_wait_s, stop):
                return
            if not await await_ports(config.listens, stop):
                return
            leadership = Leadership(config, client, metrics, tasks)
            servicer = DirectoryServicer(leadership)
            register = directory_pb2_grpc.add_DirectoryServiceServicer_to_server
            server.add(register, servicer, "wavepp.v1.DirectoryService")
            port = await server.start(config.bind_host, config.bind_port)
            servicer.address = config.advertised(port)
            leader = Leader(address=servicer.address, instance=instance)
            post = Post(leadership.keys.directory, leadership.keys.directory_candidates, leader)
            metrics_port = metrics.serve(config.bind_host, config.metrics_port)
            tasks.spawn(watch_loop_lag(metrics), "loop-lag", endless=True)
            tasks.spawn(leadership.watch_stages(), "watch-stages", endless=True)
            campaign = campaign_forever(client, post, config.lease_ttl_s, leadership)
            leading = tasks.spawn(campaign, "leadership", endless=True)
            # A standby is healthy too: it serves as soon as it leads.
            await server.set_serving(True)
            _log.info("directory ready at %s, metrics port %d", servicer.address, metrics_port)
            await stop.wait()
            # First of all: another directory leads at once then, and the router's stream ends here. The server would
            # wait for that stream as long as it waits for any call.
            leading.cancel()
            await asyncio.wait({leading})
    finally:
        await client.close()
        metrics.close()
