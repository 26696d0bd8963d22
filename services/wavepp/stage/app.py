"""A stage worker process, put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

from wavepp.core.errors import InvalidInputError, WaveppError
from wavepp.infra.errors import StartupError
from wavepp.infra.etcd.campaign import await_etcd
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.memory import resident_bytes
from wavepp.infra.metrics import Metrics, watch_loop_lag
from wavepp.infra.ports import await_ports
from wavepp.infra.registration import StageRegistration
from wavepp.infra.rpc import RpcServer
from wavepp.infra.tasks import TaskOwner
from wavepp.profiles.profile import ProfileError, is_emulated
from wavepp.stage.config import StageConfig
from wavepp.stage.links.base import LinkOptions
from wavepp.stage.links.errors import LinkError
from wavepp.stage.links.registry import make_transport
from wavepp.stage.links.ucx_hosts import devices_of
from wavepp.stage.membership import Membership, check_place
from wavepp.stage.metrics import export_metrics
from wavepp.stage.model.base import ModelFacts, StageModel
from wavepp.stage.model.errors import ModelError
from wavepp.stage.model.factory import ModelOptions, ModelPlan, open_stage_model, plan_model
from wavepp.stage.network import Network, resolve, watch_network
from wavepp.stage.servicer import StageServicer
from wavepp.stage.watchdog import watch_steps
from wavepp.stage.worker import StageWorker
from wavepp.v1 import stage_pb2_grpc

T = TypeVar("T")
_log = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 0.0005
"""With the default of 5 ms the event loop waits up to 29 ms for the interpreter lock while a step runs."""

BOUNDARY_BYTES_PER_TOKEN: Final = 8
"""Widest element of a boundary tensor (fp64, uint64)."""


async def run_stage(config: StageConfig, stop: asyncio.Event) -> None:
    """Ask for the place, load the model, listen, register, and work until `stop` is set. Raises StartupError."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    plan = await asyncio.to_thread(plan_stage, config)
    client = config.etcd_client()
    try:
        if not await await_etcd(client, config.etcd_wait_s, stop):
            return
        # Loading takes minutes: what can be known to be in vain is known before.
        await check_place(client, PipelineKeys(config.cluster, config.pipeline), expected_registration(config, plan))
        if not await await_ports(config.listens, stop):
            return
        loaded = await load_unless(stop, partial(load_model, config, plan))
        if loaded is not None:
            await _run(config, *loaded, client, stop)
    finally:
        await client.close()


async def _run(
    config: StageConfig, model: StageModel, imports_bytes: int, client: EtcdClient, stop: asyncio.Event
) -> None:
    facts = model.describe()
    network = await network_of(config)
    devices = await devices_of(config.links_at) if config.link == "ucx" else ()
    try:
        transport = make_transport(
            config.link, link_options(config, facts), ucx_profile=config.ucx_profile, ucx_devices=devices
        )
    except (LinkError, InvalidInputError) as error:
        raise StartupError(str(error)) from error
    metrics = Metrics()
    server = RpcServer()
    try:
        async with TaskOwner(stop) as tasks:
            worker = StageWorker(config, model, facts, transport, tasks)
            try:
                await _serve(config, worker, network, facts, model, client, server, metrics, tasks, imports_bytes, stop)
            finally:
                await server.stop()
                await worker.executor.close()
                await worker.neighbours.close()
    finally:
        metrics.close()


async def _serve(
    config: StageConfig,
    worker: StageWorker,
    network: Network,
    facts: ModelFacts,
    model: StageModel,
    client: Any,
    server: RpcServer,
    metrics: Metrics,
    tasks: TaskOwner,
    imports_bytes: int,
    stop: asyncio.Event,
) -> None:
    servicer = StageServicer(
        worker,
        memory=model.memory(),
        imports_bytes=imports_bytes,
        emulated=is_emulated(config.model),
        layers=(facts.first_layer, facts.last_layer),
    )
    server.add(stage_pb2_grpc.add_StageServiceServicer_to_server, servicer, "wavepp.v1.StageService")
    if not await await_ports(config.listens, stop):  # again: loading took its time
        return
    port = await server.start(config.bind_host, config.bind_port)
    address = config.advertised(port)
    servicer.address = address
    try:
        link_address = await worker.neighbours.start(config.links_at, config.link_port)
    except (LinkError, OSError) as error:
        raise StartupError(f"cannot listen for links: {error}") from error
    metrics_port = metrics.serve(config.bind_host, config.metrics_port)
    tasks.spawn(watch_loop_lag(metrics), "loop-lag", endless=True)
    export_metrics(metrics, worker)
    membership = Membership(
        client,
        PipelineKeys(config.cluster, config.pipeline),
        registration_of(config, facts, address, link_address),
        config.lease_ttl_s,
        begin=worker.begin,
        end=worker.lease_lost,
    )
    # etcd may have gone away while the model loaded, and that is no reason to load it again.
    if not await await_etcd(client, config.etcd_wait_s, stop):
        return
    await membership.join()
    keeping = tasks.spawn(membership.keep(), "membership", endless=True)

    async def leave() -> None:
        keeping.cancel()
        await asyncio.wait({keeping})
        await membership.close()

    tasks.spawn(watch_steps(worker.executor, leave), "watch-steps", endless=True)
    await server.set_serving(True)
    tasks.spawn(watch_network(network, worker, server.set_serving), "watch-network", endless=True)
    _log.info(
        "stage %d of %d ready at %s, layers [%d, %d), %s, metrics port %d",
        config.stage,
        config.stages,
        address,
        facts.first_layer,
        facts.last_layer,
        facts.compute or facts.dtype,
        metrics_port,
    )
    try:
        await stop.wait()
        await server.set_serving(False)
        if not tasks.failed:
            await worker.drain(config.drain_s)
    finally:
        await leave()


def plan_stage(config: StageConfig) -> ModelPlan:
    """What is known of the model before it is loaded. Raises StartupError. Blocks, but not for long."""
    try:
        return plan_model(config.model, config.stages, config.layers, config.models_dir)
    except (ModelError, ProfileError) as error:
        raise StartupError(str(error)) from error
    except WaveppError as error:
        raise StartupError(f"model {config.model}: {error}") from error


def load_model(config: StageConfig, plan: ModelPlan) -> tuple[StageModel, int]:
    """The model, and how much was resident once its libraries were imported. Raises StartupError. Blocks."""
    try:
        span = plan.spans[config.stage]
        if not is_emulated(config.model):
            import torch  # noqa: F401 - so that its cost is measured apart from the model's
        imports_bytes = resident_bytes()
        model = open_stage_model(
            ModelOptions(
                model=config.model,
                stage=config.stage,
                stages=config.stages,
                first_layer=span[0],
                last_layer=span[1],
                blocks=config.blocks,
                block_tokens=config.block_tokens,
                dtype=config.dtype,
                device=config.device,
                runner=config.runner,
                precision=config.precision,
                threads=config.threads,
                wave_tokens_max=config.wave_tokens_max + config.wave_requests_max,
                models_dir=config.models_dir,
            )
        )
    except (ModelError, ProfileError, ImportError) as error:
        raise StartupError(str(error)) from error
    except WaveppError as error:
        raise StartupError(f"model {config.model}: {error}") from error
    return model, imports_bytes


async def load_unless(stop: asyncio.Event, load: Callable[[], T]) -> T | None:
    """What `load` gives, from a thread; None when `stop` is set first. Nobody waits for the thread then: nothing ends a
    load, and the process is to end.
    """
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if loaded.cancelled():
            return
        if error is not None:
            loaded.set_exception(error)
        else:
            loaded.set_result(cast(T, result))

    def work() -> None:
        result: T | None = None
        failed: BaseException | None = None
        try:
            result = load()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=work, name="load", daemon=True).start()
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    either: set[asyncio.Future[Any]] = {loaded, stopping}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return await loaded if loaded.done() else None
    finally:
        stopping.cancel()
        loaded.cancel()


async def network_of(config: StageConfig) -> Network:
    """This machine's network now, to be taken before UCX is initialised."""
    hosts = dict.fromkeys((config.links_at, config.advertised_host))
    own = [address for host in hosts for address in await resolve(host)]
    network = Network(own, devices_fixed=config.link == "ucx")
    if not network.reachable:
        _log.warning(
            "%s is no address of this machine: others reach it through a translation of addresses, or not at all",
            " and ".join(hosts),
        )
    return network


def expected_registration(config: StageConfig, plan: ModelPlan) -> StageRegistration:
    """What this stage will publish, as far as it is known before the model is loaded."""
    first, last = plan.spans[config.stage]
    return StageRegistration(
        stage=config.stage,
        stages=config.stages,
        incarnation="none",
        address="none",
        link_address="",
        first_layer=first,
        last_layer=last,
        layers_total=plan.layers,
        model_name=plan.name,
        model_type="",
        fingerprint=plan.fingerprint,
        vocab_size=plan.vocab_size,
        tokens_max=plan.max_tokens,
        dtype="",
        cache_dtype="",
        block_tokens=config.block_tokens,
        alignment_tokens=1,
        wave_tokens_max=config.wave_tokens_max,
        wave_requests_max=config.wave_requests_max,
        eos_token_ids=plan.eos_token_ids,
        recurrent=False,
        emulated=is_emulated(config.model),
        kv_blocks=config.blocks,
        state_slots=0,
        snapshot_slots=0,
    )


def link_options(config: StageConfig, facts: ModelFacts) -> LinkOptions:
    """A link carries at most what one wave has at this cut."""
    rows_max = config.wave_tokens_max + config.wave_requests_max
    row_bytes = max(1, facts.hidden_size) * BOUNDARY_BYTES_PER_TOKEN
    return LinkOptions(payload_bytes_max=max(1, len(facts.boundary)) * rows_max * row_bytes)


def registration_of(config: StageConfig, facts: ModelFacts, address: str, link_address: str) -> StageRegistration:
    """What this stage publishes; the incarnation is set when it registers."""
    return StageRegistration(
        stage=config.stage,
        stages=config.stages,
        incarnation="none",
        address=address,
        link_address=link_address,
        first_layer=facts.first_layer,
        last_layer=facts.last_layer,
        layers_total=facts.layers_total,
        model_name=facts.model_name,
        model_type=facts.model_type,
        fingerprint=facts.fingerprint,
        vocab_size=facts.vocab_size,
        tokens_max=facts.max_tokens,
        dtype=facts.dtype,
        cache_dtype=facts.cache_dtype,
        block_tokens=facts.block_tokens,
        alignment_tokens=facts.alignment_tokens,
        wave_tokens_max=config.wave_tokens_max,
        wave_requests_max=config.wave_requests_max,
        eos_token_ids=facts.eos_token_ids,
        recurrent=facts.recurrent,
        emulated=is_emulated(config.model),
        kv_blocks=config.blocks,
        state_slots=0,
        snapshot_slots=0,
    )
