"""The router of a simulated mesh: dispatcher and keeper of epochs, and what its clients got."""

from __future__ import annotations

from collections.abc import Callable

from wavepp.core.directory import events as directory_ev
from wavepp.core.errors import InvariantError
from wavepp.core.ids import PipelineEpoch, RequestId, StageIndex
from wavepp.core.router import epochs as ep
from wavepp.core.router import events as router_ev
from wavepp.core.router.dispatcher import Dispatcher, DispatchLimits
from wavepp.core.router.requests import Failure, RequestOutcome
from wavepp.core.stage import events as stage_ev
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.wire.types import FrameChunk
from wavepp.sim.delivery import Delivery
from wavepp.sim.jobs import SimModel
from wavepp.sim.mesh_config import MeshConfig, Peers, PolicyFactory, SimEtcd
from wavepp.sim.mesh_directory import ETCD_RETRY_MS

_NS_PER_MS = 1e6
_RETRY_AFTER_MS = 100


class SimRouter:
    """The router that leads; `restart` puts another in its place, which knows nothing of the requests.

    What clients got is kept over restarts. `granted_in`: the batch in which a request was granted (last). `waves`:
    those issued with chunks in them. `on_finished`, `on_failed`: called when a client has its answer.
    """

    def __init__(
        self,
        config: MeshConfig,
        model: SimModel,
        policy: PolicyFactory,
        delivery: Delivery,
        peers: Peers,
        etcd: SimEtcd,
    ) -> None:
        self.outcomes: dict[RequestId, RequestOutcome] = {}
        self.failures: dict[RequestId, Failure] = {}
        self.streamed: dict[RequestId, list[int]] = {}
        self.finished_order: list[RequestId] = []
        self.granted_in: dict[RequestId, int] = {}
        self.waves = 0
        self.on_finished: Callable[[RequestOutcome], None] = lambda outcome: None
        self.on_failed: Callable[[Failure], None] = lambda failure: None
        self._config = config
        self._model = model
        self._policy = policy
        self._delivery = delivery
        self._peers = peers
        self._etcd = etcd
        self.keeper = ep.EpochKeeper(config.stages)
        self.dispatcher = self._new_dispatcher()

    def _new_dispatcher(self) -> Dispatcher:
        config = self._config
        planner = config.planner_config()
        limits = DispatchLimits(
            queue_requests_max=config.queue_requests_max,
            queue_tokens_max=config.queue_tokens_max,
            queue_retry_after_ms=_RETRY_AFTER_MS,
            running_max=config.running_max,
            attempts_max=config.attempts_max,
        )
        return Dispatcher(
            limits=limits, planner=WavePlanner(planner, self._policy(planner)), block_tokens=config.block_tokens
        )

    def restart(self) -> None:
        """The router dies with its requests, streams and etcd lease; another leads."""
        self._delivery.cut("control:", "events:", "lost:", "admit", "decide", "timer", "epoch")
        self._etcd.records.clear()
        self.dispatcher = self._new_dispatcher()
        self.keeper = ep.EpochKeeper(self._config.stages)

    # ---- the dispatcher ----

    def dispatch(self, event: router_ev.Event) -> None:
        """The dispatcher hears this now."""
        if isinstance(event, router_ev.Decided):
            self._note_grants(event)
        instructions = self.dispatcher.handle(event, self._delivery.now_ms)
        if self._config.validate:
            self.dispatcher.validate()
        for instruction in instructions:
            self._do(instruction)

    def _note_grants(self, decided: router_ev.Decided) -> None:
        for grant, verdict in decided.decisions:
            request = self.dispatcher.request_of(grant)
            if request is not None and isinstance(verdict, directory_ev.Granted):
                self.granted_in[request] = decided.batch

    def _do(self, instruction: router_ev.Instruction) -> None:
        send, admit = self._delivery.send, self._peers.admit
        match instruction:
            case router_ev.SendAdmit():
                event = directory_ev.Admit(instruction.batch, instruction.epoch, instruction.attempts)
                send("admit", lambda: admit(event))
            case router_ev.SendCancel(grants=grants):
                send("admit", lambda: admit(directory_ev.CancelAttempts(grants)))
            case router_ev.SendComputed(grants=grants):
                send("admit", lambda: admit(directory_ev.GrantsComputed(grants)))
            case router_ev.SendEnded(grants=grants):
                send("admit", lambda: admit(directory_ev.GrantsEnded(grants)))
            case router_ev.IssueWave():
                self._issue(instruction)
            case router_ev.Drained():
                for stage in self.keeper.draining:
                    self._tell_drained(stage)
            case router_ev.EmitToken():
                self._emit(instruction)
            case router_ev.Finish(outcome=outcome):
                self.outcomes[outcome.request] = outcome
                self.finished_order.append(outcome.request)
                self.on_finished(outcome)
            case router_ev.Fail(failure=failure):
                self.failures[failure.request] = failure
                self.on_failed(failure)
            case router_ev.RetryAfter(delay_ms=delay_ms):
                send("timer", lambda: self._peers.dispatch(router_ev.RetryDue()), delay_ms)

    def _tell_drained(self, stage: StageIndex) -> None:
        self._delivery.send(f"control:{stage}", lambda: self._peers.drained(stage))

    def _emit(self, emitted: router_ev.EmitToken) -> None:
        tokens = self.streamed.setdefault(emitted.request, [])
        if len(tokens) != emitted.index:
            raise InvariantError(f"token {emitted.index} of {emitted.request} after {len(tokens)}")
        tokens.append(emitted.chosen.token)

    def _issue(self, wave: router_ev.IssueWave) -> None:
        self.waves += bool(wave.chunks)
        chunks = []
        for issued in wave.chunks:
            c = issued.chunk
            chunks.append(FrameChunk(c.grant, c.start, c.length, c.last, c.snapshot, c.decode, issued.keys))
        issued_ns = int(self._delivery.now_ms * _NS_PER_MS)
        payload = self._model.payload(wave)
        arrived = stage_ev.WaveArrived(wave.epoch, wave.wave, tuple(chunks), (), wave.ended, (), issued_ns, payload)
        self._delivery.send("control:0", lambda: self._peers.tell_stage(0, arrived))

    # ---- the keeper of epochs ----

    def keep(self, event: ep.Event) -> None:
        """The keeper of epochs hears this now."""
        for instruction in self.keeper.handle(event):
            match instruction:
                case ep.RaiseEpoch():
                    self._delivery.send("epoch", self._raised)
                case ep.Draining(stages=stages):
                    self.dispatch(router_ev.StagesDraining(len(stages)))
                case ep.Broken(reason=reason):
                    self.dispatch(router_ev.PipelineBroken(reason))
                case ep.Ready(epoch=epoch, died=died):
                    self._send_epoch(epoch)
                    self.dispatch(router_ev.PipelineReady(epoch, died))
                case ep.Announce():
                    self._announce(instruction)

    def _raised(self) -> None:
        if not self._etcd.up:
            self._delivery.send("epoch", self._raised, ETCD_RETRY_MS)
            return
        self._etcd.epoch += 1
        self.keep(ep.Raised(PipelineEpoch(self._etcd.epoch)))

    def _send_epoch(self, epoch: PipelineEpoch) -> None:
        self._delivery.send("admit", lambda: self._peers.admit(directory_ev.EpochMoved(epoch)))

    def _announce(self, announce: ep.Announce) -> None:
        self._delivery.send(f"control:{announce.stage}", lambda: self._peers.announced(announce))
