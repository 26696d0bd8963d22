"""A stage worker's state and what drives it: events into the sequencer, instructions out to streams and threads.

Everything here runs on the event loop. Nothing awaits between an event and its instructions, so what the sequencer
decided is on its way before the next event is looked at.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from wavepp.codec import control, rounds
from wavepp.codec.frames import WavePayload
from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.cache.types import CacheShape, PoolSizes, pins_limit
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import GrantId, Incarnation, PipelineEpoch, StageIndex
from wavepp.core.router.epochs import Announce
from wavepp.core.stage import events as stage_ev
from wavepp.core.stage.sequencer import Sequencer
from wavepp.core.waves.step_bound import StepBound
from wavepp.infra.faults import fatal_faults
from wavepp.infra.outbox import Outbox
from wavepp.infra.tasks import TaskOwner
from wavepp.stage.config import StageConfig
from wavepp.stage.executor import ExecutorJob, ExecutorThread
from wavepp.stage.jobs import model_job
from wavepp.stage.links.base import Transport
from wavepp.stage.model.base import ModelFacts, StageModel
from wavepp.stage.neighbours import Neighbours
from wavepp.v1 import stage_pb2

_log = logging.getLogger(__name__)

STEP_FLOOR_MS: Final = 10_000.0
"""No step counts as hung before, unless `step_timeout_s` is less."""
WAVES_QUEUED_MAX = 128
"""No router keeps a longer ring (2P, P at most 64)."""


class StageWorker:
    """One stage. `incarnation` changes when the process lost its etcd lease; the cache stays."""

    def __init__(
        self, config: StageConfig, model: StageModel, facts: ModelFacts, transport: Transport, tasks: TaskOwner
    ) -> None:
        self.config = config
        self.stage = StageIndex(config.stage)
        self.incarnation = Incarnation("")
        self.control: Outbox[stage_pb2.ControlEvent] = Outbox()
        self.rounds: Outbox[stage_pb2.RoundsEvent] = Outbox()
        self.control.close()
        self.rounds.close()
        self._draining = False
        self._drained = asyncio.Event()
        pins = pins_limit(config.blocks, config.block_tokens, config.stages, config.wave_tokens_max)
        shape = CacheShape(facts.block_tokens, facts.alignment_tokens, facts.recurrent, PoolSizes(config.blocks), pins)
        self.sequencer = Sequencer(
            stage=self.stage,
            stages=config.stages,
            cache=StageCache(shape),
            waves_queued_max=WAVES_QUEUED_MAX,
            validate=config.validate_invariants,
        )
        self.executor = ExecutorThread(
            model,
            self.stage,
            self.apply,
            StepBound(min(STEP_FLOOR_MS, 1e3 * config.step_timeout_s), 1e3 * config.step_timeout_s),
        )
        self.neighbours = Neighbours(
            cluster=config.cluster,
            pipeline=config.pipeline,
            stage=self.stage,
            stages=config.stages,
            transport=transport,
            tasks=tasks,
            on_wave=self.wave_from_link,
            on_sent=lambda epoch: self.apply(stage_ev.WaveSent(epoch)),
            on_ready=lambda epoch: self.apply(stage_ev.LinksReady(epoch)),
            on_lost=self._link_lost,
        )

    # ---- identity ----

    def begin(self, incarnation: Incarnation) -> None:
        """Be this incarnation from now on."""
        self.incarnation = incarnation
        self.neighbours.identify(incarnation)

    def lease_lost(self) -> None:
        """For the others this process is dead: end everything, so that it holds nothing they do not know of."""
        self.apply(stage_ev.LeaseLost())
        self.control.close()
        self.rounds.close()
        self.neighbours.identify(Incarnation(""))

    # ---- the end ----

    async def drain(self, limit_s: float) -> None:
        """Say that this stage is to stop, and return when nothing runs, no router is connected, or the time is over."""
        if self.control.closed:
            return
        self._draining = True
        self.control.put(control.DRAINING)
        try:
            async with asyncio.timeout(limit_s):
                await self._drained.wait()
        except TimeoutError:
            held = len(self.sequencer.grants)
            _log.warning("%d grants did not end within %g s: they are computed again", held, limit_s)

    def drained(self) -> None:
        """The router says that nothing runs."""
        if self._draining:
            self._drained.set()

    def router_connected(self, outbox: Outbox[stage_pb2.ControlEvent]) -> None:
        """A router greets; whoever did before is deposed."""
        self.control.close()
        self.control = outbox
        self.control.put(control.encode_hello(self.incarnation))
        if self._draining:
            self.control.put(control.DRAINING)

    def router_gone(self, outbox: Outbox[stage_pb2.ControlEvent]) -> None:
        """A router's stream has ended. Without a router nothing runs."""
        if self.control is outbox:
            self.drained()

    # ---- events ----

    def apply(self, event: stage_ev.Event) -> None:
        """Let the sequencer decide, and do what it says. Raises PeerProtocolError for what a peer must not send."""
        with fatal_faults("the stage's sequencer"):
            for instruction in self.sequencer.handle(event):
                self._do(instruction)
            self._publish_changes()
        self.neighbours.wants_wave(self.sequencer.wants_wave)

    def wave_from_link(self, wave: stage_ev.WaveArrived) -> None:
        """A wave from the stage before."""
        self.apply(wave)

    def set_epoch(self, announce: Announce) -> None:
        """The router moved the epoch."""
        self.apply(stage_ev.EpochSet(announce.epoch, announce.report_steps))
        self.neighbours.set_epoch(announce.epoch, announce.next_link_address, announce.next_incarnation)

    def wave_from_router(self, message: stage_pb2.Wave) -> None:
        """A wave for stage 0."""
        if self.stage != 0:
            raise PeerProtocolError(f"a wave came to stage {self.stage} from the router; waves go to stage 0")
        self.apply(control.decode_wave(message, time.time_ns()))

    def directory_connected(self, known: frozenset[GrantId]) -> stage_pb2.RoundsHelloAck:
        """A directory leads the rounds; what it does not know and no wave has named ends here."""
        # Changes that no directory has read are in the dump, or behind the cursor that the answer names.
        self._publish_changes()
        self.apply(stage_ev.DirectoryConnected(known))
        return stage_pb2.RoundsHelloAck(
            incarnation=self.incarnation,
            next_change=self.sequencer.cache.cursor,
        )

    def send_dump(self) -> None:
        """Everything that is held, at once, so that no change comes between the segments."""
        for segment in self.sequencer.cache.dump():
            self.rounds.put(rounds.encode_dump(self.incarnation, segment))

    def _link_lost(self, epoch: PipelineEpoch, reason: str) -> None:
        _log.warning("link lost: %s", reason, extra={"epoch": epoch})
        self.control.put(control.encode_link_lost(epoch, reason))

    # ---- instructions ----

    def _do(self, instruction: stage_ev.Instruction) -> None:
        match instruction:
            case stage_ev.RunJob():
                payload = instruction.payload
                arrived_ns = payload.arrived_ns if isinstance(payload, WavePayload) else time.time_ns()
                self.executor.submit(ExecutorJob(instruction.wave, arrived_ns, model_job(instruction)))
            case stage_ev.SendWave():
                self.neighbours.send(instruction)
            case stage_ev.ReportWave():
                self.control.put(control.encode_wave_done(instruction))
            case stage_ev.ReportStep():
                self.control.put(control.encode_step_done(instruction))
            case stage_ev.AnswerPrepare() | stage_ev.AnswerLower():
                self.rounds.put(rounds.encode_answers(instruction, self.sequencer.cache.room()))
            case stage_ev.AckEpoch():
                self.control.put(control.encode_ack(instruction))
                self.control.put(control.encode_room_report(self.sequencer.cache.room()))
            case stage_ev.ReportRoom():
                self.control.put(control.encode_room_report(instruction.room))

    def _publish_changes(self) -> None:
        cache = self.sequencer.cache
        while True:
            changes = cache.drain_changes()
            if not changes.changes and not changes.gap:
                return
            self.rounds.put(rounds.encode_changes(self.incarnation, changes))
