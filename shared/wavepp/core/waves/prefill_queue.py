"""The requests whose prefill waits for waves, and how a wave is filled from them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

from wavepp.core.errors import InvariantError
from wavepp.core.ids import GrantId
from wavepp.core.waves.policies import QueueView
from wavepp.core.waves.time_packing import TimeBudget, fill_by_time
from wavepp.core.waves.types import Chunk, PlannerConfig


class PrefillWork:
    """Prefill of one grant that is in no wave yet: [position, end). Its work began at `reused`."""

    __slots__ = ("cut", "end", "grant", "position", "reused", "snapshot_at")

    def __init__(self, grant: GrantId, start: int, end: int, cut: int) -> None:
        self.grant = grant
        self.reused = start
        self.position = start
        self.end = end
        self.cut = cut
        """Where a chunk must end, whatever would fit."""
        self.snapshot_at = start
        """Where the latest snapshot is or will be."""

    @property
    def remaining(self) -> int:
        return self.end - self.position

    @property
    def stop(self) -> int:
        """Where a chunk that fits whole ends."""
        return self.cut if self.position < self.cut else self.end


class PrefillQueue:
    """First come first served, with the rules of packing that `WavePlanner` states.

    Beside the requests it keeps their remaining tokens sorted and summed, so that a policy need not walk
    them.
    """

    def __init__(self, config: PlannerConfig) -> None:
        self._config = config
        self._fragment_min = min(config.wave_tokens_min, config.wave_tokens_max // 2)
        # Not a plain dictionary: taking from the front of one scans over what was removed there before.
        self._works: OrderedDict[GrantId, PrefillWork] = OrderedDict()
        self._sizes: list[int] = []
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, grant: object) -> bool:
        return grant in self._works

    @property
    def tokens(self) -> int:
        """Tokens that wait, of all requests."""
        return self._tokens

    def view(self, waves_in_flight: int) -> QueueView:
        """What a policy may see. Valid until the queue changes."""
        return QueueView(self._sizes, self._tokens, waves_in_flight)

    def add(self, grant: GrantId, start: int, end: int) -> None:
        """Append [start, end), start < end, of a grant that is not in the queue."""
        # Has no effect where it is not above the start.
        cut = self._align_down(end) if self._config.snapshot_interval_tokens else end
        self._works[grant] = PrefillWork(grant, start, end, cut)
        self._count(0, end - start)

    def drop(self, grant: GrantId) -> None:
        """Forget what waits of the grant, if anything does."""
        work = self._works.pop(grant, None)
        if work is not None:
            self._count(work.remaining, 0)

    def clear(self) -> None:
        self._works.clear()
        self._sizes.clear()
        self._tokens = 0

    def take(self, budget: int | TimeBudget, requests_max: int) -> list[Chunk]:
        """Fill a wave of at most `budget` tokens (>= the alignment), or of about so much time, and `requests_max`
        (>= 1) chunks.

        At least one chunk when anything waits. Only a fixed grid may exceed a budget of tokens, and nothing M.
        """
        if isinstance(budget, TimeBudget):
            chosen = fill_by_time(self._works.values(), budget, self._config, requests_max)
        else:
            chosen = self._choose(budget, requests_max)
        return [self._advance(work, length) for work, length in chosen]

    def validate(self) -> None:
        """Raises `InvariantError`. O(requests)."""
        remaining = sorted(work.remaining for work in self._works.values())
        if remaining != self._sizes or sum(remaining) != self._tokens:
            raise InvariantError(f"{self._tokens} tokens wait, sizes {self._sizes[:8]}; really {remaining[:8]}")
        if remaining and remaining[0] < 1:
            raise InvariantError("a request without tokens waits for a wave")

    # ---- inside --------------------------------------------------------------------------------------------

    def _choose(self, budget: int, requests_max: int) -> list[tuple[PrefillWork, int]]:
        config = self._config
        chunk_max = budget
        if config.chunk_share_max < 1.0 and len(self._works) > 1:
            chunk_max = max(config.alignment_tokens, int(budget * config.chunk_share_max))
        # A share cuts fragments on purpose, so one that fills its share is not too small.
        fragment_min = min(max(self._fragment_min, -(-budget // 2)), chunk_max)
        chosen: list[tuple[PrefillWork, int]] = []
        left = budget
        passed_over = 0
        for work in self._works.values():
            length = self._chunk_length(work, left, chunk_max, fragment_min, first=not chosen)
            if length:
                chosen.append((work, length))
                left -= length
                if left <= 0 or len(chosen) >= requests_max:
                    break
            else:
                passed_over += 1
                if passed_over > config.fill_ahead_max:
                    break
        return chosen

    def _chunk_length(self, work: PrefillWork, left: int, chunk_max: int, fragment_min: int, *, first: bool) -> int:
        """Tokens of the request's next chunk; 0 when it is passed over, which never happens to the first."""
        config = self._config
        if config.fixed_grid:
            grid = config.wave_tokens_max
            length = min(work.stop, (work.position // grid + 1) * grid) - work.position
            return length if first or length <= left else 0
        room = min(left, chunk_max)
        whole = work.stop - work.position
        if whole <= room:
            return whole
        if not first and left < fragment_min:
            return 0
        # The first has room for the alignment or more, so its cut lies beyond even an unaligned position.
        return max(0, self._align_down(work.position + room) - work.position)

    def _advance(self, work: PrefillWork, length: int) -> Chunk:
        start = work.position
        self._count(work.remaining, work.remaining - length)
        work.position += length
        last = work.position == work.end
        if last:
            del self._works[work.grant]
        interval = self._config.snapshot_interval_tokens
        snapshot = (
            interval > 0
            and work.position % self._config.alignment_tokens == 0
            and (work.position == work.cut or work.position - work.snapshot_at >= interval)
        )
        if snapshot:
            work.snapshot_at = work.position
        return Chunk(work.grant, start, length, last, snapshot, decode=False)

    def _count(self, before: int, after: int) -> None:
        """One request's remaining tokens changed; 0: it does not wait."""
        if before:
            del self._sizes[bisect_left(self._sizes, before)]
        if after:
            insort(self._sizes, after)
        self._tokens += after - before

    def _align_down(self, tokens: int) -> int:
        return tokens // self._config.alignment_tokens * self._config.alignment_tokens
