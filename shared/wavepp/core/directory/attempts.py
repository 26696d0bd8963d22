"""One attempt in its round: a table of (state, event) -> state, and the record of what the stages answered.

docs/protocol.md draws the table. An epoch that moves forgets attempts in any state, without an event.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from wavepp.core.cache.types import Missing, Never, Prepared
from wavepp.core.directory.events import Attempt, Granted, NeverFits, Verdict, Void, VoidReason, Wait, WaitFor
from wavepp.core.directory.hints import ReuseHint
from wavepp.core.directory.reuse_endpoint import Agreement, StageOffer, agree, explain
from wavepp.core.errors import STORY_EVENTS_MAX, InvariantError, TransitionError
from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.keys import key_at
from wavepp.core.limits import KEY_BYTES
from wavepp.core.stage.events import Answer, PrepareGrant, RefusalReason, Refused


class AttemptState(Enum):
    """Where an attempt is in its round; GRANTED and ENDED are decided."""

    PREPARING = "preparing"
    LOWERING = "lowering"
    READY = "ready"
    GRANTED = "granted"
    ENDED = "ended"


class AttemptEvent(Enum):
    """What can happen to an attempt."""

    DIFFER = "endpoints differ"
    AGREE = "endpoints agree"
    RECORDED = "recorded"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    BROKEN = "broken"


TRANSITIONS: Final[dict[tuple[AttemptState, AttemptEvent], AttemptState]] = {
    (AttemptState.PREPARING, AttemptEvent.DIFFER): AttemptState.LOWERING,
    (AttemptState.PREPARING, AttemptEvent.AGREE): AttemptState.READY,
    (AttemptState.PREPARING, AttemptEvent.REFUSED): AttemptState.ENDED,
    (AttemptState.PREPARING, AttemptEvent.CANCELLED): AttemptState.ENDED,
    (AttemptState.PREPARING, AttemptEvent.BROKEN): AttemptState.ENDED,
    (AttemptState.LOWERING, AttemptEvent.DIFFER): AttemptState.LOWERING,
    (AttemptState.LOWERING, AttemptEvent.AGREE): AttemptState.READY,
    (AttemptState.LOWERING, AttemptEvent.REFUSED): AttemptState.ENDED,
    (AttemptState.LOWERING, AttemptEvent.CANCELLED): AttemptState.ENDED,
    (AttemptState.LOWERING, AttemptEvent.BROKEN): AttemptState.ENDED,
    (AttemptState.READY, AttemptEvent.RECORDED): AttemptState.GRANTED,
    (AttemptState.READY, AttemptEvent.CANCELLED): AttemptState.ENDED,
    (AttemptState.READY, AttemptEvent.BROKEN): AttemptState.ENDED,
}


@dataclass(slots=True)
class AttemptRecord:
    """One attempt as the directory knows it. `waiting_for`: stages whose answer is outstanding."""

    attempt: Attempt
    hint: ReuseHint
    waiting_for: set[StageIndex]
    state: AttemptState = AttemptState.PREPARING
    answers: dict[StageIndex, tuple[Answer, int]] = field(default_factory=dict)
    not_held_by: set[StageIndex] = field(default_factory=set)
    """Stages that refused the Prepare. A stage that could not step down still holds what it prepared."""
    limiting_stage: StageIndex | None = None
    granted: Granted | None = None
    story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_EVENTS_MAX))

    @property
    def grant(self) -> GrantId:
        """The id under which it is prepared."""
        return self.attempt.grant

    @property
    def decided(self) -> bool:
        """Whether the router has its verdict."""
        return self.state in (AttemptState.GRANTED, AttemptState.ENDED)

    def apply(self, event: AttemptEvent) -> None:
        """Change state; raises TransitionError for an impossible pair."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise TransitionError(f"attempt {self.grant}", self.state.value, event.value, tuple(self.story))
        self.story.append(f"{self.state.value}:{event.value}")
        self.state = following

    def question(self, first_block: int) -> PrepareGrant:
        """What a stage is asked that is sent the keys from `first_block` on."""
        attempt = self.attempt
        return PrepareGrant(
            grant=attempt.grant,
            endpoint_tokens=self.hint.endpoint_tokens,
            prompt_tokens=attempt.prompt_tokens,
            total_tokens=attempt.total_tokens,
            first_block=first_block,
            keys=attempt.keys[first_block * KEY_BYTES :],
            key_before=key_at(attempt.keys, first_block - 1) if first_block else b"",
            context=attempt.context,
        )

    def answered(self, stage: StageIndex, answer: Answer, room_number: int, *, lowered: bool) -> None:
        """Note a stage's answer to a Prepare or, with `lowered`, to a Lower."""
        self.answers[stage] = (answer, room_number)
        if not lowered and not isinstance(answer, Prepared):
            self.not_held_by.add(stage)
        self.waiting_for.discard(stage)

    def refusal(self) -> Verdict | None:
        """The verdict, if any stage refused: what can never be comes before what must wait."""
        order: Wait | None = None
        wait: Wait | None = None
        for stage, (answer, room_number) in sorted(self.answers.items()):
            match answer:
                case Never():
                    return NeverFits(stage, answer.pool, answer.needed, answer.capacity)
                case Missing():
                    wait = wait or Wait(stage, WaitFor(answer.pool), answer.available_needed, room_number)
                case Refused(reason=RefusalReason.ORDER):
                    order = Wait(stage, WaitFor.ORDER)
                case Refused():
                    return Void(VoidReason(answer.reason))
                case _:
                    pass
        return wait or order

    def agree(self, recurrent: tuple[bool, ...], alignment_tokens: int) -> Agreement:
        """Compare the stages' endpoints: all hold the same, or those above must step down and are waited for."""
        agreement = agree([self._offer(stage, recurrent[stage]) for stage in sorted(self.answers)], alignment_tokens)
        if self.limiting_stage is None:
            # Once the others have stepped down nobody limits any more, yet that is what the user wants to know.
            self.limiting_stage = agreement.limiting_stage
        if agreement.lower:
            self.apply(AttemptEvent.DIFFER)
            self.waiting_for.update(agreement.lower)
        else:
            self.apply(AttemptEvent.AGREE)
            final = replace(agreement, limiting_stage=self.limiting_stage)
            self.granted = Granted(final.endpoint_tokens, explain(self.hint, final, self.attempt.prompt_tokens))
        return agreement

    def _offer(self, stage: StageIndex, recurrent: bool) -> StageOffer:
        answer, _ = self.answers[stage]
        if not isinstance(answer, Prepared):
            raise InvariantError(f"stage {stage} refused grant {self.grant}, yet endpoints are compared")
        return StageOffer(stage, answer.endpoint_tokens, answer.snapshots, recurrent)
