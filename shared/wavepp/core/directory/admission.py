"""The directory's admission: one round asks every stage, agrees on an endpoint, and grants on all stages or on none.

A refusal is decided as soon as every stage has answered the round; what was prepared for it elsewhere is aborted. A
grant is decided when, in addition, the ledger holds the round's record. Nothing is committed here: the first chunk does
that on each stage, so a wave can never come too early.

Rounds of one router never overlap but for the wait for the ledger: the router sends the next batch when the one before
is answered. That keeps first come, first served across batches.
"""

from __future__ import annotations

from wavepp.core.cache.types import NeedKeys, Prepared
from wavepp.core.directory.attempts import AttemptEvent, AttemptRecord
from wavepp.core.directory.events import (
    Admit,
    AskDump,
    CacheChanged,
    CacheDumped,
    CancelAttempts,
    Decide,
    Decision,
    EpochMoved,
    Event,
    GrantsComputed,
    GrantsEnded,
    Instruction,
    LedgerLoaded,
    RecordWritten,
    RemakeStream,
    RoundTimedOut,
    RouterConnected,
    SendAbort,
    SendPrepare,
    StageAnswered,
    StageConnected,
    StageDisconnected,
    Verdict,
    Void,
    VoidReason,
    Wait,
    WaitFor,
)
from wavepp.core.directory.hint_sync import HintSync
from wavepp.core.directory.hints import HintIndex
from wavepp.core.directory.ledger import Ledger
from wavepp.core.directory.reuse_endpoint import endpoint_max
from wavepp.core.directory.rounds import Round
from wavepp.core.errors import PeerProtocolError
from wavepp.core.ids import DirectoryEpoch, GrantId, PipelineEpoch, RoundId, StageIndex
from wavepp.core.stage.events import PrepareGrant, RefusalReason, Refused


class Admission:
    """Admission for one pipeline. Owned by one thread; never awaits, never reads a clock.

    `recurrent`: for every stage whether it has recurrent layers (its endpoints are its snapshots then).
    """

    def __init__(
        self,
        *,
        directory_epoch: DirectoryEpoch,
        recurrent: tuple[bool, ...],
        block_tokens: int,
        alignment_tokens: int,
    ) -> None:
        self.epoch = PipelineEpoch(0)
        self.rounds_done = 0
        self._stages = tuple(StageIndex(i) for i in range(len(recurrent)))
        self._recurrent = recurrent
        self._block_tokens = block_tokens
        self._stage_alignment_tokens = self._alignment_tokens = alignment_tokens
        self.hints = HintIndex(len(recurrent), sum(1 << i for i, r in enumerate(recurrent) if r))
        self._sync = HintSync(self.hints, len(recurrent))
        self._ledger = Ledger(directory_epoch)
        self._rounds: dict[RoundId, Round] = {}
        self._round_of: dict[GrantId, RoundId] = {}
        self._keys: dict[GrantId, bytes] = {}
        self._connected: set[StageIndex] = set()
        self._last_round = 0

    @property
    def rounds_in_flight(self) -> int:
        """Rounds of which an attempt is undecided, or the ledger's write is outstanding."""
        return len(self._rounds)

    @property
    def rounds(self) -> tuple[RoundId, ...]:
        """Those in flight."""
        return tuple(self._rounds)

    @property
    def grants(self) -> frozenset[GrantId]:
        """Granted, and not ended as far as the router has said.

        Just these a stage must keep when it (re)connects: attempts under way were aborted when it went.
        """
        return self._ledger.grants

    def connected(self, stage: StageIndex) -> bool:
        """Whether this stage's rounds stream is up."""
        return stage in self._connected

    def in_sync(self, stage: StageIndex) -> bool:
        """Whether the hints of `stage` are complete; until then it counts as holding everything."""
        return self._sync.in_sync(stage)

    def handle(self, event: Event) -> list[Instruction]:
        """Apply one event."""
        out: list[Instruction] = []
        match event:
            case Admit():
                self._admit(event, out)
            case StageAnswered():
                self._answered(event, out)
            case RecordWritten():
                self._recorded(event, out)
            case RoundTimedOut():
                self._timed_out(event.round, out)
            case CancelAttempts():
                self._cancel(event.grants, out)
            case GrantsComputed():
                for grant in event.grants:
                    self._sync.computed(self._keys.get(grant, b""), self._alignment_tokens // self._block_tokens)
            case GrantsEnded():
                self._ended(event.grants, out)
            case EpochMoved():
                self._move_epoch(event.epoch, out)
            case RouterConnected():
                self._router_connected(event, out)
            case LedgerLoaded():
                self._ledger.load(event.records)
            case StageConnected():
                self._stage_connected(event, out)
            case StageDisconnected():
                self._stage_disconnected(event.stage, out)
            case CacheChanged():
                if self._sync.changed(event):
                    out.append(AskDump(event.stage))
            case CacheDumped():
                self._sync.dumped(event)
        return out

    # ---- a round begins ----

    def _admit(self, event: Admit, out: list[Instruction]) -> None:
        verdict = self._verdict_at_once(event.epoch)
        if verdict is not None:
            out.append(Decide(event.batch, tuple((a.grant, verdict) for a in event.attempts), True))
            return
        asked = [attempt.grant for attempt in event.attempts]
        known = self._keys.keys() & set(asked)
        if known or len(set(asked)) < len(asked):
            # Before anything of the batch is noted: the stream ends here, the directory goes on.
            raise PeerProtocolError(f"grants are admitted twice, among {asked[:8]}")
        self._last_round += 1
        current = Round(RoundId(self._last_round), event.batch, event.epoch)
        for attempt in event.attempts:
            highest = endpoint_max(attempt.prompt_tokens, self._alignment_tokens)
            hint = self.hints.probe(attempt.keys, self._block_tokens, self._alignment_tokens, highest)
            current.attempts[attempt.grant] = AttemptRecord(attempt, hint, set(self._stages))
            self._round_of[attempt.grant] = current.round
            self._keys[attempt.grant] = attempt.keys
        self._rounds[current.round] = current
        records = current.attempts.values()
        for stage in self._stages:
            grants = tuple(self._question(record, stage) for record in records)
            out.append(SendPrepare(stage, current.round, current.epoch, grants))
        entries = tuple((r.grant, r.hint.endpoint_tokens, r.attempt.total_tokens) for r in records)
        out.append(self._ledger.open(current.round, current.epoch, entries))

    def _verdict_at_once(self, epoch: PipelineEpoch) -> Verdict | None:
        """Why no stage can be asked, if so."""
        if epoch != self.epoch:
            return Void(VoidReason.EPOCH)
        missing = next((s for s in self._stages if s not in self._connected), None)
        return None if missing is None else Wait(missing, WaitFor.DIRECTORY)

    def _question(self, record: AttemptRecord, stage: StageIndex, *, with_all_keys: bool = False) -> PrepareGrant:
        # A stage that may hold nothing of it gets all keys at once: it would have to ask for them.
        all_keys = with_all_keys or not self.in_sync(stage)
        return record.question(0 if all_keys else record.hint.endpoint_tokens // self._block_tokens)

    # ---- answers ----

    def _answered(self, event: StageAnswered, out: list[Instruction]) -> None:
        current = self._rounds.get(event.round)
        late: list[GrantId] = []
        ask_again: list[PrepareGrant] = []
        for grant, answer, room_number in event.answers:
            record = current.attempts.get(grant) if current is not None else None
            if record is None or record.decided:
                if isinstance(answer, Prepared) and grant not in self._ledger:
                    late.append(grant)
                continue
            if isinstance(answer, NeedKeys) or (ask_again and answer == Refused(RefusalReason.ORDER)):
                ask_again.append(self._question(record, event.stage, with_all_keys=True))
                continue
            record.answered(event.stage, answer, room_number, lowered=event.lowered)
            if isinstance(answer, Prepared) and not event.lowered:
                self._correct_hint(record, event.stage, answer)
        if late:
            out.append(SendAbort(event.stage, tuple(late)))
        if current is None:
            return
        if ask_again:
            out.append(SendPrepare(event.stage, current.round, current.epoch, tuple(ask_again)))
        refused, lower = current.compare(self._recurrent, self._alignment_tokens)
        out.extend(lower)
        self._end(current, refused, AttemptEvent.REFUSED, out)
        self._conclude(current, refused, out)

    def _correct_hint(self, record: AttemptRecord, stage: StageIndex, offer: Prepared) -> None:
        held, hinted = offer.endpoint_tokens // self._block_tokens, record.hint.endpoint_tokens // self._block_tokens
        # A stage with recurrent layers may well have the blocks and lack the snapshots.
        self._sync.offered(stage, record.attempt.keys, held, hinted, snapshots_only=self._recurrent[stage])

    # ---- decisions ----

    def _end(self, current: Round, ended: list[Decision], event: AttemptEvent, out: list[Instruction]) -> None:
        """Take attempts out of the round: abort them where they may be prepared, mend the record."""
        grants = tuple(grant for grant, _ in ended)
        out.extend(current.end(grants, event, sorted(self._connected)))
        for grant in grants:
            self._forget(grant)
        out.extend(self._ledger.remove(grants))

    def _conclude(self, current: Round, ended: list[Decision], out: list[Instruction]) -> None:
        """Grant what can be granted now, and report it with those that ended."""
        granted = current.grant()
        for grant, _ in granted:
            self._round_of.pop(grant, None)
        self._ledger.granted(tuple(grant for grant, _ in granted))
        out.extend(current.decide([*ended, *granted]))
        if current.over:
            self._rounds.pop(current.round, None)
            self.rounds_done += 1

    def _recorded(self, event: RecordWritten, out: list[Instruction]) -> None:
        current = self._rounds.get(event.round)
        if current is None:
            out.extend(self._ledger.written(event.round))
            return
        ended = [] if event.ok else current.undecided(Wait(None, WaitFor.DIRECTORY))
        self._end(current, ended, AttemptEvent.BROKEN, out)
        out.extend(self._ledger.written(event.round))
        current.recorded = True
        self._conclude(current, ended, out)

    def _forget(self, grant: GrantId) -> None:
        self._round_of.pop(grant, None)
        self._keys.pop(grant, None)

    # ---- what the router says ----

    def _cancel(self, grants: tuple[GrantId, ...], out: list[Instruction]) -> None:
        granted = tuple(grant for grant in grants if grant in self._ledger)
        by_round: dict[RoundId, list[Decision]] = {}
        for grant in grants:
            round_id = self._round_of.pop(grant, None)
            if round_id is not None:
                by_round.setdefault(round_id, []).append((grant, Void(VoidReason.CANCELLED)))
        for round_id, cancelled in by_round.items():
            current = self._rounds[round_id]
            self._end(current, cancelled, AttemptEvent.CANCELLED, out)
            self._conclude(current, cancelled, out)
        if granted:
            self._drop(granted, out)

    def _drop(self, grants: tuple[GrantId, ...], out: list[Instruction]) -> None:
        """End grants that no wave has named."""
        out.extend(SendAbort(stage, grants) for stage in sorted(self._connected))
        self._ended(grants, out)

    def _ended(self, grants: tuple[GrantId, ...], out: list[Instruction]) -> None:
        for grant in grants:
            self._forget(grant)
        out.extend(self._ledger.remove(grants))

    def _move_epoch(self, epoch: PipelineEpoch, out: list[Instruction]) -> None:
        """The stages have ended these grants themselves: forget them, without a word to the router."""
        if epoch <= self.epoch:
            return
        self.epoch = epoch
        self._rounds.clear()
        self._round_of.clear()
        self._keys.clear()
        out.extend(self._ledger.fence(epoch))

    def _router_connected(self, event: RouterConnected, out: list[Instruction]) -> None:
        self._alignment_tokens = event.alignment_tokens or self._stage_alignment_tokens
        self._move_epoch(event.epoch, out)
        # Attempts that the router waited for on an earlier stream are void for it: it asks again under new ids.
        for current in self._rounds.values():
            self._end(current, current.undecided(Void(VoidReason.STREAM)), AttemptEvent.BROKEN, out)
        self._rounds.clear()
        stale = tuple(self._ledger.grants - event.live)
        if stale:
            self._drop(stale, out)
        out.extend(self._ledger.writer_changed())
        self._ledger.adopt(event.live)

    # ---- what the streams say ----

    def _stage_connected(self, event: StageConnected, out: list[Instruction]) -> None:
        self._connected.add(event.stage)
        # These ended while the stream was being opened, and the stage does not know.
        ended = tuple(event.known - self._ledger.grants)
        if ended:
            out.append(SendAbort(event.stage, ended))
        if self._sync.connected(event.stage, event.incarnation, event.next_change):
            out.append(AskDump(event.stage))

    def _timed_out(self, round_id: RoundId, out: list[Instruction]) -> None:
        current = self._rounds.get(round_id)
        for stage in current.silent if current is not None else ():
            # What it may have prepared it ends when the stream is made again.
            out.append(RemakeStream(stage))
            self._stage_disconnected(stage, out)

    def _stage_disconnected(self, stage: StageIndex, out: list[Instruction]) -> None:
        """Attempts that wait for this stage's answer are void; grants live on: the epoch decides about them."""
        self._connected.discard(stage)
        self._sync.disconnected(stage)
        for current in list(self._rounds.values()):
            ended = current.without(stage)
            self._end(current, ended, AttemptEvent.BROKEN, out)
            self._conclude(current, ended, out)
