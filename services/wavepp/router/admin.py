"""For operators: what every process of the pipeline holds and does, and the last waves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import grpc

from wavepp.core.router.epochs import EpochPhase
from wavepp.core.waves.types import FitReport
from wavepp.infra.registration import StageRegistration
from wavepp.infra.rpc import open_channel
from wavepp.router.leadership import Leadership
from wavepp.router.relay import FORWARDED_METADATA, Relay, is_forwarded
from wavepp.router.timeline import timeline_response
from wavepp.v1 import directory_pb2, directory_pb2_grpc, prefill_pb2, prefill_pb2_grpc, stage_pb2, stage_pb2_grpc

ASK_TIMEOUT_S: Final = 2.0
LEADER_TIMEOUT_S: Final = 5.0
"""Above the time that the leader takes when processes do not answer it."""


class AdminServicer(prefill_pb2_grpc.AdminServiceServicer):
    """Asks the directory and every stage when it is asked; one that does not answer is said to be unreachable."""

    def __init__(self, leadership: Leadership, relay: Relay) -> None:
        self.address = ""
        self._leadership = leadership
        self._relay = relay

    async def GetStatus(  # noqa: N802 - the generated name
        self,
        request: prefill_pb2.GetStatusRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.GetStatusRequest, prefill_pb2.GetStatusResponse],
    ) -> prefill_pb2.GetStatusResponse:
        """The whole pipeline at a glance; of a router that does not lead, as the leader sees it."""
        leadership = self._leadership
        if leadership.leader is not None and not is_forwarded(context):
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await self._relay.admin(leadership.leader).GetStatus(
                    request, timeout=LEADER_TIMEOUT_S, metadata=FORWARDED_METADATA
                )
        asking = asyncio.gather(*(self._ask_stage(stage) for _, stage in sorted(leadership.stages.items())))
        directory = await self._ask_directory()
        stages = await asking
        pipeline, driver = leadership.pipeline, leadership.driver
        return prefill_pb2.GetStatusResponse(
            cluster=leadership.config.cluster,
            pipeline=leadership.config.pipeline,
            state=self.state(),
            pipeline_epoch=driver.dispatcher.epoch if driver else 0,
            directory_epoch=leadership.directory.directory_epoch,
            router=self._router(pipeline.keeper.raised if pipeline else 0),
            directory=directory,
            stages=stages,
        )

    def state(self) -> str:
        """One line for people."""
        leadership = self._leadership
        if leadership.misfit:
            return f"stages do not fit: {leadership.misfit}"
        driver = leadership.driver
        if driver is None:
            return "waiting for all stages"
        if not leadership.leading or leadership.pipeline is None:
            return self._standing_by()
        keeper = leadership.pipeline.keeper
        if keeper.phase is not EpochPhase.READY:
            missing = ", ".join(str(s) for s in keeper.missing)
            why = leadership.pipeline.etcd_error or keeper.reason
            return f"{keeper.phase.value}: " + (f"no stage {missing}" if missing else why)
        if keeper.draining:
            stages = ", ".join(str(s) for s in sorted(keeper.draining))
            return f"stage {stages} is to stop: what runs goes on, new requests wait until it is back"
        if leadership.etcd_unavailable:
            return "degraded: etcd is unavailable; what runs goes on, new requests wait"
        if leadership.directory.reason:
            return f"degraded: directory: {leadership.directory.reason}"
        if driver.stalled_s > leadership.config.readiness_stall_s:
            return f"stalled: no wave was done for {driver.stalled_s:.0f} s"
        return "serving"

    def _standing_by(self) -> str:
        leadership = self._leadership
        if leadership.leader is not None:
            ready = "" if leadership.leader_ready else ", which is not ready"
            return f"standby of {leadership.leader.address}{ready}"
        return f"no router leads: {leadership.hindrance}" if leadership.hindrance else "no router leads yet"

    async def GetTimeline(  # noqa: N802 - the generated name
        self,
        request: prefill_pb2.GetTimelineRequest,
        context: grpc.aio.ServicerContext[prefill_pb2.GetTimelineRequest, prefill_pb2.GetTimelineResponse],
    ) -> prefill_pb2.GetTimelineResponse:
        """Finished waves, of the router that leads."""
        leader, driver = self._leadership.leader, self._leadership.driver
        if leader is not None and not is_forwarded(context):
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await self._relay.admin(leader).GetTimeline(
                    request, timeout=LEADER_TIMEOUT_S, metadata=FORWARDED_METADATA
                )
        entries = driver.timeline.last(request.waves_max) if driver else []
        return await asyncio.to_thread(timeline_response, entries)

    def _router(self, epochs_raised: int) -> prefill_pb2.RouterStatus:
        status = prefill_pb2.RouterStatus(
            address=self.address, policy=self._leadership.config.policy, epochs_raised=epochs_raised
        )
        driver = self._leadership.driver
        if driver is not None:
            dispatcher = driver.dispatcher
            status.queued = dispatcher.queued
            status.admitting = dispatcher.admitting
            status.running = dispatcher.running
            status.waves_in_flight = dispatcher.waves_in_flight
            status.waves_done = dispatcher.waves_done
            status.requests_done = dispatcher.requests_done
            status.requests_failed = dispatcher.requests_failed
            status.costs.extend(_cost(stage, report) for stage, report in enumerate(dispatcher.cost_reports()))
        return status

    async def _ask_directory(self) -> prefill_pb2.DirectoryStatus:
        address = self._leadership.directory.address
        if address:
            async with open_channel(address) as channel:
                stub = directory_pb2_grpc.DirectoryServiceStub(channel)
                try:
                    return await stub.GetDirectoryStatus(
                        directory_pb2.GetDirectoryStatusRequest(), timeout=ASK_TIMEOUT_S
                    )
                except grpc.aio.AioRpcError:
                    pass
        return prefill_pb2.DirectoryStatus(address=address, reachable=False)

    async def _ask_stage(self, registration: StageRegistration) -> prefill_pb2.StageStatus:
        async with open_channel(registration.address) as channel:
            stub = stage_pb2_grpc.StageServiceStub(channel)
            try:
                return await stub.GetStageStatus(stage_pb2.GetStageStatusRequest(), timeout=ASK_TIMEOUT_S)
            except grpc.aio.AioRpcError:
                return prefill_pb2.StageStatus(
                    stage=registration.stage,
                    address=registration.address,
                    incarnation=registration.incarnation,
                    first_layer=registration.first_layer,
                    last_layer=registration.last_layer,
                    emulated=registration.emulated,
                    reachable=False,
                )


def _cost(stage: int, report: FitReport) -> prefill_pb2.StageCostStatus:
    return prefill_pb2.StageCostStatus(
        stage=stage,
        state=report.state.value,
        steps=report.steps,
        relative_error=report.error,
        launch_ms=report.cost.launch_ms,
        token_us=1e3 * report.cost.token_ms,
        pair_ps=1e9 * report.cost.pair_ms,
        typical_ms=report.typical_ms,
    )
