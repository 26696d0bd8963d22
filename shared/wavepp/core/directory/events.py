"""What goes into the directory's admission and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wavepp.core.cache.types import CacheChange
from wavepp.core.directory.reuse_endpoint import ReuseExplanation
from wavepp.core.ids import GrantId, PipelineEpoch, RoundId, StageIndex
from wavepp.core.stage.events import Answer, PrepareGrant

# ---- events ----


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one request to be admitted. `keys`: packed keys of the prompt's full blocks."""

    grant: GrantId
    prompt_tokens: int
    total_tokens: int
    keys: bytes
    context: object


@dataclass(frozen=True, slots=True)
class RouterConnected:
    """A router leads; it still runs these grants, and no other.

    `alignment_tokens`: endpoints must be multiples of it; itself a multiple of the stages' own, which 0 stands for.
    """

    epoch: PipelineEpoch
    live: frozenset[GrantId]
    alignment_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LedgerLoaded:
    """The ledger as an earlier directory left it: record name -> (epoch, grants)."""

    records: tuple[tuple[str, PipelineEpoch, tuple[GrantId, ...]], ...]


@dataclass(frozen=True, slots=True)
class Admit:
    """Decide these attempts together, in order. `batch` is the router's own number."""

    batch: int
    epoch: PipelineEpoch
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class StageAnswered:
    """A stage's answers to a Prepare or to a Lower."""

    stage: StageIndex
    round: RoundId
    answers: tuple[tuple[GrantId, Answer, int], ...]
    """(grant, answer, number of the stage's room that a refusal was computed from)"""
    lowered: bool = False


@dataclass(frozen=True, slots=True)
class RecordWritten:
    """The ledger holds the round's record (or, with `ok` False, does not and will not)."""

    round: RoundId
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RoundTimedOut:
    """The time that the stages have for their answers has passed; nothing when they came."""

    round: RoundId


@dataclass(frozen=True, slots=True)
class CancelAttempts:
    """The router gives these up before any wave named them."""

    grants: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class GrantsComputed:
    """Every stage has the prompts of these grants now."""

    grants: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class GrantsEnded:
    """These have ended on every stage."""

    grants: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class EpochMoved:
    """Every grant of a lower epoch is gone."""

    epoch: PipelineEpoch


@dataclass(frozen=True, slots=True)
class StageConnected:
    """The rounds stream to a stage is up; `incarnation` tells whether its cache is the one we knew.

    `known`: the grants that it was to keep, as they were when the stream was opened.
    """

    stage: StageIndex
    incarnation: str
    next_change: int
    known: frozenset[GrantId]


@dataclass(frozen=True, slots=True)
class StageDisconnected:
    """The rounds stream to a stage broke."""

    stage: StageIndex


@dataclass(frozen=True, slots=True)
class CacheChanged:
    """Changes of a stage's cache, numbered from `first` on within one incarnation."""

    stage: StageIndex
    incarnation: str
    first: int
    changes: tuple[CacheChange, ...]
    gap: bool


@dataclass(frozen=True, slots=True)
class CacheDumped:
    """A segment of a dump; the last one says which changes it includes."""

    stage: StageIndex
    incarnation: str
    keys: bytes
    snapshot_keys: bytes
    last: bool
    next_change: int


Event = (
    RouterConnected
    | LedgerLoaded
    | Admit
    | StageAnswered
    | RecordWritten
    | RoundTimedOut
    | CancelAttempts
    | GrantsComputed
    | GrantsEnded
    | EpochMoved
    | StageConnected
    | StageDisconnected
    | CacheChanged
    | CacheDumped
)

# ---- instructions ----


@dataclass(frozen=True, slots=True)
class SendPrepare:
    """To one stage."""

    stage: StageIndex
    round: RoundId
    epoch: PipelineEpoch
    grants: tuple[PrepareGrant, ...]


@dataclass(frozen=True, slots=True)
class SendLower:
    """To one stage."""

    stage: StageIndex
    round: RoundId
    grants: tuple[tuple[GrantId, int], ...]


@dataclass(frozen=True, slots=True)
class SendAbort:
    """To one stage."""

    stage: StageIndex
    grants: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class RemakeStream:
    """To one stage: it does not answer on this one, which counts as broken already."""

    stage: StageIndex


@dataclass(frozen=True, slots=True)
class AskDump:
    """From one stage: everything that it holds."""

    stage: StageIndex


@dataclass(frozen=True, slots=True)
class SetRecord:
    """Make the ledger's record `name` hold these grants; none of them: delete it.

    `round` is set on the first write of a round: its outcome comes back as RecordWritten.
    """

    name: str
    epoch: PipelineEpoch
    grants: tuple[tuple[GrantId, int, int], ...]
    """(grant, endpoint in tokens, total tokens)"""
    round: RoundId | None = None


@dataclass(frozen=True, slots=True)
class Granted:
    """Leases and escrows are held on every stage, and the ledger says so."""

    endpoint_tokens: int
    reuse: ReuseExplanation


class WaitFor(StrEnum):
    """Room in a stage's pool, or in its limit of pins; its turn; or that the directory can decide again.

    The values are those of the wire.
    """

    KV = "kv"
    STATE = "state"
    SNAPSHOT = "snapshot"
    PINS = "pins"
    ORDER = "order"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class Wait:
    """No grant now. `stage` is None when it is not a stage that it waits for."""

    stage: StageIndex | None
    what: WaitFor
    available_needed: int = 0
    room_number: int = 0


@dataclass(frozen=True, slots=True)
class NeverFits:
    """Could not fit into that pool if it were empty."""

    stage: StageIndex
    pool: str
    needed: int
    capacity: int


class VoidReason(StrEnum):
    """Its epoch is over, the grant ended on a stage, the router gave it up or began another stream, a stage's stream
    broke or its answer did not come while it was asked; or a reason that only another release knows.

    The values are those of the wire, and of `RefusalReason` where a stage says so.
    """

    EPOCH = "epoch"
    ENDED = "ended"
    CANCELLED = "cancelled"
    STREAM = "stream"
    UNANSWERED = "unanswered"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Void:
    """The attempt is over without a decision. `stage`: who did not answer."""

    reason: VoidReason
    stage: StageIndex | None = None


Verdict = Granted | Wait | NeverFits | Void
Decision = tuple[GrantId, Verdict]


@dataclass(frozen=True, slots=True)
class Decide:
    """To the router. `answered`: refusals are all decided; what is left only waits for the ledger."""

    batch: int
    decisions: tuple[Decision, ...]
    answered: bool


Instruction = SendPrepare | SendLower | SendAbort | RemakeStream | AskDump | SetRecord | Decide
