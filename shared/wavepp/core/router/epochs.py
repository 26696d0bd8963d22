"""When the pipeline's epoch must move, and when all stages hold the new one: a table of (phase, event) -> phase.

The router raises the epoch and tells every stage. A stage acknowledges when nothing older runs, is queued or holds
anything there, and its link to the next stage is up. Only after all acknowledgements may grants be made again.
docs/protocol.md draws the table.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

from wavepp.core.errors import STORY_EVENTS_MAX, TransitionError
from wavepp.core.ids import Incarnation, PipelineEpoch, StageIndex


@dataclass(frozen=True, slots=True)
class StageUp:
    """The control stream to a stage is up."""

    stage: StageIndex
    incarnation: Incarnation
    link_address: str


@dataclass(frozen=True, slots=True)
class StageDown:
    """The control stream to a stage broke, or the stage's registration is gone."""

    stage: StageIndex
    reason: str


@dataclass(frozen=True, slots=True)
class StageDraining:
    """A stage is to stop, and waits until nothing runs. That it is gone then is no death."""

    stage: StageIndex


@dataclass(frozen=True, slots=True)
class LinkBroken:
    """A stage says that a link of this epoch broke."""

    stage: StageIndex
    epoch: PipelineEpoch
    reason: str


@dataclass(frozen=True, slots=True)
class Raised:
    """etcd holds the new epoch."""

    epoch: PipelineEpoch


@dataclass(frozen=True, slots=True)
class Acked:
    """A stage holds the epoch."""

    stage: StageIndex
    epoch: PipelineEpoch


@dataclass(frozen=True, slots=True)
class Stalled:
    """Something took too long: the acknowledgements of this epoch, or a wave of it."""

    epoch: PipelineEpoch
    reason: str


Event = StageUp | StageDown | StageDraining | LinkBroken | Raised | Acked | Stalled


PAUSE_FIRST_S: Final = 0.4
PAUSE_MAX_S: Final = 4.0
"""With the tries of a link that come before it, an epoch that is in vain takes about 5 s."""


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """Raise the epoch in etcd, then give `Raised`. `tries`: how often it was raised, this time included, since the
    pipeline last worked or a stage last came up as another process: what happened before says nothing about that one.
    """

    tries: int

    @property
    def pause_s(self) -> float:
        """Seconds to wait before: none at first, and ever more while epochs are in vain."""
        return 0.0 if self.tries < 2 else min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(self.tries - 2, 8))


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell a stage the epoch and the next stage. Empty strings: it is the last one.

    `report_steps`: it is to report each step. That costs the router as much as the waves do, so it is asked for only in
    the epoch after a stage died: should one die again, it shows what of.
    """

    stage: StageIndex
    epoch: PipelineEpoch
    next_link_address: str
    next_incarnation: str
    report_steps: bool = False


@dataclass(frozen=True, slots=True)
class Draining:
    """These stages are to stop, and are still there: nothing new may begin. Given whenever that changes."""

    stages: frozenset[StageIndex]


@dataclass(frozen=True, slots=True)
class Broken:
    """What was sent before does not count any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Every stage holds the epoch. `died`: stages that are another process than when the pipeline last worked, and did
    not drain; where there are any, all stages report their steps in this epoch."""

    epoch: PipelineEpoch
    died: frozenset[StageIndex] = frozenset()


Instruction = RaiseEpoch | Announce | Draining | Broken | Ready


class EpochPhase(Enum):
    """Where the pipeline is."""

    GATHERING = "waiting for stages"
    RAISING = "raising the epoch"
    RAISING_AGAIN = "raising the epoch again"
    ANNOUNCED = "waiting for acknowledgements"
    READY = "serving"


class EpochEvent(Enum):
    """What can happen to the pipeline's epoch."""

    COMPLETE = "all stages up"
    BROKEN = "broken"
    """A stage came, also again, or went; a link broke; something took too long."""
    RAISED = "raised in etcd"
    ACKED = "all acknowledged"


TRANSITIONS: Final[dict[tuple[EpochPhase, EpochEvent], EpochPhase]] = {
    (EpochPhase.GATHERING, EpochEvent.COMPLETE): EpochPhase.RAISING,
    (EpochPhase.GATHERING, EpochEvent.BROKEN): EpochPhase.GATHERING,
    (EpochPhase.RAISING, EpochEvent.RAISED): EpochPhase.ANNOUNCED,
    # One raise at a time; when it is through, everything is looked at anew.
    (EpochPhase.RAISING, EpochEvent.BROKEN): EpochPhase.RAISING_AGAIN,
    (EpochPhase.RAISING_AGAIN, EpochEvent.BROKEN): EpochPhase.RAISING_AGAIN,
    (EpochPhase.RAISING_AGAIN, EpochEvent.RAISED): EpochPhase.GATHERING,
    (EpochPhase.ANNOUNCED, EpochEvent.ACKED): EpochPhase.READY,
    (EpochPhase.ANNOUNCED, EpochEvent.BROKEN): EpochPhase.GATHERING,
    (EpochPhase.READY, EpochEvent.BROKEN): EpochPhase.GATHERING,
}


class EpochKeeper:
    """Decides about the epoch of one pipeline. Owned by the router that leads."""

    def __init__(self, stages: int) -> None:
        self.phase = EpochPhase.GATHERING
        self.epoch = PipelineEpoch(0)
        self.reason = "waiting for all stages"
        self.raised = 0
        self._stages = stages
        self._up: dict[StageIndex, StageUp] = {}
        self._served: dict[StageIndex, Incarnation] = {}
        self._draining: set[StageIndex] = set()
        self._waiting_for: set[StageIndex] = set()
        self._known: dict[StageIndex, Incarnation] = {}
        self.tries = 0
        """As in `RaiseEpoch`; 0 from when there is no reason to wait until the epoch is to be raised."""
        self._story: deque[str] = deque(maxlen=STORY_EVENTS_MAX)

    @property
    def missing(self) -> tuple[StageIndex, ...]:
        """Stages without a control stream."""
        return tuple(StageIndex(i) for i in range(self._stages) if StageIndex(i) not in self._up)

    @property
    def waiting_for(self) -> frozenset[StageIndex]:
        """Stages that have not acknowledged the epoch."""
        return frozenset(self._waiting_for)

    @property
    def draining(self) -> frozenset[StageIndex]:
        """Stages that are to stop, and are still there."""
        return frozenset(self._draining)

    def handle(self, event: Event) -> list[Instruction]:
        """Apply one event. Raises TransitionError for an epoch that nobody asked for, or that is not higher."""
        match event:
            case StageUp():
                self._up[event.stage] = event
                if self._known.get(event.stage) != event.incarnation:
                    self._known[event.stage] = event.incarnation
                    self.tries = 0
                return [*self._restart(f"stage {event.stage} connected"), *self._drains(event.stage, False)]
            case StageDown():
                if event.stage not in self._up:
                    return []
                del self._up[event.stage]
                reason = "it has stopped" if event.stage in self._draining else event.reason
                return [*self._restart(f"stage {event.stage}: {reason}"), *self._drains(event.stage, False)]
            case StageDraining():
                self._served.pop(event.stage, None)
                return self._drains(event.stage, event.stage in self._up)
            case LinkBroken() | Stalled():
                if event.epoch != self.epoch or not self._announced:
                    return []
                who = f"stage {event.stage}: " if isinstance(event, LinkBroken) else ""
                return self._restart(f"{who}{event.reason}")
            case Raised():
                return self._raised(event.epoch)
            case Acked():
                return self._acked(event)

    def apply(self, event: EpochEvent) -> None:
        """Change phase; raises TransitionError for an impossible pair."""
        following = TRANSITIONS.get((self.phase, event))
        if following is None:
            raise TransitionError(f"epoch {self.epoch}", self.phase.value, event.value, tuple(self._story))
        self._story.append(f"{self.phase.value}:{event.value}")
        self.phase = following

    @property
    def _announced(self) -> bool:
        """Whether the stages know of this epoch, and it counts."""
        return self.phase in (EpochPhase.ANNOUNCED, EpochPhase.READY)

    def _restart(self, reason: str) -> list[Instruction]:
        self.reason = reason
        broken = [Broken(reason)] if self._announced else []
        self.apply(EpochEvent.BROKEN)
        return [*broken, *self._raise()]

    def _drains(self, stage: StageIndex, drains: bool) -> list[Instruction]:
        if drains == (stage in self._draining):
            return []
        self._draining ^= {stage}
        return [Draining(self.draining)]

    def _raise(self) -> list[Instruction]:
        self._waiting_for.clear()
        if self.phase is not EpochPhase.GATHERING or self.missing:
            return []
        self.apply(EpochEvent.COMPLETE)
        self.tries += 1
        return [RaiseEpoch(self.tries)]

    def _raised(self, epoch: PipelineEpoch) -> list[Instruction]:
        if epoch <= self.epoch:
            raise TransitionError(f"epoch {self.epoch}", self.phase.value, f"raised to {epoch}", tuple(self._story))
        self.apply(EpochEvent.RAISED)
        self.epoch = epoch
        self.raised += 1
        if self.phase is not EpochPhase.ANNOUNCED:
            return self._raise()
        self._waiting_for = set(self._up)
        return [self._announcement(stage) for stage in sorted(self._up)]

    def _announcement(self, stage: StageIndex) -> Announce:
        after = self._up.get(StageIndex(stage + 1))
        return Announce(
            stage=stage,
            epoch=self.epoch,
            next_link_address=after.link_address if after else "",
            next_incarnation=after.incarnation if after else "",
            report_steps=bool(self._died),
        )

    def _acked(self, event: Acked) -> list[Instruction]:
        if self.phase is not EpochPhase.ANNOUNCED or event.epoch != self.epoch:
            return []
        self._waiting_for.discard(event.stage)
        if self._waiting_for:
            return []
        self.apply(EpochEvent.ACKED)
        self.tries = 0
        died = self._died
        self._served = {stage: up.incarnation for stage, up in self._up.items()}
        return [Ready(self.epoch, died)]

    @property
    def _died(self) -> frozenset[StageIndex]:
        """Stages that are another process than when the pipeline last worked, and did not drain; all are up."""
        return frozenset(s for s, before in self._served.items() if self._up[s].incarnation != before)
