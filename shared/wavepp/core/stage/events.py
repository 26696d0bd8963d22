"""What goes into a stage's sequencer and what comes out: events, instructions, and the answers to the directory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wavepp.core.cache.types import Missing, NeedKeys, Never, Prepared, Room
from wavepp.core.ids import BlockId, GrantId, PipelineEpoch, RoundId, WaveId
from wavepp.core.waves.types import ChosenToken, FailedGrant, StepTime
from wavepp.core.wire.types import FrameChunk

# ---- events ----


@dataclass(frozen=True, slots=True)
class PrepareGrant:
    """One grant of a Prepare: reserve for `total_tokens`, reuse up to `endpoint_tokens` where that is held.

    `keys` are the packed keys of the prompt's full blocks from `first_block` on; `key_before` is the key of block
    `first_block` - 1, empty when that does not exist. `context` comes back with every job of the grant.
    """

    grant: GrantId
    endpoint_tokens: int
    prompt_tokens: int
    total_tokens: int
    first_block: int
    keys: bytes
    key_before: bytes
    context: object


@dataclass(frozen=True, slots=True)
class PrepareArrived:
    """From the directory: decide these grants, in order."""

    round: RoundId
    epoch: PipelineEpoch
    grants: tuple[PrepareGrant, ...]


@dataclass(frozen=True, slots=True)
class LowerArrived:
    """From the directory: these grants step down to an endpoint that all stages hold."""

    round: RoundId
    grants: tuple[tuple[GrantId, int], ...]


@dataclass(frozen=True, slots=True)
class AbortArrived:
    """From the directory: these grants were not made. Has no effect on one that has been in a wave."""

    grants: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class DirectoryConnected:
    """A directory (again) leads the rounds; it knows these grants. Others that are only prepared are ended."""

    known: frozenset[GrantId]


@dataclass(frozen=True, slots=True)
class EpochSet:
    """From the router: everything of a lower epoch is over. `report_steps`: it wants to hear of every step."""

    epoch: PipelineEpoch
    report_steps: bool = False


@dataclass(frozen=True, slots=True)
class LinksReady:
    """The shell has the links that the epoch needs."""

    epoch: PipelineEpoch


@dataclass(frozen=True, slots=True)
class WaveArrived:
    """A wave from the stage before (or, on stage 0, from the router).

    `payload` is opaque here: the rows of the chunks that have not failed, in chunk order.
    """

    epoch: PipelineEpoch
    wave: WaveId
    chunks: tuple[FrameChunk, ...]
    failed: tuple[FailedGrant, ...]
    ended: tuple[GrantId, ...]
    steps: tuple[StepTime, ...]
    issued_ns: int
    payload: object


@dataclass(frozen=True, slots=True)
class JobDone:
    """The executor has finished a job. `failed` names grants whose rows are not in `output`.

    `output` is opaque: the rows for the next stage; `samples` what the last stage chose.
    """

    wave: WaveId
    step: StepTime
    failed: tuple[tuple[GrantId, str], ...]
    output: object
    samples: tuple[tuple[GrantId, ChosenToken], ...] = ()


@dataclass(frozen=True, slots=True)
class WaveSent:
    """The link has taken a wave of this epoch."""

    epoch: PipelineEpoch


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """This process lost its etcd lease: for the others it is dead, so it ends everything that it had."""


Event = (
    PrepareArrived
    | LowerArrived
    | AbortArrived
    | DirectoryConnected
    | EpochSet
    | LinksReady
    | WaveArrived
    | JobDone
    | WaveSent
    | LeaseLost
)

# ---- answers ----


class RefusalReason(StrEnum):
    """One before it was refused, its epoch is over, the grant ended, or what only another release knows.

    The values are those of the wire.
    """

    ORDER = "order"
    EPOCH = "epoch"
    ENDED = "ended"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Refused:
    """Not decided."""

    reason: RefusalReason


Answer = Prepared | NeedKeys | Missing | Never | Refused

# ---- instructions ----


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """One chunk of a frozen job.

    `table` covers [0, start + length); `row` is its first row in the payload. `sample`: choose a token after it. The
    slots are those of stages with recurrent layers: the snapshot to start from (on a grant's first chunk), the working
    state, and where to keep the state after the chunk.
    """

    grant: GrantId
    start: int
    length: int
    table: tuple[BlockId, ...]
    row: int
    sample: bool
    restore_slot: int | None
    state_slot: int | None
    snapshot_slot: int | None
    context: object


@dataclass(frozen=True, slots=True)
class RunJob:
    """Hand this to the executor; jobs run strictly in the order in which they are handed over."""

    epoch: PipelineEpoch
    wave: WaveId
    chunks: tuple[PlacedChunk, ...]
    payload: object


@dataclass(frozen=True, slots=True)
class SendWave:
    """Pass the wave on to the next stage."""

    epoch: PipelineEpoch
    wave: WaveId
    chunks: tuple[FrameChunk, ...]
    failed: tuple[FailedGrant, ...]
    ended: tuple[GrantId, ...]
    steps: tuple[StepTime, ...]
    issued_ns: int
    output: object


@dataclass(frozen=True, slots=True)
class ReportWave:
    """The last stage has done the wave: tell the router."""

    epoch: PipelineEpoch
    wave: WaveId
    failed: tuple[FailedGrant, ...]
    steps: tuple[StepTime, ...]
    samples: tuple[tuple[GrantId, ChosenToken], ...]


@dataclass(frozen=True, slots=True)
class ReportStep:
    """A step is done on this stage: tell the router. It issues waves by stage 0's progress, and by that of all it knows
    what a stage was at that dies."""

    epoch: PipelineEpoch
    wave: WaveId
    step: StepTime


@dataclass(frozen=True, slots=True)
class AnswerPrepare:
    """Answers in the order of the Prepare."""

    round: RoundId
    answers: tuple[tuple[GrantId, Answer], ...]


@dataclass(frozen=True, slots=True)
class AnswerLower:
    """Answers in the order of the Lower."""

    round: RoundId
    answers: tuple[tuple[GrantId, Answer], ...]


@dataclass(frozen=True, slots=True)
class AckEpoch:
    """The epoch holds here: nothing older runs, is queued, or holds anything."""

    epoch: PipelineEpoch


@dataclass(frozen=True, slots=True)
class ReportRoom:
    """Available room changed."""

    room: Room


Instruction = RunJob | SendWave | ReportWave | ReportStep | AnswerPrepare | AnswerLower | AckEpoch | ReportRoom
