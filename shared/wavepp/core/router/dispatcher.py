"""What the router decides: whom to admit, which waves to issue, what to answer.

Pure: `handle(event, now_ms)` returns instructions. The dispatcher owns every request from the door to its last token;
the directory decides about room, the stages only execute. After anything broke, what runs goes back to its place in
the queue and is asked for again under a new grant id: an old message can then do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wavepp.core.directory.events import Granted, NeverFits, Verdict, Void, VoidReason, Wait, WaitFor
from wavepp.core.errors import InvariantError, WaveppError
from wavepp.core.ids import GrantId, PipelineEpoch, RequestId, StageIndex, WaveId
from wavepp.core.limits import ROUND_ATTEMPTS_MAX, TOKEN_BYTES
from wavepp.core.router import events as ev
from wavepp.core.router.admission_queue import AdmissionQueue
from wavepp.core.router.asked_batches import AskedBatches
from wavepp.core.router.charges import Charges
from wavepp.core.router.requests import (
    Failure,
    FailureKind,
    NewRequest,
    RequestEvent,
    RequestRecord,
    RequestState,
    Times,
)
from wavepp.core.router.waves_in_flight import IssuedWave, WavesInFlight
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.types import ChosenToken, Chunk, FitReport

DIRECTORY_RETRY_MS: Final = 250

UNANSWERED_REST_MAX_MS: Final = 4000
UNANSWERED_ALONE_MAX: Final = 5
"""So often a stage may fail to answer for a request that was asked for alone before it is the request's fault."""

BREAKS_PER_ATTEMPT: Final = 4
"""Breaks in which no stage died say less about a request: so many count as one attempt."""


class DuplicateRequestError(WaveppError):
    """The id is in flight."""


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """`running_max`: grants at once. `attempts_max`: how often a stage may die of what may have been a request before
    that fails."""

    queue_requests_max: int
    queue_tokens_max: int
    queue_retry_after_ms: int
    running_max: int
    attempts_max: int


class Dispatcher:
    """The state of one router for one pipeline. Owned by one thread."""

    def __init__(self, *, limits: DispatchLimits, planner: WavePlanner, block_tokens: int) -> None:
        self.epoch = PipelineEpoch(0)
        self.waves_done = 0
        self.requests_done = 0
        self.requests_failed = 0
        self._limits = limits
        self._planner = planner
        self._block_tokens = block_tokens
        self._queue = AdmissionQueue(
            requests_max=limits.queue_requests_max,
            tokens_max=limits.queue_tokens_max,
            retry_after_ms=limits.queue_retry_after_ms,
        )
        self._requests: dict[RequestId, RequestRecord] = {}
        self._by_grant: dict[GrantId, RequestRecord] = {}
        self._asked = AskedBatches()
        self._waves = WavesInFlight()
        self._charges = Charges(limits.attempts_max)
        self._alone: RequestRecord | None = None
        self._ending: set[GrantId] = set()
        self._ready = False
        self._directory_ready = False
        self._draining = 0
        self._drained_told = False
        self._retry_pending = False
        self._arrivals = 0
        self._wave = 0

    # ---- views ----

    @property
    def queued(self) -> int:
        """Requests that wait for a grant and are not being asked for."""
        return len(self._queue)

    @property
    def admitting(self) -> int:
        """Requests that the directory decides about."""
        return len(self._asked)

    @property
    def running(self) -> int:
        """Requests that hold a grant."""
        return len(self._by_grant)

    @property
    def waiting_requests(self) -> int:
        """Granted requests with prefill tokens that are in no wave yet."""
        return self._planner.waiting_requests

    @property
    def waiting_tokens(self) -> int:
        """Prefill tokens of granted requests that are in no wave yet."""
        return self._planner.waiting_tokens

    @property
    def waves_in_flight(self) -> int:
        """Waves issued and not done."""
        return len(self._waves)

    @property
    def idle(self) -> bool:
        """No request and no end of a grant is under way."""
        return not self._requests and not self._waves and not self._planner.has_work() and not self._ending

    def cost_reports(self) -> list[FitReport]:
        """What the wave policy has learned of every stage's steps."""
        return self._planner.cost_reports()

    def live_grants(self) -> frozenset[GrantId]:
        """Granted, and not known to have ended on every stage."""
        return frozenset(self._by_grant) | frozenset(self._ending)

    def request_of(self, grant: GrantId) -> RequestId | None:
        """The request that asks for, or runs under, this grant."""
        record = self._by_grant.get(grant) or self._asked.request_of(grant)
        return record.request if record else None

    def check(self, request: RequestId, prompt_tokens: int) -> None:
        """Raises DuplicateRequestError or QueueFullError when a new request cannot be taken now."""
        if request in self._requests:
            raise DuplicateRequestError(f"request id {request!r} is in flight; wait for it or choose another id")
        self._queue.check_room(prompt_tokens)

    # ---- events ----

    def handle(self, event: ev.Event, now_ms: float) -> list[ev.Instruction]:
        """Apply one event. `Submit` raises what `check` raises."""
        out: list[ev.Instruction] = []
        match event:
            case ev.Submit():
                self._submit(event.new, now_ms)
            case ev.Stop():
                self._stop(event, out)
            case ev.Decided():
                self._decided(event, now_ms, out)
            case ev.DirectoryChanged():
                self._directory_changed(event)
            case ev.RetryDue():
                self._retry_pending = False
                self._queue.unblock()
            case ev.RoomChanged():
                self._queue.room(event.stage, event.room)
            case ev.StepDone():
                if event.epoch == self.epoch:
                    self._waves.step_done(event.stage, event.wave)
            case ev.WaveDone():
                self._wave_done(event, now_ms, out)
            case ev.StagesDraining():
                self._draining, self._drained_told = event.stages, False
            case ev.PipelineBroken():
                self._broken(event.reason, out)
            case ev.PipelineReady():
                self._charge(event.died, out)
                self.epoch, self._ready = event.epoch, True
                self._asked.new_epoch(event.epoch)
                self._queue.forget_rooms()
        if self._queue.any_resting:
            self._queue.wake(now_ms)
        self._admit(now_ms, out)
        self._retry_later(out)
        self._issue(out)
        self._tell_drained(out)
        return out

    def _submit(self, new: NewRequest, now_ms: float) -> None:
        self.check(new.request, len(new.prompt) // TOKEN_BYTES)
        self._arrivals += 1
        record = RequestRecord(new, self._arrivals, Times(now_ms), tokens=bytearray(new.prompt))
        record.keys = bytearray(new.keys)
        if new.generated:
            for chosen in new.generated:
                record.add_output(chosen)
            record.extend_keys(self._block_tokens)
        self._requests[new.request] = record
        self._queue.push(record)

    def _stop(self, event: ev.Stop, out: list[ev.Instruction]) -> None:
        record = self._requests.get(event.request)
        if record is not None:
            self._give_up(record, event.kind, event.message, out)

    def _give_up(self, record: RequestRecord, kind: FailureKind, message: str, out: list[ev.Instruction]) -> None:
        """End a request without its tokens, wherever it is."""
        if record.state is RequestState.QUEUED:
            self._queue.remove(record)
        elif record.state is RequestState.ADMITTING and record.grant is not None:
            # It stays in its batch until the directory has decided; the verdict is then ignored.
            out.append(ev.SendCancel((record.grant,)))
        elif record.state is RequestState.RUNNING and record.grant is not None:
            self._end_grant(record)
        record.apply(RequestEvent.STOPPED)
        self._requests.pop(record.request, None)
        self.requests_failed += 1
        out.append(ev.Fail(Failure(record.request, kind, message)))

    def _end_grant(self, record: RequestRecord) -> None:
        if record.grant is None:
            raise InvariantError(f"request {record.request} runs without a grant")
        self._by_grant.pop(record.grant, None)
        self._ending.add(record.grant)
        self._planner.end(record.grant)

    # ---- admission ----

    def _admit(self, now_ms: float, out: list[ev.Instruction]) -> None:
        if not (self._ready and self._directory_ready) or self._draining:
            return
        records = [] if self._asked.full else self._next_batch()
        if records:
            out.append(self._asked.ask(records, now_ms))

    def _next_batch(self) -> list[RequestRecord]:
        """Whom to ask for now. A suspect only when nothing else runs, and nobody else while it does."""
        if self._suspect_runs:
            return []
        if self._queue.suspect_next:
            if self.running or self.admitting or self._waves.any_with_chunks:
                return []
            taken = self._queue.take_suspect()
            self._alone = taken[0] if taken else None
            return taken
        free = self._limits.running_max - self.running - self.admitting
        return self._queue.take(min(free, ROUND_ATTEMPTS_MAX)) if free > 0 else []

    @property
    def _suspect_runs(self) -> bool:
        alone = self._alone
        return alone is not None and alone.suspect and alone.state in (RequestState.ADMITTING, RequestState.RUNNING)

    def _decided(self, event: ev.Decided, now_ms: float, out: list[ev.Instruction]) -> None:
        refused: list[tuple[RequestRecord, Wait]] = []
        for record, grant, verdict in self._asked.decided(event):
            self._apply_verdict(record, grant, verdict, now_ms, refused, out)
        self._queue.refused(refused)

    def _retry_later(self, out: list[ev.Instruction]) -> None:
        """Nobody says when the directory can decide again, so the head asks again after a while."""
        waiting = self._queue.waiting_for
        waits = waiting is not None and waiting.what is WaitFor.DIRECTORY
        if (waits or self._queue.any_resting) and not self._retry_pending:
            self._retry_pending = True
            out.append(ev.RetryAfter(DIRECTORY_RETRY_MS))

    def _apply_verdict(
        self,
        record: RequestRecord,
        grant: GrantId,
        verdict: Verdict,
        now_ms: float,
        refused: list[tuple[RequestRecord, Wait]],
        out: list[ev.Instruction],
    ) -> None:
        match verdict:
            case Granted():
                record.apply(RequestEvent.GRANTED)
                record.answered()
                if not record.times.first_token:
                    # A later attempt goes on after tokens that the client has: its first token came before this.
                    record.times.granted = now_ms
                record.attempts += 1
                record.endpoint_tokens = verdict.endpoint_tokens
                record.reuse = verdict.reuse
                self._by_grant[grant] = record
                keep_alive = len(record.outputs) + 1 < record.new.output_tokens_max
                self._planner.add(grant, verdict.endpoint_tokens, record.prefill_tokens, keep_alive)
            case Wait():
                record.apply(RequestEvent.REFUSED)
                refused.append((record, verdict))
            case NeverFits():
                message = (
                    f"needs {verdict.needed} of pool {verdict.pool!r} on stage {verdict.stage}, which has "
                    f"{verdict.capacity}; shorten the prompt or the output budget, or give the stages more blocks"
                )
                self._give_up(record, FailureKind.NEVER_FITS, message, out)
            case Void(reason=VoidReason.UNANSWERED, stage=stage):
                record.apply(RequestEvent.REFUSED)
                self._not_answered(record, stage, now_ms, out)
            case Void():
                # Not at once: should it be void again, the two would talk in circles.
                record.apply(RequestEvent.REFUSED)
                refused.append((record, Wait(None, WaitFor.DIRECTORY)))

    def _not_answered(
        self, record: RequestRecord, stage: StageIndex | None, now_ms: float, out: list[ev.Instruction]
    ) -> None:
        """A stage's stream broke, or was silent for too long, while it was asked for this: that may be why."""
        record.not_answered()
        rest_ms = min(DIRECTORY_RETRY_MS << (record.unanswered - 1), UNANSWERED_REST_MAX_MS)
        self._queue.rest(record, now_ms + rest_ms)
        if record.unanswered_alone >= UNANSWERED_ALONE_MAX:
            message = (
                f"stage {stage} did not answer, or broke the directory's stream, each of the {record.unanswered_alone} "
                f"times that it was asked for room for this request alone; look for the reason in what it logged"
            )
            self._give_up(record, FailureKind.INTERNAL, message, out)

    def _directory_changed(self, event: ev.DirectoryChanged) -> None:
        if event.new_stream:
            for record in self._asked.void():
                record.apply(RequestEvent.BROKEN)
                self._queue.push(record)
        self._directory_ready = event.ready
        self._queue.unblock()

    # ---- waves ----

    def _issue(self, out: list[ev.Instruction]) -> None:
        while self._ready:
            waves = self._waves
            planned = self._planner.plan(len(waves), waves.on_stage0, waves.any_of_ends)
            if planned is None:
                return
            self._wave += 1
            wave = WaveId(self._wave)
            waves.issue(wave, IssuedWave(planned.chunks, planned.ended))
            chunks = tuple(self._issued(chunk) for chunk in planned.chunks)
            out.append(ev.IssueWave(wave, self.epoch, chunks, planned.ended))

    def _issued(self, chunk: Chunk) -> ev.IssuedChunk:
        record = self._by_grant[chunk.grant]
        return ev.IssuedChunk(chunk, record.request, *record.issue(chunk, self._block_tokens))

    def _wave_done(self, event: ev.WaveDone, now_ms: float, out: list[ev.Instruction]) -> None:
        wave = self._waves.wave_done(event.wave) if event.epoch == self.epoch else None
        if wave is None:
            return
        self.waves_done += 1
        self._planner.measured(wave.chunks, event.steps)
        for failed in event.failed:
            record = self._by_grant.get(failed.grant)
            if record is not None:
                self._give_up(record, FailureKind.INTERNAL, f"stage {failed.stage}: {failed.reason}", out)
        computed: list[GrantId] = []
        for grant, chosen in event.results:
            record = self._by_grant.get(grant)
            if record is not None:
                if record.prefill_tokens == record.length:
                    computed.append(grant)
                self._token(record, grant, chosen, now_ms, out)
        ended = tuple(g for g in wave.ended if g in self._ending)
        self._ending.difference_update(ended)
        if computed:
            out.append(ev.SendComputed(tuple(computed)))
        if ended:
            out.append(ev.SendEnded(ended))

    def _token(
        self,
        record: RequestRecord,
        grant: GrantId,
        chosen: ChosenToken,
        now_ms: float,
        out: list[ev.Instruction],
    ) -> None:
        record.times.first_token = record.times.first_token or now_ms
        record.add_output(chosen)
        out.append(ev.EmitToken(record.request, len(record.outputs) - 1, chosen))
        reason = record.finish_reason()
        if reason is None:
            self._planner.add_decode(grant, record.length - 1)
            return
        record.apply(RequestEvent.FINISHED)
        record.times.done = now_ms
        self._end_grant(record)
        self._requests.pop(record.request, None)
        self.requests_done += 1
        out.append(ev.Finish(record.outcome(reason)))

    def _tell_drained(self, out: list[ev.Instruction]) -> None:
        """A stage that drains may go once nothing runs; should it go before, what runs is only computed again."""
        if not self._draining or self._drained_told:
            return
        if not (self._by_grant or self._asked or self._ending or self._waves):
            self._drained_told = True
            out.append(ev.Drained())

    # ---- when something broke ----

    def _broken(self, reason: str, out: list[ev.Instruction]) -> None:
        """Everything that runs goes back to its place in the queue; the stages and the directory forget by epoch."""
        self._ready = False
        self._waves.broke()
        self._charges.broke(self._by_grant)
        self._ending.clear()
        self._planner.reset()
        self._asked.void()
        self._by_grant.clear()
        self._queue.forget_rooms()
        for record in list(self._requests.values()):
            if record.state not in (RequestState.ADMITTING, RequestState.RUNNING):
                continue
            record.breaks += record.state is RequestState.RUNNING
            record.apply(RequestEvent.BROKEN)
            record.grant = None
            record.extend_keys(self._block_tokens)
            self._queue.push(record)
            if record.breaks >= BREAKS_PER_ATTEMPT * self._limits.attempts_max:
                message = f"the pipeline broke {record.breaks} times without a token of it, the limit; last: {reason}"
                self._give_up(record, FailureKind.PIPELINE, message, out)

    def _charge(self, died: frozenset[StageIndex], out: list[ev.Instruction]) -> None:
        """Stages died: charge what they can have died of. A suspect ran alone, so one that is charged is convicted."""
        for record, stage in self._charges.take(died, self._waves):
            convicted = record.suspect
            self._queue.remove(record)
            record.charge()
            self._queue.push(record)
            if convicted:
                self._queue.let_others_first(self._arrivals)
            failure = self._charges.failure(record, stage, convicted=convicted)
            if failure is not None:
                self._give_up(record, failure.kind, failure.message, out)

    def validate(self) -> None:
        """Check what must hold between events."""
        self._planner.validate()
        for grant, record in self._by_grant.items():
            if record.grant != grant or record.state is not RequestState.RUNNING:
                raise InvariantError(f"grant {grant} belongs to a request in state {record.state}")
        self._asked.validate()
        running = {r.grant for r in self._requests.values() if r.state is RequestState.RUNNING}
        if running != set(self._by_grant):
            raise InvariantError("running requests and their grants differ")
        if self._suspect_runs and self.running + self.admitting > 1:
            raise InvariantError(f"a suspect runs beside {self.running + self.admitting - 1} others")
        queued = sum(1 for r in self._requests.values() if r.state is RequestState.QUEUED)
        if queued != len(self._queue):
            raise InvariantError(f"{queued} requests are queued, the queue holds {len(self._queue)}")
