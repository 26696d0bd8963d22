"""The mesh without machines: the router's, the directory's and the stages' own classes, joined by simulated streams.

Every stream delivers in order; which stream delivers next is drawn from a seed. So a run is one legal interleaving of
messages, repeatable from its seed, and thousands of them take seconds. What stages compute: see `executor`.

There is no time here beyond a step counter: what takes how long is not its subject.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wavepp.core import admission_messages as am
from wavepp.core import dispatch_messages as dm
from wavepp.core import epochs as ep
from wavepp.core import stage_messages as sm
from wavepp.core.admission import Admission
from wavepp.core.dispatch import Dispatcher, DispatchLimits
from wavepp.core.errors import InvariantError
from wavepp.core.frames import FrameChunk
from wavepp.core.ids import DirectoryEpoch, Incarnation, PipelineEpoch, RequestId, StageIndex
from wavepp.core.keys import Namespace, prefix_keys, root_key
from wavepp.core.policies import StaticPolicy
from wavepp.core.requests import Failure, FailureKind, NewRequest, Outcome
from wavepp.core.sequencer import Sequencer
from wavepp.core.stage_cache import CacheShape, PoolSizes, StageCache, pins_limit
from wavepp.core.tokens import decode_tokens, encode_tokens
from wavepp.core.waves import PlannerConfig, WavePlanner
from wavepp.sim.executor import Payload, SimExecutor


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """Shape of a simulated mesh. `stage_blocks`: capacity of every stage's pool; `recurrent`: which stages have
    recurrent layers, with how many state and snapshot slots (none: no stage has). `validate`: every stage checks every
    invariant after every event, which takes most of a run's time.
    """

    stage_blocks: tuple[int, ...]
    block_tokens: int = 4
    wave_tokens_max: int = 16
    running_max: int = 64
    queue_requests_max: int = 4096
    attempts_max: int = 50
    fixed_grid: bool = False
    recurrent: tuple[bool, ...] = ()
    state_slots: int = 4
    snapshot_slots: int = 6
    alignment_blocks: int = 1
    validate: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "recurrent", self.recurrent or (False,) * self.stages)

    @property
    def alignment_tokens(self) -> int:
        """Endpoints, chunk ends and snapshots are multiples of it."""
        return self.block_tokens * self.alignment_blocks

    @property
    def stages(self) -> int:
        """P."""
        return len(self.stage_blocks)


@dataclass(slots=True)
class _Stage:
    index: StageIndex
    incarnation: Incarnation
    sequencer: Sequencer
    executor: SimExecutor
    next_incarnation: str = ""
    """Whom the link to the next stage leads to; empty while there is none."""


class SimMesh:
    """One pipeline of simulated processes. Drive it with `submit`, `cancel`, `kill_stage`, ... and `run`."""

    def __init__(self, config: MeshConfig, seed: int) -> None:
        self.config = config
        self.random = random.Random(seed)
        self.step = 0
        self.outcomes: dict[RequestId, Outcome] = {}
        self.failures: dict[RequestId, Failure] = {}
        self.streamed: dict[RequestId, list[int]] = {}
        self.finished_order: list[RequestId] = []
        self.granted_in: dict[RequestId, int] = {}
        """The batch in which a request was granted (last)."""
        self.etcd: dict[str, am.SetRecord] = {}
        self.etcd_up = True
        self.etcd_epoch = 0
        self.poisoned: dict[RequestId, StageIndex] = {}
        """Requests whose output is not finite on that stage."""
        self.frozen: set[str] = set()
        """Streams that do not deliver for now."""
        self._streams: dict[str, deque[Callable[[], None]]] = {}
        self._unwritten: deque[am.SetRecord] = deque()
        self._incarnations = 0
        self._directory_epoch = 0
        self.stages = [self._new_stage(StageIndex(i)) for i in range(config.stages)]
        self.keeper = ep.EpochKeeper(config.stages)
        self.dispatcher = self._new_dispatcher()
        self.admission = self._new_admission()
        for stage in self.stages:
            self._stage_up(stage)
        self._connect_directory()

    # ---- processes ----

    def _new_stage(self, index: StageIndex) -> _Stage:
        self._incarnations += 1
        config = self.config
        blocks = config.stage_blocks[index]
        pins = pins_limit(blocks, config.block_tokens, config.stages, config.wave_tokens_max)
        recurrent = config.recurrent[index]
        sizes = PoolSizes(blocks, config.state_slots, config.snapshot_slots) if recurrent else PoolSizes(blocks)
        shape = CacheShape(config.block_tokens, config.alignment_tokens, recurrent, sizes, pins)
        sequencer = Sequencer(
            stage=index,
            stages=config.stages,
            cache=StageCache(shape),
            waves_queued_max=2 * config.stages,
            validate=config.validate,
        )
        incarnation = Incarnation(f"inc-{self._incarnations}")
        return _Stage(index, incarnation, sequencer, SimExecutor(config.block_tokens, index, self._failing))

    def _failing(self, stage: StageIndex, chunk: sm.JobChunk) -> str:
        return "output is not finite" if self.poisoned.get(RequestId(str(chunk.context))) == stage else ""

    def _new_dispatcher(self) -> Dispatcher:
        config = self.config
        planner = WavePlanner(
            PlannerConfig(
                stages=config.stages,
                wave_tokens_max=config.wave_tokens_max,
                wave_tokens_min=config.wave_tokens_max // 2,
                block_tokens=config.block_tokens,
                alignment_tokens=config.alignment_tokens,
                fixed_grid=config.fixed_grid,
                snapshot_interval_tokens=config.wave_tokens_max if any(config.recurrent) else 0,
            ),
            StaticPolicy(config.wave_tokens_max),
        )
        limits = DispatchLimits(config.queue_requests_max, 1 << 30, 100, config.running_max, config.attempts_max)
        return Dispatcher(limits=limits, planner=planner, block_tokens=config.block_tokens)

    def _new_admission(self) -> Admission:
        self._directory_epoch += 1
        return Admission(
            directory_epoch=DirectoryEpoch(self._directory_epoch),
            recurrent=self.config.recurrent,
            block_tokens=self.config.block_tokens,
            alignment_tokens=self.config.alignment_tokens,
        )

    # ---- streams ----

    def _send(self, stream: str, deliver: Callable[[], None]) -> None:
        self._streams.setdefault(stream, deque()).append(deliver)

    def _cut(self, *prefixes: str) -> None:
        """What is on these streams is lost."""
        for name, queue in self._streams.items():
            if name.startswith(prefixes):
                queue.clear()

    @property
    def quiet(self) -> bool:
        """Nothing is under way on a stream that delivers."""
        return not any(q for name, q in self._streams.items() if name not in self.frozen)

    def run(self, steps_max: int = 200_000, until: Callable[[], bool] | None = None) -> None:
        """Deliver messages until nothing is under way (or `until` holds). Raises when that takes too many steps."""
        for _ in range(steps_max):
            if until is not None and until():
                return
            ready = [name for name, q in self._streams.items() if q and name not in self.frozen]
            if not ready:
                return
            self.step += 1
            self._streams[self.random.choice(ready)].popleft()()
        raise InvariantError(f"the mesh is not quiet after {steps_max} messages")

    # ---- clients ----

    def submit(
        self,
        request: str,
        prompt: tuple[int, ...],
        *,
        output_tokens_max: int = 1,
        salt: str | None = None,
        priority: int = 0,
    ) -> None:
        """A request that passed the door."""
        namespace = Namespace("sim", "u64", self.config.block_tokens, None, salt)
        tokens = encode_tokens(prompt)
        new = NewRequest(
            request=RequestId(request),
            prompt=tokens,
            root_key=root_key(namespace),
            keys=prefix_keys(namespace, tokens),
            output_tokens_max=output_tokens_max,
            end_tokens=frozenset(),
            priority=priority,
            context=request,
        )
        self._dispatch(dm.Submit(new))

    def cancel(self, request: str) -> None:
        """The client is gone."""
        self._dispatch(dm.Stop(RequestId(request), FailureKind.CANCELLED, "client gone"))

    # ---- faults ----

    def kill_stage(self, index: int) -> None:
        """The process dies with all it held; a new one registers."""
        stage = StageIndex(index)
        self._cut(f"control:{index}", f"events:{index}", f"rounds:{index}", f"answers:{index}", f"jobs:{index}")
        self._cut(f"link:{index}", f"link:{index - 1}", f"lost:{index}")
        neighbours = [n for n in (index - 1, index + 1) if 0 <= n < self.config.stages]
        self.stages[index] = self._new_stage(stage)
        self._keep(ep.StageDown(stage, "killed"))
        for neighbour in neighbours:
            epoch = self.stages[neighbour].sequencer.epoch
            self._send(f"lost:{neighbour}", self._link_broken(StageIndex(neighbour), epoch))
        self._admit(am.StageDisconnected(stage))
        self._stage_up(self.stages[index])
        self._connect_rounds(self.stages[index])

    def cut_link(self, index: int) -> None:
        """The link from stage `index` to the next breaks; what was on it is lost."""
        self._cut(f"link:{index}")
        self.stages[index].next_incarnation = ""
        epoch = self.stages[index].sequencer.epoch
        self._send(f"lost:{index}", self._link_broken(StageIndex(index), epoch))

    def _link_broken(self, stage: StageIndex, epoch: PipelineEpoch) -> Callable[[], None]:
        return lambda: self._keep(ep.LinkBroken(stage, epoch, "link broken"))

    def restart_router(self) -> None:
        """The router dies with its requests and streams; another leads, raises the epoch and finds the stages."""
        self._cut("control:", "events:", "lost:", "admit", "decide", "timer", "epoch")
        self._change_ledger_writer()
        self.etcd.clear()  # the records hung on its lease
        self.dispatcher = self._new_dispatcher()
        self.keeper = ep.EpochKeeper(self.config.stages)
        for stage in self.stages:
            self._stage_up(stage)
        self._admit(am.RouterConnected(PipelineEpoch(0), frozenset()))
        self._dispatch(dm.DirectoryChanged(ready=True, new_stream=True))

    def cut_admission(self) -> None:
        """The stream between router and directory breaks and is made again."""
        self._cut("admit", "decide")
        self._change_ledger_writer()
        self._admit(am.RouterConnected(self.dispatcher.epoch, self.dispatcher.live_grants()))
        self._dispatch(dm.DirectoryChanged(ready=True, new_stream=True))

    def _change_ledger_writer(self) -> None:
        """There is one for each admission stream; it takes over what is to be deleted, and nothing else."""
        self._cut("ledger")
        kept = [r for r in self._unwritten if not r.grants]
        self._unwritten.clear()
        for record in kept:
            self._write_later(record)

    def restart_directory(self) -> None:
        """The directory dies; another takes over from the ledger, the stages and the router."""
        self._cut("rounds:", "answers:", "admit", "decide", "ledger")
        self._unwritten.clear()
        self.admission = self._new_admission()
        self._connect_directory()

    def cut_rounds(self, index: int) -> None:
        """The rounds stream to a stage breaks and is made again."""
        self._cut(f"rounds:{index}", f"answers:{index}")
        self._admit(am.StageDisconnected(StageIndex(index)))
        self._connect_rounds(self.stages[index])

    # ---- the router ----

    def _dispatch(self, event: dm.Event) -> None:
        instructions = self.dispatcher.handle(event, float(self.step))
        self.dispatcher.validate()
        for instruction in instructions:
            self._router_does(instruction)

    def _router_does(self, instruction: dm.Instruction) -> None:
        match instruction:
            case dm.SendAdmit():
                admit = am.Admit(instruction.batch, instruction.epoch, instruction.attempts)
                self._send("admit", lambda: self._admit(admit))
            case dm.SendCancel(grants=grants):
                self._send("admit", lambda: self._admit(am.CancelAttempts(grants)))
            case dm.SendComputed(grants=grants):
                self._send("admit", lambda: self._admit(am.GrantsComputed(grants)))
            case dm.SendEnded(grants=grants):
                self._send("admit", lambda: self._admit(am.GrantsEnded(grants)))
            case dm.IssueWave():
                self._issue(instruction)
            case dm.EmitToken():
                tokens = self.streamed.setdefault(instruction.request, [])
                if len(tokens) != instruction.index:
                    raise InvariantError(f"token {instruction.index} of {instruction.request} after {len(tokens)}")
                tokens.append(instruction.chosen.token)
            case dm.Finish(outcome=outcome):
                self.outcomes[outcome.request] = outcome
                self.finished_order.append(outcome.request)
            case dm.Fail(failure=failure):
                self.failures[failure.request] = failure
            case dm.RetryAfter():
                self._send("timer", lambda: self._dispatch(dm.RetryDue()))

    def _issue(self, wave: dm.IssueWave) -> None:
        rows: list[int] = []
        chunks = []
        for issued in wave.chunks:
            c = issued.chunk
            rows.extend(decode_tokens(issued.token_bytes))
            chunks.append(FrameChunk(c.grant, c.start, c.length, c.last, c.snapshot, c.decode, issued.keys))
        arrived = sm.WaveArrived(
            wave.epoch, wave.wave, tuple(chunks), (), wave.ended, (), self.step, Payload(tuple(rows), {})
        )
        self._send("control:0", lambda: self._stage(0, arrived))

    def _keep(self, event: ep.Event) -> None:
        for instruction in self.keeper.handle(event):
            match instruction:
                case ep.RaiseEpoch():
                    self._send("epoch", self._raised)
                case ep.Broken(reason=reason):
                    self._dispatch(dm.PipelineBroken(reason))
                case ep.Ready(epoch=epoch):
                    self._send("admit", self._epoch_moved(epoch))
                    self._dispatch(dm.PipelineReady(epoch))
                case ep.Announce():
                    self._announce(instruction)

    def _raised(self) -> None:
        if not self.etcd_up:
            self._send("epoch", self._raised)
            return
        self.etcd_epoch += 1
        self._keep(ep.Raised(PipelineEpoch(self.etcd_epoch)))

    def _epoch_moved(self, epoch: PipelineEpoch) -> Callable[[], None]:
        return lambda: self._admit(am.EpochMoved(epoch))

    def _announce(self, announce: ep.Announce) -> None:
        stage, epoch = announce.stage, announce.epoch

        def deliver() -> None:
            self._stage(stage, sm.EpochSet(epoch))
            self.stages[stage].next_incarnation = announce.next_incarnation
            self._stage(stage, sm.LinksReady(epoch))

        self._send(f"control:{stage}", deliver)

    # ---- the directory ----

    def _connect_directory(self) -> None:
        records = tuple((r.name, r.epoch, tuple(g for g, _, _ in r.grants)) for r in self.etcd.values())
        self._admit(am.LedgerLoaded(records))
        live = self.dispatcher.live_grants()
        self._admit(am.RouterConnected(self.dispatcher.epoch, live))
        for stage in self.stages:
            self._connect_rounds(stage)
        self._dispatch(dm.DirectoryChanged(ready=True, new_stream=True))

    def _connect_rounds(self, stage: _Stage) -> None:
        known = self.admission.known_to(stage.index)
        incarnation = stage.incarnation

        def hello() -> None:
            if self.stages[stage.index].incarnation != incarnation:
                return
            self._stage(stage.index, sm.DirectoryConnected(known))
            cursor = stage.sequencer.cache.cursor
            connected = am.StageConnected(stage.index, incarnation, cursor, known)
            self._send(f"answers:{stage.index}", lambda: self._admit(connected))

        self._send(f"rounds:{stage.index}", hello)

    def _admit(self, event: am.Event) -> None:
        for instruction in self.admission.handle(event):
            self._directory_does(instruction)

    def _directory_does(self, instruction: am.Instruction) -> None:
        match instruction:
            case am.SendPrepare(stage=stage):
                prepare = sm.PrepareArrived(instruction.round, instruction.epoch, instruction.grants)
                self._send(f"rounds:{stage}", lambda: self._stage(stage, prepare))
            case am.SendLower(stage=stage):
                lower = sm.LowerArrived(instruction.round, instruction.grants)
                self._send(f"rounds:{stage}", lambda: self._stage(stage, lower))
            case am.SendAbort(stage=stage, grants=grants):
                self._send(f"rounds:{stage}", lambda: self._stage(stage, sm.AbortArrived(grants)))
            case am.AskDump(stage=stage):
                self._send(f"rounds:{stage}", lambda: self._dump(stage))
            case am.SetRecord():
                self._write_later(instruction)
            case am.Decide():
                decided = dm.Decided(instruction.batch, instruction.decisions, instruction.answered)
                self._send("decide", lambda: self._decided(decided))

    def _write_later(self, record: am.SetRecord) -> None:
        self._unwritten.append(record)
        self._send("ledger", self._write)

    def _write(self) -> None:
        record, ok = self._unwritten.popleft(), self.etcd_up
        if ok and record.grants:
            self.etcd[record.name] = record
        elif ok:
            self.etcd.pop(record.name, None)
        elif record.round is None:
            # A mended record is tried until it is written.
            self._write_later(record)
        if record.round is not None:
            self._admit(am.RecordWritten(record.round, ok, "" if ok else "etcd is away"))

    def _decided(self, decided: dm.Decided) -> None:
        for grant, verdict in decided.decisions:
            request = self.dispatcher.request_of(grant)
            if request is not None and isinstance(verdict, am.Granted):
                self.granted_in[request] = decided.batch
        self._dispatch(decided)

    def _dump(self, stage: StageIndex) -> None:
        it = self.stages[stage]
        for piece in it.sequencer.cache.dump():
            event = am.CacheDumped(stage, it.incarnation, piece.keys, piece.snapshot_keys, piece.last, piece.cursor)
            self._send(f"answers:{stage}", self._dumped(event))

    def _dumped(self, event: am.CacheDumped) -> Callable[[], None]:
        return lambda: self._admit(event)

    # ---- stages ----

    def _stage_up(self, stage: _Stage) -> None:
        index, incarnation = stage.index, stage.incarnation
        self._send(f"events:{index}", lambda: self._keep(ep.StageUp(index, incarnation, f"link-{incarnation}")))

    def _stage(self, index: int, event: sm.Event) -> None:
        stage = self.stages[index]
        for instruction in stage.sequencer.handle(event):
            self._stage_does(stage, instruction)
        changes = stage.sequencer.cache.drain_changes()
        if changes.changes or changes.gap:
            changed = am.CacheChanged(
                stage.index, stage.incarnation, changes.first_number, changes.changes, changes.gap
            )
            self._send(f"answers:{index}", lambda: self._admit(changed))

    def _stage_does(self, stage: _Stage, instruction: sm.Instruction) -> None:
        index = stage.index
        match instruction:
            case sm.RunJob():
                self._send(f"jobs:{index}", lambda: self._run_job(stage, instruction))
            case sm.SendWave():
                self._send_wave(stage, instruction)
            case sm.ReportWave():
                results = tuple(s for s in instruction.samples if isinstance(s, tuple))
                done = dm.WaveDone(instruction.epoch, instruction.wave, results, instruction.failed, instruction.steps)
                self._send(f"events:{index}", lambda: self._dispatch(done))
            case sm.ReportStep():
                step = dm.StepDone(instruction.epoch, instruction.wave)
                self._send(f"events:{index}", lambda: self._dispatch(step))
            case sm.AnswerPrepare() | sm.AnswerLower():
                number = stage.sequencer.cache.room().number
                answered = am.StageAnswered(
                    index,
                    instruction.round,
                    tuple((g, a, number) for g, a in instruction.answers),
                    isinstance(instruction, sm.AnswerLower),
                )
                self._send(f"answers:{index}", lambda: self._admit(answered))
            case sm.AckEpoch(epoch=epoch):
                self._send(f"events:{index}", lambda: self._keep(ep.Acked(index, epoch)))
            case sm.ReportRoom(room=room):
                self._send(f"events:{index}", lambda: self._dispatch(dm.RoomChanged(index, room)))

    def _send_wave(self, stage: _Stage, i: sm.SendWave) -> None:
        self._send(f"sent:{stage.index}", lambda: self._sent(stage, i.epoch))
        after = self.stages[stage.index + 1]
        if after.incarnation != stage.next_incarnation:
            return
        arrived = sm.WaveArrived(i.epoch, i.wave, i.chunks, i.failed, i.ended, i.steps, i.issued_ns, i.output)
        self._send(f"link:{stage.index}", lambda: self._stage(after.index, arrived))

    def _sent(self, stage: _Stage, epoch: PipelineEpoch) -> None:
        if self.stages[stage.index] is stage:
            self._stage(stage.index, sm.WaveSent(epoch))

    def _run_job(self, stage: _Stage, job: sm.RunJob) -> None:
        self._stage(stage.index, stage.executor.run(job, self.step))

    # ---- what must hold at the end ----

    def check_nothing_left(self) -> None:
        """Raises InvariantError when anything is still held after all requests have ended."""
        if not self.dispatcher.idle:
            raise InvariantError("the router still has requests, waves or ends")
        for stage in self.stages:
            for pool, usage in stage.sequencer.cache.usage().items():
                if usage.free + usage.cached != usage.capacity or usage.reserved or len(stage.sequencer.grants):
                    raise InvariantError(f"stage {stage.index} still holds of pool {pool}: {usage}")
            stage.sequencer.validate()
        if self.admission.grants or self.admission.rounds_in_flight:
            raise InvariantError(f"the directory still knows grants {sorted(self.admission.grants)}")
        if self.etcd:
            raise InvariantError(f"the ledger still has {sorted(self.etcd)}")
