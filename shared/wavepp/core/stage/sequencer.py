"""What a stage decides: grants in, waves in order, jobs to the executor, frames and reports out.

Pure: `handle(event)` returns instructions, the shell runs them. The rules are:
- Waves are applied strictly in the order in which they came; ends of grants are part of that order.
- At most `JOBS_AHEAD` jobs are with the executor. Blocks are materialised when a job is handed over, so memory is
  taken as late as possible, and a job carries everything it needs: nothing is looked up while it runs.
- A chunk that does not fit what this stage holds fails its grant, never the wave: its rows are dropped, the reason
  travels with the wave, and every wave reaches the last stage, if only as a header.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.cache.types import KeyWindow, Missing, NeedKeys, Prepared
from wavepp.core.errors import InvariantError, PeerProtocolError
from wavepp.core.ids import GrantId, PipelineEpoch, PrefixKey, StageIndex, WaveId, epoch_of
from wavepp.core.limits import KEY_BYTES
from wavepp.core.stage import events as ev
from wavepp.core.stage.grants import GrantAction, GrantEvent, GrantState, GrantTable, StageGrant
from wavepp.core.stage.room_reports import RoomReports
from wavepp.core.waves.types import FailedGrant
from wavepp.core.wire.types import FrameChunk

JOBS_AHEAD: Final = 2
"""One job runs, one waits: the executor never waits for the talking thread, and memory is taken late."""

UNSENT_MAX: Final = 2
"""Waves that are done but not on the link yet. When the next stage is slow this one waits, so that what a stage holds
of activations stays bounded; the last stage never waits, so the pipeline always moves."""


@dataclass(slots=True)
class _Running:
    """A wave whose job is with the executor."""

    wave: ev.WaveArrived
    good: tuple[FrameChunk, ...]
    failed: list[FailedGrant]


class Sequencer:
    """The state of one stage. Owned by one thread; never awaits, never reads a clock."""

    def __init__(
        self,
        *,
        stage: StageIndex,
        stages: int,
        cache: StageCache,
        waves_queued_max: int,
        validate: bool = False,
    ) -> None:
        self.cache = cache
        self.grants = GrantTable()
        self.epoch = PipelineEpoch(0)
        self.waves_done = 0
        self._stage = stage
        self._first = stage == 0
        self._last = stage == stages - 1
        self._block_tokens = cache.shape.block_tokens
        self._waves_queued_max = waves_queued_max
        self._pending: deque[ev.WaveArrived] = deque()
        self._running: deque[_Running] = deque()
        self._unsent = 0
        self._last_wave = WaveId(0)
        self._epoch_unacked = False
        self._report_steps = False
        self._links_ready = False
        self._silenced = False
        self._room_reports = RoomReports()
        self._validate = validate

    @property
    def wants_wave(self) -> bool:
        """Whether the next wave should be taken from the link now; until then it waits there, and is counted there."""
        return len(self._running) + len(self._pending) <= JOBS_AHEAD

    @property
    def waves_queued(self) -> int:
        """Waves here that are not done, those with the executor included."""
        return len(self._pending) + len(self._running)

    def handle(self, event: ev.Event) -> list[ev.Instruction]:
        """Apply one event. Raises PeerProtocolError when a peer broke the protocol."""
        out: list[ev.Instruction] = []
        match event:
            case ev.PrepareArrived():
                out.append(ev.AnswerPrepare(event.round, self._prepare(event)))
            case ev.LowerArrived():
                out.append(ev.AnswerLower(event.round, tuple((g, self._lower(g, e)) for g, e in event.grants)))
            case ev.AbortArrived():
                for grant in event.grants:
                    self._end(grant, GrantEvent.ABORT)
            case ev.DirectoryConnected():
                self._reconcile(event.known)
            case ev.EpochSet():
                self._set_epoch(event.epoch, report_steps=event.report_steps)
            case ev.LinksReady():
                # Word of an older epoch's links may come late; it says nothing about this epoch's.
                self._links_ready = self._links_ready or event.epoch == self.epoch
            case ev.WaveArrived():
                self._enqueue(event)
            case ev.JobDone():
                self._job_done(event, out)
            case ev.WaveSent():
                self._unsent -= event.epoch == self.epoch
            case ev.LeaseLost():
                self._fence()
                self._silenced = True
        self._hand_over(out)
        self._settle(out)
        if self._validate:
            self.validate()
        return out

    # ---- admission ----

    def _prepare(self, event: ev.PrepareArrived) -> tuple[tuple[GrantId, ev.Answer], ...]:
        if event.epoch != self.epoch:
            return tuple((g.grant, ev.Refused(ev.RefusalReason.EPOCH)) for g in event.grants)
        answers: list[tuple[GrantId, ev.Answer]] = []
        refused = False
        for wanted in event.grants:
            # First come, first served: what follows a refused grant must not take the room that it waits for.
            answer = ev.Refused(ev.RefusalReason.ORDER) if refused else self._prepare_one(wanted)
            if isinstance(answer, Missing):
                self._room_reports.refused(answer)
            refused = refused or isinstance(answer, (Missing, NeedKeys))
            answers.append((wanted.grant, answer))
        return tuple(answers)

    def _prepare_one(self, wanted: ev.PrepareGrant) -> ev.Answer:
        known = self.grants.get(wanted.grant)
        if known is not None:
            # Asked again after a broken stream: the same answer, nothing is taken twice.
            return Prepared(known.endpoint_tokens, known.snapshots)
        if self.grants.ended(wanted.grant) or epoch_of(wanted.grant) != self.epoch:
            return ev.Refused(ev.RefusalReason.ENDED)
        window = KeyWindow(wanted.first_block, wanted.keys, PrefixKey(wanted.key_before) if wanted.key_before else None)
        answer = self.cache.prepare(wanted.grant, window, wanted.endpoint_tokens, wanted.total_tokens)
        if isinstance(answer, Prepared):
            # Where the latest snapshot lies before the window, the blocks between are computed again: keep their keys.
            keys_first_block = min(wanted.first_block, answer.endpoint_tokens // self._block_tokens)
            keys_before = self.cache.keys_before(window, keys_first_block)
            record = StageGrant(
                grant=wanted.grant,
                prompt_tokens=wanted.prompt_tokens,
                total_tokens=wanted.total_tokens,
                endpoint_tokens=answer.endpoint_tokens,
                snapshots=answer.snapshots,
                keys_first_block=keys_first_block,
                keys=keys_before + wanted.keys,
                context=wanted.context,
            )
            record.move_endpoint(answer.endpoint_tokens, answer.snapshots)
            self.grants.add(record)
        return answer

    def _lower(self, grant: GrantId, endpoint_tokens: int) -> ev.Answer:
        record = self.grants.get(grant)
        if record is None:
            return ev.Refused(ev.RefusalReason.ENDED)
        if record.state is not GrantState.PREPARED or endpoint_tokens >= record.endpoint_tokens:
            return Prepared(record.endpoint_tokens, record.snapshots)
        first_block = endpoint_tokens // self._block_tokens
        if first_block < record.keys_first_block:
            # The blocks between the two endpoints will be computed here, so their keys are needed later; they are
            # pinned now, hence known.
            held = self.cache.pinned_keys(grant, first_block, record.keys_first_block)
            keys_first_block, keys = first_block, held + record.keys
        else:
            keys_first_block, keys = record.keys_first_block, record.keys
        answer = self.cache.lower(grant, endpoint_tokens)
        if isinstance(answer, Prepared):
            record.keys_first_block, record.keys = keys_first_block, keys
            record.move_endpoint(answer.endpoint_tokens, answer.snapshots)
        else:
            self._room_reports.refused(answer)
        return answer

    def _reconcile(self, known: frozenset[GrantId]) -> None:
        for record in self.grants.live():
            if record.grant not in known:
                self._end(record.grant, GrantEvent.ABORT)

    # ---- the end of grants ----

    def _end(self, grant: GrantId, event: GrantEvent) -> None:
        record = self.grants.get(grant)
        if record is None:
            self.grants.bury(grant)
            return
        if record.apply(event) is GrantAction.RELEASE:
            self.cache.release(self.cache.receipt(grant))
            self.grants.bury(grant)

    def _fence(self) -> None:
        self._pending.clear()
        for record in self.grants.live():
            self._end(record.grant, GrantEvent.FENCE)

    def _set_epoch(self, epoch: PipelineEpoch, *, report_steps: bool) -> None:
        if epoch < self.epoch:
            raise PeerProtocolError(f"epoch {epoch} after epoch {self.epoch}: an old router still talks")
        if epoch > self.epoch:
            self.epoch = epoch
            self._last_wave = WaveId(0)
            self._links_ready = False
            self._silenced = False
            self._unsent = 0
            self._room_reports.new_epoch()
            self._fence()
        self._report_steps = report_steps
        self._epoch_unacked = True

    # ---- waves ----

    def _enqueue(self, wave: ev.WaveArrived) -> None:
        if wave.epoch < self.epoch or self._silenced:
            return
        if wave.epoch > self.epoch:
            raise PeerProtocolError(f"wave {wave.wave} of epoch {wave.epoch}, but this stage is at {self.epoch}")
        if self._last_wave and wave.wave != self._last_wave + 1:
            raise PeerProtocolError(f"wave {wave.wave} after wave {self._last_wave}: waves come in order, without gaps")
        if len(self._pending) >= self._waves_queued_max:
            raise PeerProtocolError(f"more than {self._waves_queued_max} waves queued: the ring is not kept")
        self._last_wave = wave.wave
        self._pending.append(wave)
        for chunk in wave.chunks:
            # Not only when its job is handed over: from now on nobody but a wave or an epoch may end the grant.
            record = self.grants.get(chunk.grant)
            if record is not None and record.apply(GrantEvent.CHUNK) is GrantAction.COMMIT:
                self.cache.commit(chunk.grant)

    def _hand_over(self, out: list[ev.Instruction]) -> None:
        while self._pending and len(self._running) < JOBS_AHEAD and self._unsent < UNSENT_MAX:
            wave = self._pending.popleft()
            for grant in wave.ended:
                self._end(grant, GrantEvent.END)
            out.append(self._freeze(wave))

    def _freeze(self, wave: ev.WaveArrived) -> ev.RunJob:
        dropped = {f.grant for f in wave.failed}
        for grant in dropped:
            record = self.grants.get(grant)
            if record is not None and not record.failure:
                record.failure = "failed on an earlier stage"
        failed: list[FailedGrant] = list(wave.failed)
        good: list[FrameChunk] = []
        jobs: list[ev.PlacedChunk] = []
        row = 0
        for chunk in wave.chunks:
            if chunk.grant in dropped:
                continue
            reason = self._mismatch(chunk)
            if reason:
                failed.append(FailedGrant(chunk.grant, self._stage, reason))
            else:
                jobs.append(self._job_chunk(chunk, row))
                good.append(chunk)
            row += chunk.length
        self._running.append(_Running(wave, tuple(good), failed))
        return ev.RunJob(wave.epoch, wave.wave, tuple(jobs), wave.payload)

    def _mismatch(self, chunk: FrameChunk) -> str:
        record = self.grants.get(chunk.grant)
        if record is None:
            return "grant ended" if self.grants.ended(chunk.grant) else "grant unknown"
        if record.failure:
            return record.failure
        end = chunk.start + chunk.length
        if chunk.start != record.position:
            reason = f"chunk starts at {chunk.start}, this stage is at {record.position}"
        elif end > record.total_tokens:
            reason = f"chunk ends at {end}, {record.total_tokens} tokens are reserved"
        elif end > record.prompt_tokens and not chunk.decode:
            reason = f"chunk ends at {end}, the prompt at {record.prompt_tokens}"
        elif chunk.snapshot and end % self.cache.shape.alignment_tokens:
            reason = f"snapshot after {end} tokens, no multiple of {self.cache.shape.alignment_tokens}"
        else:
            return ""
        record.failure = reason
        return reason

    def _job_chunk(self, chunk: FrameChunk, row: int) -> ev.PlacedChunk:
        record = self.grants.get(chunk.grant)
        if record is None:
            raise InvariantError(f"chunk of grant {chunk.grant} passed its checks, but the grant is gone")
        recurrent = self.cache.shape.recurrent
        first = chunk.start == record.endpoint_tokens
        end = chunk.start + chunk.length
        table = self.cache.materialise(chunk.grant, end)
        record.position = end
        return ev.PlacedChunk(
            grant=chunk.grant,
            start=chunk.start,
            length=chunk.length,
            table=table,
            row=row,
            sample=chunk.last and self._last,
            restore_slot=self.cache.restore_slot(chunk.grant) if recurrent and first else None,
            state_slot=self.cache.state_slot(chunk.grant) if recurrent else None,
            snapshot_slot=self.cache.materialise_snapshot(chunk.grant, end) if recurrent and chunk.snapshot else None,
            context=record.context,
        )

    def _job_done(self, done: ev.JobDone, out: list[ev.Instruction]) -> None:
        if not self._running or self._running[0].wave.wave != done.wave:
            raise InvariantError(f"job of wave {done.wave} is done, but another one was running")
        running = self._running.popleft()
        wave = running.wave
        bad = dict(done.failed)
        for chunk in running.good:
            if chunk.grant in bad:
                running.failed.append(FailedGrant(chunk.grant, self._stage, bad[chunk.grant]))
                self._fail(chunk.grant, bad[chunk.grant])
            else:
                self._publish(chunk)
        self.waves_done += 1
        if wave.epoch != self.epoch or self._silenced:
            return
        survivors = tuple(c for c in running.good if c.grant not in bad)
        steps = (*wave.steps, done.step)
        failed = tuple(running.failed)
        if self._first or (self._report_steps and not self._last):
            out.append(ev.ReportStep(wave.epoch, wave.wave, done.step))
        if self._last:
            out.append(ev.ReportWave(wave.epoch, wave.wave, failed, steps, done.samples))
        else:
            self._unsent += 1
            out.append(
                ev.SendWave(wave.epoch, wave.wave, survivors, failed, wave.ended, steps, wave.issued_ns, done.output)
            )

    def _fail(self, grant: GrantId, reason: str) -> None:
        record = self.grants.get(grant)
        if record is not None and not record.failure:
            record.failure = reason

    def _publish(self, chunk: FrameChunk) -> None:
        """Publish what the chunk filled. Nothing is published for a grant that ended or failed meanwhile."""
        record = self.grants.get(chunk.grant)
        if record is None or record.failure:
            return
        end = chunk.start + chunk.length
        first, last = record.published_tokens // self._block_tokens, end // self._block_tokens
        if last > first:
            keys = record.keys_between(first, last, chunk.keys)
            if len(keys) // KEY_BYTES != last - first:
                record.failure = (
                    f"{len(keys) // KEY_BYTES} keys came for the {last - first} blocks that end at token {end}"
                )
                return
            self.cache.publish(chunk.grant, last * self._block_tokens, keys, first)
            record.published_tokens = last * self._block_tokens
        if chunk.snapshot and self.cache.shape.recurrent:
            self.cache.publish_snapshot(chunk.grant, end)

    # ---- after every event ----

    def _settle(self, out: list[ev.Instruction]) -> None:
        if self._epoch_unacked and self._links_ready and not any(r.wave.epoch < self.epoch for r in self._running):
            self._epoch_unacked = False
            out.append(ev.AckEpoch(self.epoch))
        room = self._room_reports.after_event(self.cache.room())
        if room is not None:
            out.append(ev.ReportRoom(room))

    def validate(self) -> None:
        """Check the cache's invariants and that every lease belongs to a live grant, and the reverse."""
        self.cache.validate()
        live = {r.grant for r in self.grants.live()}
        held = set(self.cache.grants())
        if live != held:
            raise InvariantError(f"grants {sorted(live ^ held)} are live or hold something, but not both")
        if len(self._running) > JOBS_AHEAD:
            raise InvariantError(f"{len(self._running)} jobs are with the executor")
        for record in self.grants.live():
            if not record.endpoint_tokens <= record.position <= record.total_tokens:
                raise InvariantError(f"grant {record.grant} is at {record.position} of {record.total_tokens}")
