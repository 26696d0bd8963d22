"""What goes into the router's dispatcher and what comes out. Times are milliseconds on the router's own clock."""

from __future__ import annotations

from dataclasses import dataclass

from wavepp.core.cache.types import Room
from wavepp.core.directory.events import Attempt, Verdict
from wavepp.core.ids import GrantId, PipelineEpoch, RequestId, StageIndex, WaveId
from wavepp.core.router.requests import Failure, FailureKind, NewRequest, RequestOutcome
from wavepp.core.waves.types import ChosenToken, Chunk, FailedGrant, StepTime

# ---- events ----


@dataclass(frozen=True, slots=True)
class Submit:
    """A client's request; see `Dispatcher.check` for what it must pass first."""

    new: NewRequest


@dataclass(frozen=True, slots=True)
class Stop:
    """The client is gone, or the deadline passed."""

    request: RequestId
    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Decided:
    """From the directory, for one batch."""

    batch: int
    decisions: tuple[tuple[GrantId, Verdict], ...]
    answered: bool


@dataclass(frozen=True, slots=True)
class DirectoryChanged:
    """Whether grants can be made now. `new_stream`: whatever was asked before is void."""

    ready: bool
    new_stream: bool = False


@dataclass(frozen=True, slots=True)
class RetryDue:
    """The time that `RetryAfter` asked for has passed."""


@dataclass(frozen=True, slots=True)
class RoomChanged:
    """From a stage."""

    stage: int
    room: Room


@dataclass(frozen=True, slots=True)
class StepDone:
    """From stage 0; from all but the last, after a stage died. The last one says it of a whole wave: `WaveDone`."""

    stage: StageIndex
    epoch: PipelineEpoch
    wave: WaveId


@dataclass(frozen=True, slots=True)
class WaveDone:
    """From the last stage."""

    epoch: PipelineEpoch
    wave: WaveId
    results: tuple[tuple[GrantId, ChosenToken], ...]
    failed: tuple[FailedGrant, ...]
    steps: tuple[StepTime, ...]


@dataclass(frozen=True, slots=True)
class StagesDraining:
    """How many stages are to stop and are still there. Nobody is admitted while there are any."""

    stages: int


@dataclass(frozen=True, slots=True)
class PipelineBroken:
    """Something broke: nothing that was sent before counts any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class PipelineReady:
    """Every stage has acknowledged this epoch. `died`: stages that are another process than in the epoch that last
    worked; where there are any, all stages report their steps in this one."""

    epoch: PipelineEpoch
    died: frozenset[StageIndex] = frozenset()


Event = (
    Submit
    | Stop
    | Decided
    | DirectoryChanged
    | RetryDue
    | RoomChanged
    | StepDone
    | WaveDone
    | StagesDraining
    | PipelineBroken
    | PipelineReady
)

# ---- instructions ----


@dataclass(frozen=True, slots=True)
class SendAdmit:
    """To the directory."""

    batch: int
    epoch: PipelineEpoch
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class SendCancel:
    """To the directory: attempts that no wave has named."""

    grants: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class SendComputed:
    """To the directory: every stage holds the prompts of these."""

    grants: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class SendEnded:
    """To the directory: these ended on every stage."""

    grants: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class IssuedChunk:
    """A chunk with what stage 0 needs of it: its token bytes, and keys of blocks that decoding fills."""

    chunk: Chunk
    request: RequestId
    token_bytes: bytes
    keys: bytes


@dataclass(frozen=True, slots=True)
class IssueWave:
    """To stage 0."""

    wave: WaveId
    epoch: PipelineEpoch
    chunks: tuple[IssuedChunk, ...]
    ended: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class Drained:
    """To the stages that drain: nothing runs, and nothing is asked for."""


@dataclass(frozen=True, slots=True)
class EmitToken:
    """To the client, if it streams."""

    request: RequestId
    index: int
    chosen: ChosenToken


@dataclass(frozen=True, slots=True)
class Finish:
    """To the client."""

    outcome: RequestOutcome


@dataclass(frozen=True, slots=True)
class Fail:
    """To the client."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Give a `RetryDue` after this time."""

    delay_ms: int


Instruction = (
    SendAdmit | SendCancel | SendComputed | SendEnded | IssueWave | Drained | EmitToken | Finish | Fail | RetryAfter
)
