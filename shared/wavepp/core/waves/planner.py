"""Waves: which tokens of which grants go into the pipeline next.

The planner is pure and deterministic: the same calls give the same waves. It never waits for results: chunk n
+ 1 of a grant may go out in the wave right after the one that has chunk n.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from wavepp.core.errors import InvalidInputError, InvariantError
from wavepp.core.ids import GrantId
from wavepp.core.limits import WAVE_REQUESTS_MAX
from wavepp.core.waves.policies import WavePolicy
from wavepp.core.waves.prefill_queue import PrefillQueue
from wavepp.core.waves.time_packing import TimeBudget
from wavepp.core.waves.types import Chunk, FitReport, PlannedWave, PlannerConfig, StepTime


class WavePlanner:
    """Packs the work of admitted grants into waves.

    *When*: a wave is issued while fewer than `ring` are in flight and stage 0 has at most one that it has not
    finished, so that one may run and one wait. Ends without other work only need room in the ring, and that no other
    wave of only ends is in flight.

    *What*: decode chunks first, one token each, on top of the budget: so they neither starve prefill nor push
    its cuts off the alignment. Then prefill, first come first served, up to the policy's budget. For a budget of
    time see `time_packing`; for one of tokens:
    - At most one chunk of a grant. It takes all that is left of the request or ends at a multiple of the
      alignment.
    - What remains of a budget, when below max(b_min, budget / 2), takes no fragment of a longer request. It
      may take a later request that fits whole; those passed over lose nothing, since they are first in the
      next wave, and the first request always gets a chunk.
    - While fewer than P waves are in flight, a wave takes at most ceil(waiting requests / (P - in flight))
      requests: an equal part for each of the waves that are still needed to give every stage one. So requests
      that arrive together at an idle pipeline fill it. Decode chunks are not spread: one wave of them costs
      less than several and is done no later.
    - While prefill waits, decode leaves it one of the wave's request slots (they take turns where there is
      only one), so neither starves.
    - With `fixed_grid` a chunk always runs to the next multiple of M or to the end of the prompt, whatever
      else is in the wave, so results do not depend on the packing. It is taken whole: the first in a wave may
      exceed the policy's budget, but never M; `chunk_share_max` has no effect.

    *Snapshots* (interval > 0) are taken at the prompt's last aligned place, where the chunk is cut for it
    (with a fixed grid too: the place depends on the prompt alone), since there the next turn of a
    conversation resumes; and at other aligned chunk ends that are an interval or more after the one before.

    A grant is known from `add` until the wave with its end is planned, or `reset`.
    """

    def __init__(self, config: PlannerConfig, policy: WavePolicy) -> None:
        self._config = config
        self._policy = policy
        self._prefill = PrefillQueue(config)
        self._decode: OrderedDict[GrantId, int] = OrderedDict()
        self._ends: OrderedDict[GrantId, None] = OrderedDict()
        self._known: dict[GrantId, bool] = {}
        """Grant -> whether it was kept alive. Those in `_ends` are here, too."""
        self._decode_had_turn = False

    # ---- work ----------------------------------------------------------------------------------------------

    def add(self, grant: GrantId, start: int, end: int, keep_alive: bool) -> None:
        """Prefill [start, end) of a new grant; `start` is its reuse endpoint. `keep_alive`: decode steps follow."""
        if grant in self._known:
            raise InvalidInputError(f"grant {grant} was added before; a grant has one prefill")
        if not 0 <= start < end:
            raise InvalidInputError(f"grant {grant}: prefill [{start}, {end}) has no token")
        if len(self._known) >= self._config.grants_max:
            raise InvalidInputError(f"{len(self._known)} grants are known, which is the limit; admit fewer")
        self._known[grant] = keep_alive
        self._prefill.add(grant, start, end)
        self._policy.admitted(grant, start, end)

    def add_decode(self, grant: GrantId, position: int) -> None:
        """One token, at `position`, of a grant that was kept alive; goes out with the next wave that has a slot."""
        if not self._known.get(grant, False) or grant in self._ends:
            raise InvalidInputError(f"grant {grant} cannot decode: it is unknown, ended, or was not kept alive")
        if grant in self._prefill or grant in self._decode:
            raise InvalidInputError(f"grant {grant} cannot decode yet: an earlier chunk of it waits")
        if position < 1:
            raise InvalidInputError(f"grant {grant} cannot decode at position {position}; it must be positive")
        self._policy.left(grant)
        self._decode[grant] = position

    def cancel(self, grant: GrantId) -> None:
        """No more of its chunks that wait; it still needs its end. Does nothing when none wait."""
        self._prefill.drop(grant)
        self._decode.pop(grant, None)

    def end(self, grant: GrantId) -> bool:
        """Cancel the grant and send its end with the next wave.

        False when there is nothing to send: the end waits or has gone out already, or the grant was never
        added.
        """
        if grant not in self._known or grant in self._ends:
            return False
        self.cancel(grant)
        self._policy.left(grant)
        self._ends[grant] = None
        return True

    def measured(self, chunks: Sequence[Chunk], steps: Sequence[StepTime]) -> None:
        """A wave with these chunks is done; what its steps took is for the policy."""
        self._policy.measured(chunks, steps)

    def reset(self) -> None:
        """The epoch moved: all grants are gone, without ends. The policy keeps what it has learned."""
        self._prefill.clear()
        self._decode.clear()
        self._ends.clear()
        self._known.clear()
        self._policy.reset()

    def cost_reports(self) -> list[FitReport]:
        """What the policy has learned of every stage's steps."""
        return self._policy.reports()

    def has_work(self) -> bool:
        """Whether chunks or ends wait."""
        return bool(self._prefill or self._decode or self._ends)

    @property
    def waiting_tokens(self) -> int:
        """Prefill tokens that are in no wave yet."""
        return self._prefill.tokens

    @property
    def waiting_requests(self) -> int:
        """Grants with prefill tokens that are in no wave yet."""
        return len(self._prefill)

    # ---- waves ---------------------------------------------------------------------------------------------

    def plan(self, waves_in_flight: int, waves_in_stage0: int, ends_in_flight: bool = False) -> PlannedWave | None:
        """The next wave, or None when nothing is to be issued now.

        `waves_in_flight`: issued and not done. `waves_in_stage0`: issued and not finished by stage 0.
        `ends_in_flight`: one of those in flight has no chunks, only ends.
        """
        if not 0 <= waves_in_stage0 <= waves_in_flight:
            raise InvalidInputError(f"{waves_in_stage0} waves in stage 0, {waves_in_flight} in flight: impossible")
        if waves_in_flight >= self._config.ring:
            return None
        if self._prefill or self._decode:
            if waves_in_stage0 >= self._config.stage0_waves_max:
                return None
            decode = self._take_decode()
            prefill = self._take_prefill(waves_in_flight, self._config.wave_requests_max - len(decode))
            return PlannedWave((*decode, *prefill), self._take_ends())
        # One at a time: many such waves would fill the ring and keep prefill waiting. Ends gather meanwhile.
        return PlannedWave((), self._take_ends()) if self._ends and not ends_in_flight else None

    def validate(self) -> None:
        """The planner's own invariants; raises `InvariantError`. O(grants)."""
        self._prefill.validate()
        for grant in self._decode:
            if grant in self._prefill or not self._known.get(grant, False):
                raise InvariantError(f"grant {grant} decodes, but it prefills, is unknown, or was not kept alive")
        for grant in self._ends:
            if grant in self._prefill or grant in self._decode or grant not in self._known:
                raise InvariantError(f"grant {grant} ends, but it has chunks that wait, or is unknown")

    # ---- inside --------------------------------------------------------------------------------------------

    def _take_decode(self) -> list[Chunk]:
        slots = self._config.wave_requests_max
        if self._prefill:
            slots = slots - 1 if slots > 1 else int(not self._decode_had_turn)
        chunks: list[Chunk] = []
        while self._decode and len(chunks) < slots:
            grant, position = self._decode.popitem(last=False)
            chunks.append(Chunk(grant, position, 1, last=True, snapshot=False, decode=True))
        self._decode_had_turn = bool(chunks)
        return chunks

    def _take_prefill(self, waves_in_flight: int, slots: int) -> list[Chunk]:
        config = self._config
        waiting = len(self._prefill)
        if not waiting or not slots:
            return []
        budget = self._policy.budget(self._prefill.view(waves_in_flight))
        if not isinstance(budget, TimeBudget):
            if config.spread and waves_in_flight < config.stages:
                slots = min(slots, -(-waiting // (config.stages - waves_in_flight)))
            budget = max(config.alignment_tokens, min(budget, config.wave_tokens_max))
        return self._prefill.take(budget, slots)

    def _take_ends(self) -> tuple[GrantId, ...]:
        ended: list[GrantId] = []
        while self._ends and len(ended) < WAVE_REQUESTS_MAX:
            grant, _ = self._ends.popitem(last=False)
            del self._known[grant]
            ended.append(grant)
        return tuple(ended)
