"""The directory's admission: one round asks every stage, agrees on an endpoint, and grants on all stages or on none.

    PREPARING --all answered, endpoints differ--> LOWERING --all answered--> READY --record written--> TOLD (granted)
        \\______________ refused by a stage, cancelled, stage or ledger lost ______________/-----------> TOLD (refused)

A refusal is told as soon as every stage has answered the round; what was prepared for it elsewhere is aborted. A grant
is told when, in addition, the ledger holds the round's record. Nothing is committed here: the first chunk does that on
each stage, so a wave can never come too early.

Rounds of one router never overlap but for the wait for the ledger: the router sends the next batch when the one before
is answered. That keeps first come, first served across batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from wavepp.core.cache.types import Missing, NeedKeys, Never, Prepared
from wavepp.core.directory.endpoint import StageOffer, agree, endpoint_max, explain
from wavepp.core.directory.events import (
    Admit,
    AskDump,
    Attempt,
    CacheChanged,
    CacheDumped,
    CancelAttempts,
    Decide,
    EpochMoved,
    Event,
    Granted,
    GrantsComputed,
    GrantsEnded,
    Instruction,
    LedgerLoaded,
    NeverFits,
    RecordWritten,
    RouterConnected,
    SendAbort,
    SendLower,
    SendPrepare,
    StageAnswered,
    StageConnected,
    StageDisconnected,
    Verdict,
    Void,
    Wait,
)
from wavepp.core.directory.hint_sync import HintSync
from wavepp.core.directory.hints import HintIndex, ReuseHint
from wavepp.core.directory.ledger import Ledger
from wavepp.core.errors import InvariantError, PeerProtocolError
from wavepp.core.ids import DirectoryEpoch, GrantId, PipelineEpoch, RoundId, StageIndex
from wavepp.core.keys import key_at
from wavepp.core.limits import KEY_BYTES
from wavepp.core.stage.events import Answer, PrepareGrant, Refused


class Phase(Enum):
    """Where an attempt is in its round."""

    PREPARING = "preparing"
    LOWERING = "lowering"
    READY = "ready"
    TOLD = "told"


@dataclass(slots=True)
class _Asked:
    """One attempt in its round."""

    attempt: Attempt
    hint: ReuseHint
    phase: Phase = Phase.PREPARING
    answers: dict[StageIndex, tuple[Answer, int]] = field(default_factory=dict)
    waiting_for: set[StageIndex] = field(default_factory=set)
    not_held_by: set[StageIndex] = field(default_factory=set)
    """Stages that refused the Prepare. A stage that could not step down still holds what it prepared."""
    limiting_stage: StageIndex | None = None
    granted: Granted | None = None


@dataclass(slots=True)
class _Round:
    round: RoundId
    batch: int
    epoch: PipelineEpoch
    asked: dict[GrantId, _Asked]
    answered: bool = False
    recorded: bool = False


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
        self._rounds: dict[RoundId, _Round] = {}
        self._round_of: dict[GrantId, RoundId] = {}
        self._keys: dict[GrantId, bytes] = {}
        self._connected: set[StageIndex] = set()
        self._last_round = 0

    @property
    def rounds_in_flight(self) -> int:
        """Rounds that are not told in full."""
        return len(self._rounds)

    @property
    def grants(self) -> frozenset[GrantId]:
        """Granted, and not ended as far as the router has said.

        Just these a stage must keep when it (re)connects: attempts under way were aborted when it went.
        """
        return self._ledger.grants

    @property
    def stages_connected(self) -> bool:
        """Whether every stage's rounds stream is up."""
        return len(self._connected) == len(self._stages)

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
            case CancelAttempts():
                self._cancel(event.grants, out)
            case GrantsComputed():
                for grant in event.grants:
                    self._computed(grant)
            case GrantsEnded():
                self._ended(event.grants, out)
            case EpochMoved():
                self._move_epoch(event.epoch, out)
            case RouterConnected():
                self._router_connected(event, out)
            case LedgerLoaded():
                self._ledger.load(event.records)
            case StageConnected():
                self._connected.add(event.stage)
                # What fell away while the stream was being opened: nobody has told the stage yet.
                gone = tuple(event.told - self._ledger.grants)
                if gone:
                    out.append(SendAbort(event.stage, gone))
                if self._sync.connected(event.stage, event.incarnation, event.next_change):
                    out.append(AskDump(event.stage))
            case StageDisconnected():
                self._stage_lost(event.stage, out)
            case CacheChanged():
                if self._sync.changed(event):
                    out.append(AskDump(event.stage))
            case CacheDumped():
                self._sync.dumped(event)
        return out

    # ---- a round begins ----

    def _admit(self, event: Admit, out: list[Instruction]) -> None:
        if event.epoch != self.epoch:
            out.append(Decide(event.batch, tuple((a.grant, Void("epoch")) for a in event.attempts), True))
            return
        if not self.stages_connected:
            away = next(s for s in self._stages if s not in self._connected)
            told = tuple((a.grant, Wait(away, "directory")) for a in event.attempts)
            out.append(Decide(event.batch, told, True))
            return
        self._last_round += 1
        current = _Round(RoundId(self._last_round), event.batch, event.epoch, {})
        for attempt in event.attempts:
            if attempt.grant in self._round_of or attempt.grant in self._keys:
                raise PeerProtocolError(f"grant {attempt.grant} is admitted twice")
            highest = endpoint_max(attempt.prompt_tokens, self._alignment_tokens)
            hint = self.hints.probe(attempt.keys, self._block_tokens, self._alignment_tokens, highest)
            asked = _Asked(attempt, hint, waiting_for=set(self._stages))
            current.asked[attempt.grant] = asked
            self._round_of[attempt.grant] = current.round
            self._keys[attempt.grant] = attempt.keys
        self._rounds[current.round] = current
        for stage in self._stages:
            grants = tuple(self._question(a, stage, with_all_keys=False) for a in current.asked.values())
            out.append(SendPrepare(stage, current.round, current.epoch, grants))
        entries = tuple(
            (a.attempt.grant, a.hint.endpoint_tokens, a.attempt.total_tokens) for a in current.asked.values()
        )
        out.append(self._ledger.open(current.round, current.epoch, entries))

    def _question(self, asked: _Asked, stage: StageIndex, *, with_all_keys: bool) -> PrepareGrant:
        attempt, endpoint = asked.attempt, asked.hint.endpoint_tokens
        # A stage that may hold nothing of it gets all keys at once: it would have to ask for them.
        first_block = 0 if with_all_keys or not self.in_sync(stage) else endpoint // self._block_tokens
        return PrepareGrant(
            grant=attempt.grant,
            endpoint_tokens=endpoint,
            prompt_tokens=attempt.prompt_tokens,
            total_tokens=attempt.total_tokens,
            first_block=first_block,
            keys=attempt.keys[first_block * KEY_BYTES :],
            key_before=key_at(attempt.keys, first_block - 1) if first_block else b"",
            context=attempt.context,
        )

    # ---- answers ----

    def _answered(self, event: StageAnswered, out: list[Instruction]) -> None:
        current = self._rounds.get(event.round)
        if current is None:
            self._abort_late(event, out)
            return
        late: list[GrantId] = []
        ask_again: list[PrepareGrant] = []
        for grant, answer, room_number in event.answers:
            asked = current.asked.get(grant)
            if asked is None or asked.phase is Phase.TOLD:
                if isinstance(answer, Prepared):
                    late.append(grant)
                continue
            if isinstance(answer, NeedKeys) or (ask_again and answer == Refused("order")):
                ask_again.append(self._question(asked, event.stage, with_all_keys=True))
                continue
            asked.answers[event.stage] = (answer, room_number)
            if not event.lowered and not isinstance(answer, Prepared):
                asked.not_held_by.add(event.stage)
            asked.waiting_for.discard(event.stage)
            if isinstance(answer, Prepared) and not event.lowered:
                self._learn(asked, event.stage, answer)
        if late:
            out.append(SendAbort(event.stage, tuple(late)))
        if ask_again:
            out.append(SendPrepare(event.stage, current.round, current.epoch, tuple(ask_again)))
        self._advance(current, out)

    def _learn(self, asked: _Asked, stage: StageIndex, offer: Prepared) -> None:
        """Where the hint promised more than the stage holds, forget it: or later requests pay the same detour."""
        held = offer.endpoint_tokens // self._block_tokens
        wanted = asked.hint.endpoint_tokens // self._block_tokens
        if held < wanted:
            keys = asked.attempt.keys[held * KEY_BYTES : wanted * KEY_BYTES]
            # A stage with recurrent layers may well have the blocks and lack the snapshots.
            self.hints.clear_above(stage, keys, 0, snapshots_only=self._recurrent[stage])

    def _computed(self, grant: GrantId) -> None:
        """Every stage has the blocks, and the snapshot that is taken at the prompt's last aligned place."""
        keys = self._keys.get(grant, b"")
        aligned = self._alignment_tokens // self._block_tokens
        last = len(keys) // KEY_BYTES // aligned * aligned
        self.hints.mark_held(keys, key_at(keys, last - 1) if last else b"")

    def _abort_late(self, event: StageAnswered, out: list[Instruction]) -> None:
        prepared = tuple(g for g, answer, _ in event.answers if isinstance(answer, Prepared))
        # A granted one of an earlier round is not late; the round is gone because all of it was told.
        void = tuple(g for g in prepared if g not in self._ledger.grants)
        if void:
            out.append(SendAbort(event.stage, void))

    def _advance(self, current: _Round, out: list[Instruction]) -> None:
        """Move every attempt whose answers are complete; tell what can be told."""
        lower: dict[StageIndex, list[tuple[GrantId, int]]] = {}
        told: list[tuple[GrantId, Verdict]] = []
        for asked in current.asked.values():
            if asked.phase not in (Phase.PREPARING, Phase.LOWERING) or asked.waiting_for:
                continue
            verdict = self._refusal(asked)
            if verdict is not None:
                told.append((asked.attempt.grant, verdict))
                continue
            self._agree(asked, lower)
        for stage, grants in lower.items():
            out.append(SendLower(stage, current.round, tuple(grants)))
        self._void(current, told, out)
        self._conclude(current, told, out)

    def _agree(self, asked: _Asked, lower: dict[StageIndex, list[tuple[GrantId, int]]]) -> None:
        offers = []
        for stage in self._stages:
            answer, _ = asked.answers[stage]
            if not isinstance(answer, Prepared):
                raise InvariantError(f"stage {stage} refused grant {asked.attempt.grant}, yet endpoints are compared")
            offers.append(StageOffer(stage, answer.endpoint_tokens, answer.snapshots, self._recurrent[stage]))
        agreement = agree(offers, self._alignment_tokens)
        if asked.limiting_stage is None:
            # Once the others have stepped down nobody limits any more, yet that is what the user wants to know.
            asked.limiting_stage = agreement.limiting_stage
        if agreement.lower:
            asked.phase = Phase.LOWERING
            asked.waiting_for = set(agreement.lower)
            for stage in agreement.lower:
                lower.setdefault(stage, []).append((asked.attempt.grant, agreement.endpoint_tokens))
            return
        asked.phase = Phase.READY
        agreement = replace(agreement, limiting_stage=asked.limiting_stage)
        reuse = explain(asked.hint, agreement, asked.attempt.prompt_tokens)
        asked.granted = Granted(agreement.endpoint_tokens, reuse)

    def _refusal(self, asked: _Asked) -> Verdict | None:
        """The refusal to tell, if any stage refused: what can never be comes before what must wait."""
        order: Wait | None = None
        wait: Wait | None = None
        for stage in self._stages:
            answer, room_number = asked.answers[stage]
            match answer:
                case Never():
                    return NeverFits(stage, answer.pool, answer.needed, answer.capacity)
                case Missing():
                    wait = wait or Wait(stage, answer.pool, answer.available_needed, room_number)
                case Refused(reason="order"):
                    order = Wait(stage, "order")
                case Refused():
                    return Void(answer.reason)
                case _:
                    pass
        return wait or order

    # ---- telling ----

    def _void(self, current: _Round, told: list[tuple[GrantId, Verdict]], out: list[Instruction]) -> None:
        """Take attempts that were refused out of the round: abort them where they are prepared, mend the record."""
        if not told:
            return
        abort: dict[StageIndex, list[GrantId]] = {}
        for grant, _ in told:
            asked = current.asked[grant]
            asked.phase = Phase.TOLD
            for stage in self._stages:
                # Where no answer has come, it may be prepared by the time that the abort arrives.
                if stage not in asked.not_held_by:
                    abort.setdefault(stage, []).append(grant)
            asked.waiting_for.clear()
            self._forget(grant)
        for stage, grants in abort.items():
            if stage in self._connected:
                out.append(SendAbort(stage, tuple(grants)))
        out.extend(self._ledger.remove(tuple(g for g, _ in told)))

    def _conclude(self, current: _Round, told: list[tuple[GrantId, Verdict]], out: list[Instruction]) -> None:
        newly_granted: list[tuple[GrantId, Verdict]] = []
        if current.recorded:
            for asked in current.asked.values():
                if asked.phase is Phase.READY and asked.granted is not None:
                    asked.phase = Phase.TOLD
                    newly_granted.append((asked.attempt.grant, asked.granted))
                    self._round_of.pop(asked.attempt.grant, None)
            self._ledger.granted(tuple(g for g, _ in newly_granted))
        answered = all(not a.waiting_for for a in current.asked.values())
        if told or newly_granted or answered != current.answered:
            current.answered = answered
            out.append(Decide(current.batch, (*told, *newly_granted), answered))
        if current.recorded and all(a.phase is Phase.TOLD for a in current.asked.values()):
            self._rounds.pop(current.round, None)
            self.rounds_done += 1

    def _recorded(self, event: RecordWritten, out: list[Instruction]) -> None:
        current = self._rounds.get(event.round)
        told: list[tuple[GrantId, Verdict]] = []
        if current is not None and not event.ok:
            told = self._void_all(current, Wait(None, "directory"), out)
        out.extend(self._ledger.written(event.round))
        if current is not None:
            current.recorded = True
            self._conclude(current, told, out)

    def _void_all(self, current: _Round, verdict: Verdict, out: list[Instruction]) -> list[tuple[GrantId, Verdict]]:
        """End every attempt of the round that is not told yet."""
        told = [(a.attempt.grant, verdict) for a in current.asked.values() if a.phase is not Phase.TOLD]
        self._void(current, told, out)
        return told

    def _forget(self, grant: GrantId) -> None:
        self._round_of.pop(grant, None)
        self._keys.pop(grant, None)

    # ---- what the router says ----

    def _cancel(self, grants: tuple[GrantId, ...], out: list[Instruction]) -> None:
        granted: list[GrantId] = []
        by_round: dict[RoundId, list[GrantId]] = {}
        for grant in grants:
            current = self._round_of.get(grant)
            if current is not None:
                by_round.setdefault(current, []).append(grant)
            elif grant in self._ledger.grants:
                granted.append(grant)
        for round_id, members in by_round.items():
            current_round = self._rounds[round_id]
            told: list[tuple[GrantId, Verdict]] = [(g, Void("cancelled")) for g in members]
            self._void(current_round, told, out)
            self._conclude(current_round, told, out)
        if granted:
            self._drop(tuple(granted), out)

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
        for current in list(self._rounds.values()):
            self._void_all(current, Void("stream"), out)
            self._rounds.pop(current.round, None)
        stale = tuple(self._ledger.grants - event.live)
        if stale:
            self._drop(stale, out)
        out.extend(self._ledger.writer_changed())
        self._ledger.adopt(event.live)

    # ---- what the streams say ----

    def _stage_lost(self, stage: StageIndex, out: list[Instruction]) -> None:
        """Attempts that wait for this stage's answer are void; grants live on: the epoch decides about them."""
        self._connected.discard(stage)
        self._sync.disconnected(stage)
        for current in list(self._rounds.values()):
            told = self._void_all(current, Wait(stage, "directory"), out)
            self._conclude(current, told, out)
