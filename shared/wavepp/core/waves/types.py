"""A wave as it is planned, what bounds it, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.limits import STAGES_MAX, WAVE_REQUESTS_MAX
from wavepp.core.waves.cost import StageCost


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, start + length) of a grant. `last`: the last stage chooses a token after it.

    `snapshot`: recurrent stages keep a snapshot at its end. `decode`: one token that an earlier step chose.
    """

    grant: GrantId
    start: int
    length: int
    last: bool
    snapshot: bool
    decode: bool


@dataclass(frozen=True, slots=True)
class PlannedWave:
    """Decode chunks first, then prefill chunks in the order of arrival. No ended grant has a chunk."""

    chunks: tuple[Chunk, ...]
    ended: tuple[GrantId, ...]


@dataclass(frozen=True, slots=True)
class FailedGrant:
    """A grant that failed on a stage; it has no rows in the payload.

    `reason` is cut to REASON_BYTES_MAX bytes of UTF-8 when it is sent.
    """

    grant: GrantId
    stage: StageIndex
    reason: str


@dataclass(frozen=True, slots=True)
class StepTime:
    """A stage's step of a wave: the start by its host's wall clock, and how long the wave had waited there.

    `tokens`: rows that it ran.
    """

    stage: StageIndex
    start_ns: int
    duration_ns: int
    queued_ns: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ChosenToken:
    """A token that the last stage chose, its natural-log probability under the model (before temperature), and the
    likeliest ones, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class FitState(Enum):
    """Where the cost in use comes from."""

    PRIOR = "too few steps: the prior"
    FITTED = "fitted"
    REFUSED = "the steps do not follow the model: the prior, scaled to them"


@dataclass(frozen=True, slots=True)
class FitReport:
    """`error`: mean relative error of the fit's predictions, of late. `typical_ms`: of a step that is typical for the
    whole pipeline; 0 where nobody says what is.
    """

    state: FitState
    steps: int
    error: float
    cost: StageCost
    typical_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """What bounds a wave. Tokens, but for `stages`, `wave_requests_max`, `ring` and those said otherwise.

    `wave_tokens_max` is M: no wave has more prefill tokens. `ring`: waves in flight at most; 0 means 2P.
    `fixed_grid`: cut prompts at multiples of M only. `chunk_share_max`: the fraction of a wave's budget that
    one request may take while others wait, where the policy counts tokens. `snapshot_interval_tokens`: distance of
    recurrent snapshots; 0 where no stage has recurrent layers. `fill_ahead_max`: how many requests that find no room
    in a wave are passed over to fill it with a later one that fits whole (with a budget of time: where requests differ
    much); 0 = first come first served. `grants_max`: grants known at once. `stage0_waves_max`: waves that stage 0 may
    have unfinished when another is issued, that one included: 2, one that runs and one that waits, hides the way to it;
    with 1 a wave is planned only when stage 0 has nothing to do. `spread`: whether requests that arrive together at an
    idle pipeline are spread over waves, where the policy counts tokens.
    """

    stages: int
    wave_tokens_max: int
    wave_tokens_min: int
    block_tokens: int
    alignment_tokens: int
    wave_requests_max: int = 128
    ring: int = 0
    fixed_grid: bool = False
    chunk_share_max: float = 1.0
    snapshot_interval_tokens: int = 0
    fill_ahead_max: int = 64
    grants_max: int = 65_536
    stage0_waves_max: int = 2
    spread: bool = True

    def __post_init__(self) -> None:
        if self.ring == 0:
            object.__setattr__(self, "ring", 2 * self.stages)
        rules = (
            (1 <= self.stages <= STAGES_MAX, f"stages must be 1 to {STAGES_MAX}"),
            (self.block_tokens >= 1, "block_tokens must be positive"),
            (
                self.alignment_tokens >= 1 and self.alignment_tokens % max(1, self.block_tokens) == 0,
                "alignment_tokens must be a positive multiple of block_tokens",
            ),
            (
                self.wave_tokens_max >= 1 and self.wave_tokens_max % max(1, self.alignment_tokens) == 0,
                "wave_tokens_max must be a positive multiple of alignment_tokens",
            ),
            (self.wave_tokens_min >= 1, "wave_tokens_min must be positive"),
            (
                1 <= self.wave_requests_max <= WAVE_REQUESTS_MAX,
                f"wave_requests_max: 1 to {WAVE_REQUESTS_MAX}",
            ),
            (self.ring >= 1, "ring must be positive"),
            (1 <= self.stage0_waves_max <= self.ring or self.ring == 1, "stage0_waves_max: 1 to ring"),
            (0.0 < self.chunk_share_max <= 1.0, "chunk_share_max must be above 0 and at most 1"),
            (
                min(self.snapshot_interval_tokens, self.fill_ahead_max, self.grants_max) >= 0,
                "snapshot_interval_tokens, fill_ahead_max and grants_max must not be negative",
            ),
        )
        broken = [rule for holds, rule in rules if not holds]
        if broken:
            raise InvalidInputError(f"wave planner: {'; '.join(broken)} (got {self})")
