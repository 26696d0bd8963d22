"""What simulated stages compute: fingerprints instead of activations.

The fingerprint of a token depends on everything before it. It is kept in the stage's blocks (and, where a stage has
recurrent layers, in its states and snapshots) and compared with what the stage before sends, so work on wrong or stale
state is noticed at once, and the answer can be predicted from the prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from wavepp.core.errors import InvariantError
from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.router import events as router_ev
from wavepp.core.stage import events as stage_ev
from wavepp.core.tokens import decode_tokens
from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.types import ChosenToken
from wavepp.sim.jobs import Executor, Failing, JobSpan, SimModel, step_ms

VOCABULARY: Final = 50_000
_MODULUS: Final = 2**61 - 1
_UNWRITTEN: Final = -1
_GARBAGE: Final = -2
"""What a step leaves that was not finite. Like `_UNWRITTEN`, a value that nothing computes."""


def next_fingerprint(before: int, token: int) -> int:
    """Fingerprint after `token`, given that of everything before it."""
    return (before * 1_000_003 + token + 1) % _MODULUS


@dataclass(frozen=True, slots=True)
class Payload:
    """Rows of the chunks that have not failed. `rows`: tokens on stage 0, fingerprints after it."""

    rows: tuple[int, ...]
    before: dict[GrantId, int]


@dataclass(slots=True)
class SimExecutor(Executor):
    """Runs jobs in order on the blocks, states and snapshots of one stage.

    `cost`: what steps take; nothing if absent.
    """

    block_tokens: int
    stage: StageIndex
    failing: Failing
    cost: StageCost | None = None
    blocks: dict[tuple[int, int], int] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=dict)
    snapshots: dict[int, int] = field(default_factory=dict)

    def takes_ms(self, job: stage_ev.RunJob) -> float:
        return step_ms(self.cost, job) if self.cost is not None else 0.0

    def run(self, job: stage_ev.RunJob, span: JobSpan) -> stage_ev.JobDone:
        """The output has the rows of the chunks that did not fail."""
        payload = job.payload
        if not isinstance(payload, Payload):
            raise InvariantError(f"wave {job.wave} has no payload")
        rows: list[int] = []
        before: dict[GrantId, int] = {}
        failed: list[tuple[GrantId, str]] = []
        samples: list[tuple[GrantId, ChosenToken]] = []
        for chunk in job.chunks:
            held = self._state_before(chunk)
            reason = self.failing(self.stage, chunk)
            if self.stage and payload.before[chunk.grant] != held:
                reason = "state mismatch"
            values = self._values(chunk, held, payload.rows)
            self._keep(chunk, [_GARBAGE] * chunk.length if reason else values)
            if reason:
                failed.append((chunk.grant, reason))
                continue
            before[chunk.grant] = held
            rows.extend(values)
            if chunk.sample:
                samples.append((chunk.grant, ChosenToken(values[-1] % VOCABULARY, 0.0)))
        step = span.step(self.stage, sum(c.length for c in job.chunks))
        return stage_ev.JobDone(job.wave, step, tuple(failed), Payload(tuple(rows), before), tuple(samples))

    def _state_before(self, chunk: stage_ev.PlacedChunk) -> int:
        if not chunk.start:
            return 0
        at = chunk.start - 1
        held = self.blocks.get((chunk.table[at // self.block_tokens], at % self.block_tokens), _UNWRITTEN)
        if chunk.state_slot is None:
            return held
        # A recurrent stage has the same history twice, and both must agree.
        state = self.states if chunk.restore_slot is None else self.snapshots
        slot = chunk.state_slot if chunk.restore_slot is None else chunk.restore_slot
        return held if state.get(slot, _UNWRITTEN) == held else _UNWRITTEN

    def _values(self, chunk: stage_ev.PlacedChunk, held: int, rows: tuple[int, ...]) -> list[int]:
        mine = rows[chunk.row : chunk.row + chunk.length]
        if self.stage:
            return list(mine)
        values: list[int] = []
        for token in mine:
            held = next_fingerprint(held, token)
            values.append(held)
        return values

    def _keep(self, chunk: stage_ev.PlacedChunk, values: list[int]) -> None:
        for position, value in enumerate(values, chunk.start):
            self.blocks[chunk.table[position // self.block_tokens], position % self.block_tokens] = value
        if chunk.state_slot is not None:
            self.states[chunk.state_slot] = values[-1]
        if chunk.snapshot_slot is not None:
            self.snapshots[chunk.snapshot_slot] = values[-1]


class FingerprintModel(SimModel):
    """Stages that compute fingerprints. `costs`: what their steps take, one a stage; nothing if absent."""

    def __init__(self, block_tokens: int, costs: Sequence[StageCost] | None = None) -> None:
        self._block_tokens = block_tokens
        self._costs = costs

    def executor(self, stage: StageIndex, failing: Failing) -> SimExecutor:
        cost = self._costs[stage] if self._costs is not None else None
        return SimExecutor(self._block_tokens, stage, failing, cost)

    def payload(self, wave: router_ev.IssueWave) -> Payload:
        return Payload(tuple(token for issued in wave.chunks for token in decode_tokens(issued.token_bytes)), {})
