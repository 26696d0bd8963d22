"""The stages of a simulated mesh: sequencers and caches with simulated executors, links and streams."""

from __future__ import annotations

from dataclasses import dataclass

from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.directory import events as directory_ev
from wavepp.core.errors import InvariantError
from wavepp.core.ids import Incarnation, PipelineEpoch, RequestId, StageIndex
from wavepp.core.router import epochs as ep
from wavepp.core.router import events as router_ev
from wavepp.core.stage import events as stage_ev
from wavepp.core.stage.sequencer import Sequencer
from wavepp.sim.delivery import Delivery
from wavepp.sim.jobs import Executor, JobSpan, SimModel
from wavepp.sim.mesh_config import MeshConfig, Peers


@dataclass(slots=True)
class StageProcess:
    """One process; another takes its place when it dies."""

    index: StageIndex
    incarnation: Incarnation
    sequencer: Sequencer
    executor: Executor
    next_incarnation: str = ""
    """Whom the link to the next stage leads to; empty while there is none."""
    draining: bool = False
    """It is to stop, and waits until nothing runs."""
    dead: bool = False
    """It died of what it ran: its executor says nothing more."""


class SimStages:
    """All stages. `poisoned`: requests whose output is not finite on that stage. `deadly`: requests that the process of
    that stage dies of, whenever it runs them."""

    def __init__(self, config: MeshConfig, model: SimModel, delivery: Delivery, peers: Peers) -> None:
        self.poisoned: dict[RequestId, StageIndex] = {}
        self.deadly: dict[RequestId, StageIndex] = {}
        self._config = config
        self._model = model
        self._delivery = delivery
        self._peers = peers
        self._incarnations = 0
        self.processes = [self._new(StageIndex(i)) for i in range(config.stages)]

    def _new(self, index: StageIndex) -> StageProcess:
        self._incarnations += 1
        config = self._config
        sequencer = Sequencer(
            stage=index,
            stages=config.stages,
            cache=StageCache(config.cache_shape(index)),
            waves_queued_max=config.planner_config().ring,
            validate=config.validate,
        )
        incarnation = Incarnation(f"inc-{self._incarnations}")
        return StageProcess(index, incarnation, sequencer, self._model.executor(index, self._failing))

    def _failing(self, stage: StageIndex, chunk: stage_ev.PlacedChunk) -> str:
        if not self.poisoned:
            return ""
        return "output is not finite" if self.poisoned.get(RequestId(str(chunk.context))) == stage else ""

    # ---- processes and links ----

    def replace(self, index: StageIndex) -> None:
        """The process is gone with all it held; there is a new one."""
        self.processes[index] = self._new(index)

    def register(self, index: StageIndex, after_ms: float = 0.0) -> None:
        """The router finds the process, `after_ms` from now at the earliest."""
        process = self.processes[index]
        up = ep.StageUp(index, process.incarnation, f"link-{process.incarnation}")
        self._delivery.send(f"events:{index}", lambda: self._peers.keep(up), after_ms)
        if process.draining:
            self.drain(index)

    def drain(self, index: StageIndex) -> None:
        """The process is to stop: it tells the router, and waits."""
        self.processes[index].draining = True
        self._delivery.send(f"events:{index}", lambda: self._peers.keep(ep.StageDraining(index)))

    def link_lost(self, index: int) -> None:
        """A neighbour of this stage is gone: it will tell the router."""
        stage = StageIndex(index)
        broken = ep.LinkBroken(stage, self.processes[stage].sequencer.epoch, "link broken")
        self._delivery.send(f"lost:{stage}", lambda: self._peers.keep(broken))

    def announced(self, announce: ep.Announce) -> None:
        """The router's word of an epoch; the link to the next stage is made at once."""
        self.handle(announce.stage, stage_ev.EpochSet(announce.epoch, announce.report_steps))
        self.processes[announce.stage].next_incarnation = announce.next_incarnation
        self.handle(announce.stage, stage_ev.LinksReady(announce.epoch))

    # ---- events ----

    def handle(self, index: int, event: stage_ev.Event) -> None:
        """A stage hears this now."""
        stage = self.processes[index]
        for instruction in stage.sequencer.handle(event):
            self._do(stage, instruction)
        changes = stage.sequencer.cache.drain_changes()
        if changes.changes or changes.gap:
            changed = directory_ev.CacheChanged(
                stage.index, stage.incarnation, changes.first_number, changes.changes, changes.gap
            )
            self._delivery.send(f"answers:{index}", lambda: self._peers.admit(changed))

    def _do(self, stage: StageProcess, instruction: stage_ev.Instruction) -> None:
        index, send, peers = stage.index, self._delivery.send, self._peers
        match instruction:
            case stage_ev.RunJob():
                self._begin_job(stage, instruction)
            case stage_ev.SendWave():
                self._send_wave(stage, instruction)
            case stage_ev.ReportWave():
                it = instruction
                done = router_ev.WaveDone(it.epoch, it.wave, it.samples, it.failed, it.steps)
                send(f"events:{index}", lambda: peers.dispatch(done))
            case stage_ev.ReportStep():
                step = router_ev.StepDone(index, instruction.epoch, instruction.wave)
                send(f"events:{index}", lambda: peers.dispatch(step))
            case stage_ev.AnswerPrepare() | stage_ev.AnswerLower():
                number = stage.sequencer.cache.room().number
                answered = directory_ev.StageAnswered(
                    index,
                    instruction.round,
                    tuple((g, a, number) for g, a in instruction.answers),
                    isinstance(instruction, stage_ev.AnswerLower),
                )
                send(f"answers:{index}", lambda: peers.admit(answered))
            case stage_ev.AckEpoch(epoch=epoch):
                send(f"events:{index}", lambda: peers.keep(ep.Acked(index, epoch)))
            case stage_ev.ReportRoom(room=room):
                send(f"events:{index}", lambda: peers.dispatch(router_ev.RoomChanged(index, room)))

    def _begin_job(self, stage: StageProcess, job: stage_ev.RunJob) -> None:
        handed_ms = self._delivery.now_ms
        takes_ms = stage.executor.takes_ms(job)

        def done() -> None:
            if stage.dead or any(self.deadly.get(RequestId(str(c.context))) == stage.index for c in job.chunks):
                self._die(stage)
                return
            now_ms = self._delivery.now_ms
            span = JobSpan(handed_ms, max(handed_ms, now_ms - takes_ms), now_ms)
            self.handle(stage.index, stage.executor.run(job, span))

        self._delivery.send(f"jobs:{stage.index}", done, takes_ms)

    def _die(self, stage: StageProcess) -> None:
        """The router hears what the process had said before it hears that it is gone."""
        if not stage.dead:
            stage.dead = True
            self._delivery.send(f"events:{stage.index}", lambda: self._peers.died(stage.index))

    def _send_wave(self, stage: StageProcess, i: stage_ev.SendWave) -> None:
        self._delivery.send(f"sent:{stage.index}", lambda: self._sent(stage, i.epoch))
        after = self.processes[stage.index + 1]
        if after.incarnation != stage.next_incarnation:
            return
        arrived = stage_ev.WaveArrived(i.epoch, i.wave, i.chunks, i.failed, i.ended, i.steps, i.issued_ns, i.output)
        self._delivery.send(f"link:{stage.index}", lambda: self.handle(after.index, arrived))

    def _sent(self, stage: StageProcess, epoch: PipelineEpoch) -> None:
        if self.processes[stage.index] is stage:
            self.handle(stage.index, stage_ev.WaveSent(epoch))

    def check_nothing_held(self) -> None:
        """Raises InvariantError when a stage holds more than cache."""
        for stage in self.processes:
            for pool, usage in stage.sequencer.cache.usage().items():
                if usage.free + usage.cached != usage.capacity or usage.reserved or len(stage.sequencer.grants):
                    raise InvariantError(f"stage {stage.index} still holds of pool {pool}: {usage}")
            stage.sequencer.validate()
