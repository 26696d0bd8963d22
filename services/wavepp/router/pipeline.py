"""The router's hold on its pipeline while it leads: control streams to all stages, and the epoch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from wavepp.codec.control import DRAINED, decode_room_report, decode_step_done, decode_wave_done, encode_announce
from wavepp.core.errors import InvariantError
from wavepp.core.ids import PipelineEpoch, StageIndex
from wavepp.core.router import epochs as ep
from wavepp.core.router import events as router_ev
from wavepp.core.waves.step_bound import StepBound
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdAmbiguousError, EtcdReadOnlyError, EtcdUnavailableError, FencedError
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.types import Fence
from wavepp.infra.registration import RegistrationError, StageRegistration, check_pipeline
from wavepp.infra.tasks import TaskOwner
from wavepp.router.config import RouterConfig
from wavepp.router.stage_control import StageControl
from wavepp.v1 import stage_pb2

_log = logging.getLogger(__name__)

RAISE_RETRY_S: Final = 0.5


class Pipeline:
    """Drives the epoch keeper. Lives as long as one leadership; `stages` is P."""

    def __init__(
        self,
        config: RouterConfig,
        client: EtcdClient,
        keys: PipelineKeys,
        fence: Fence,
        stages: int,
        tasks: TaskOwner,
        *,
        apply: Callable[[router_ev.Event], None],
        on_ready: Callable[[PipelineEpoch], None],
        superseded: Callable[[], None],
        step_bound: StepBound,
    ) -> None:
        self.keeper = ep.EpochKeeper(stages)
        self.etcd_error = ""
        """Why the epoch could not be raised at the last try."""
        self._config = config
        self._client = client
        self._keys = keys
        self._fence = fence
        self.stages = stages
        self._tasks = tasks
        self._apply = apply
        self._on_ready = on_ready
        self._superseded = superseded
        self._step_bound = step_bound
        self._registered: dict[int, StageRegistration] = {}
        self._loop = asyncio.get_running_loop()
        self._controls: dict[StageIndex, StageControl] = {}
        self._control_tasks: dict[StageIndex, asyncio.Task[None]] = {}
        self._raising: asyncio.Task[None] | None = None
        self._no_pause = asyncio.Event()
        self._ack_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def renew(self, fence: Fence) -> None:
        """This router leads under another token now; to the stages that it talks to it is the same as before."""
        self._fence = fence

    # ---- stages ----

    def stages_changed(self, registrations: dict[int, StageRegistration]) -> None:
        """Keep one control stream to every registered process.

        A registration that is gone ends its stream only once the pipeline does not work any more: the stage may have
        lost sight of etcd, and of nothing else.
        """
        if self._closed:
            return
        self._registered = registrations
        if len(registrations) == self.stages:
            try:
                check_pipeline([registrations[i] for i in range(self.stages)])
            except (RegistrationError, KeyError) as error:
                _log.error("the registered stages are no pipeline: %s", error)
                return
        self._end_unregistered()
        for index, registration in registrations.items():
            stage = StageIndex(index)
            present = self._controls.get(stage)
            if index >= self.stages or (
                present is not None and present.registration.incarnation == registration.incarnation
            ):
                continue
            self._end_control(stage, "another process is registered")
            self._begin_control(stage, registration)

    def _begin_control(self, stage: StageIndex, registration: StageRegistration) -> None:
        control = StageControl(
            registration,
            lambda: self._hello(registration),
            on_epoch_event=self.epoch_event,
            on_report=self._report,
            superseded=self._superseded,
        )
        self._controls[stage] = control
        self._control_tasks[stage] = self._tasks.spawn(control.run(), f"stage-{stage}-control")

    def _hello(self, registration: StageRegistration) -> stage_pb2.ControlHello:
        tokens, slowest_ms = self._step_bound.learned
        return stage_pb2.ControlHello(
            cluster=self._keys.cluster,
            pipeline=self._keys.pipeline,
            stage=registration.stage,
            stages=self.stages,
            incarnation=registration.incarnation,
            router_token=self._fence.create_revision,
            ring=2 * self.stages,
            wave_tokens_max=registration.wave_tokens_max,
            step_tokens=tokens,
            step_ms=slowest_ms,
        )

    def _end_unregistered(self) -> None:
        if self.keeper.phase is ep.EpochPhase.READY:
            return
        for stage in [s for s in self._controls if s not in self._registered]:
            self._end_control(stage, "its registration is gone")

    def _end_control(self, stage: StageIndex, reason: str) -> None:
        self._controls.pop(stage, None)
        task = self._control_tasks.pop(stage, None)
        if task is not None:
            # The keeper must hear it now: the task's own word comes only when it has been cancelled.
            self.epoch_event(ep.StageDown(stage, reason))
            task.cancel()

    def send_to_stage0(self, command: stage_pb2.ControlCommand) -> None:
        """A wave."""
        control = self._controls.get(StageIndex(0))
        if control is not None:
            control.send(command)

    def drained(self) -> None:
        """Nothing runs: stages that wait for that may go."""
        for stage in self.keeper.draining:
            self._controls[stage].send(DRAINED)

    def _report(self, stage: StageIndex, event: stage_pb2.ControlEvent) -> None:
        match event.WhichOneof("event"):
            case "step":
                self._apply(decode_step_done(stage, event.step))
            case "wave":
                self._apply(decode_wave_done(event.wave))
            case "room":
                self._apply(decode_room_report(stage, event.room))
            case other:
                _log.warning("stage %d: unexpected event %r", stage, other)

    # ---- the epoch ----

    def stalled(self, reason: str) -> None:
        """A wave was lost, or takes too long: start over in a new epoch."""
        self.epoch_event(ep.Stalled(self.keeper.epoch, reason))

    def epoch_event(self, event: ep.Event) -> None:
        """Let the keeper decide, and do what it says."""
        if self._closed:
            return
        instructions = self.keeper.handle(event)
        if self.keeper.tries == 0:
            self._no_pause.set()
        for instruction in instructions:
            match instruction:
                case ep.RaiseEpoch():
                    self._no_pause.clear()
                    self._raising = self._tasks.spawn(self._raise(instruction.pause_s), "raise-epoch")
                case ep.Announce():
                    self._announce(instruction)
                case ep.Draining(stages=stages):
                    if stages:
                        names = ", ".join(str(s) for s in sorted(stages))
                        _log.info("stage %s is to stop: what runs goes on, nobody is admitted until it is back", names)
                    self._apply(router_ev.StagesDraining(len(stages)))
                case ep.Broken():
                    _log.warning("pipeline broke: %s", instruction.reason, extra={"epoch": self.keeper.epoch})
                    self._apply(router_ev.PipelineBroken(instruction.reason))
                case ep.Ready():
                    self._cancel_ack_timer()
                    _log.info("pipeline ready", extra={"epoch": instruction.epoch})
                    self._on_ready(instruction.epoch)
                    self._apply(router_ev.PipelineReady(instruction.epoch, instruction.died))
        self._end_unregistered()

    async def _raise(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._no_pause.wait(), pause_s)
        while True:
            try:
                epoch = await self._client.raise_counter(self._keys.epoch, [self._fence])
            except (FencedError, EtcdUnavailableError, EtcdAmbiguousError, EtcdReadOnlyError) as error:
                # Raising once more than needed is harmless. Fenced: this router is elected again, or closes this.
                _log.warning("epoch not raised, trying again: %s", error)
                self.etcd_error = str(error)
                await asyncio.sleep(RAISE_RETRY_S)
                continue
            self.etcd_error = ""
            self.epoch_event(ep.Raised(PipelineEpoch(epoch)))
            return

    def _announce(self, announce: ep.Announce) -> None:
        control = self._controls.get(announce.stage)
        if control is None:
            raise InvariantError(f"stage {announce.stage} is to hear of an epoch, but has no control stream")
        control.send(encode_announce(announce))
        self._cancel_ack_timer()
        timeout_s = self._config.ack_timeout_s
        self._ack_timer = self._loop.call_later(timeout_s, self._acks_missing, announce.epoch)

    def _acks_missing(self, epoch: PipelineEpoch) -> None:
        if self.keeper.phase is not ep.EpochPhase.ANNOUNCED:
            return
        missing = ", ".join(str(s) for s in sorted(self.keeper.waiting_for))
        reason = f"no acknowledgement from stage {missing} within {self._config.ack_timeout_s:g} s"
        self.epoch_event(ep.Stalled(epoch, reason))

    def _cancel_ack_timer(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    def close(self) -> None:
        """This router does not lead any more."""
        self._closed = True
        self._cancel_ack_timer()
        if self._raising is not None:
            self._raising.cancel()
        for task in self._control_tasks.values():
            task.cancel()
        self._controls.clear()
        self._control_tasks.clear()
