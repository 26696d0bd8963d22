"""One round: the attempts of a batch, which the stages are asked about and the ledger records together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from wavepp.core.directory.attempts import AttemptEvent, AttemptRecord, AttemptState
from wavepp.core.directory.events import (
    Decide,
    Decision,
    SendAbort,
    SendLower,
    Verdict,
    Void,
    VoidReason,
    Wait,
    WaitFor,
)
from wavepp.core.ids import GrantId, PipelineEpoch, RoundId, StageIndex


@dataclass(slots=True)
class Round:
    """`batch` is the router's own number; `answered`: as the router knows it; `recorded`: the ledger's write ended."""

    round: RoundId
    batch: int
    epoch: PipelineEpoch
    attempts: dict[GrantId, AttemptRecord] = field(default_factory=dict)
    answered: bool = False
    recorded: bool = False

    @property
    def over(self) -> bool:
        """Whether every attempt is decided and the ledger's write ended."""
        return self.recorded and all(a.decided for a in self.attempts.values())

    def undecided(self, verdict: Verdict) -> list[Decision]:
        """This verdict for every attempt that has none yet."""
        return [(a.grant, verdict) for a in self.attempts.values() if not a.decided]

    def without(self, stage: StageIndex) -> list[Decision]:
        """The same for a stage that is gone: who waits for its answer may be why."""
        asked, rest = Void(VoidReason.UNANSWERED, stage), Wait(stage, WaitFor.DIRECTORY)
        return [(a.grant, asked if stage in a.waiting_for else rest) for a in self.attempts.values() if not a.decided]

    @property
    def silent(self) -> list[StageIndex]:
        """Stages whose answers are outstanding."""
        return sorted({stage for a in self.attempts.values() for stage in a.waiting_for})

    def compare(self, recurrent: tuple[bool, ...], alignment_tokens: int) -> tuple[list[Decision], list[SendLower]]:
        """Move every attempt whose answers are complete; returns the refusals, and which stages must step down."""
        refused: list[Decision] = []
        lower: dict[StageIndex, list[tuple[GrantId, int]]] = {}
        for record in self.attempts.values():
            if record.state not in (AttemptState.PREPARING, AttemptState.LOWERING) or record.waiting_for:
                continue
            verdict = record.refusal()
            if verdict is not None:
                refused.append((record.grant, verdict))
                continue
            agreement = record.agree(recurrent, alignment_tokens)
            for stage in agreement.lower:
                lower.setdefault(stage, []).append((record.grant, agreement.endpoint_tokens))
        return refused, [SendLower(stage, self.round, tuple(grants)) for stage, grants in lower.items()]

    def end(self, grants: tuple[GrantId, ...], event: AttemptEvent, stages: Iterable[StageIndex]) -> list[SendAbort]:
        """End these without a grant; returns the aborts for those of `stages` that may hold them."""
        ended = [self.attempts[grant] for grant in grants]
        for record in ended:
            record.apply(event)
            record.waiting_for.clear()
        # Where no answer has come, it may be prepared by the time that the abort arrives.
        holding = ((stage, tuple(a.grant for a in ended if stage not in a.not_held_by)) for stage in stages)
        return [SendAbort(stage, held) for stage, held in holding if held]

    def grant(self) -> list[Decision]:
        """Grant what is ready, if the ledger holds the record."""
        granted: list[Decision] = []
        for record in self.attempts.values():
            if self.recorded and record.state is AttemptState.READY and record.granted is not None:
                record.apply(AttemptEvent.RECORDED)
                granted.append((record.grant, record.granted))
        return granted

    def decide(self, decisions: list[Decision]) -> list[Decide]:
        """Report these decisions, and that every stage has answered; nothing where the router knows it all."""
        answered = not any(a.waiting_for for a in self.attempts.values())
        if not decisions and answered == self.answered:
            return []
        self.answered = answered
        return [Decide(self.batch, tuple(decisions), answered)]
