"""The requests whose prefill is under way: how many, and how much work each of them is."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from operator import mul
from typing import Final

from wavepp.core.ids import GrantId
from wavepp.core.waves.cost import Amount, StageCost, amount

_ALIKE: Final = 0.15
"""Requests whose work varies by less than this (standard deviation over mean) count as equal."""

_SUM_ANEW: Final = 64


@dataclass(frozen=True, slots=True)
class Typical:
    """`requests`: how many are under way, at the recent peak. `work_ms`: of a typical one, on the slowest stage,
    without launches: the mean where all are `alike`; else of the one below the median (the smallest of four). Waves
    that so many of these would fill keep the pipeline full whichever come next; a large one does so by itself.
    `ms_per_token`: mean over all of them. `smallest_ms`: the least work that one of them is.
    """

    requests: float
    work_ms: float
    alike: bool
    ms_per_token: float
    smallest_ms: float


class InFlightWork:
    """Requests from their grant to their first token, wherever their chunks are.

    The peak is taken over the last `memory` looks: where a client sends its next request as soon as it has its answer,
    the number dips for a moment at every answer, and plans must not follow that. When nobody is left it begins anew:
    who comes alone after a burst must not be planned for as one of many.
    """

    def __init__(self, cost: StageCost, memory: int) -> None:
        self._cost = cost
        self._members: dict[GrantId, tuple[Amount, float]] = {}
        self._sorted: list[float] = []
        self._tokens = 0.0
        self._sum = 0.0
        self._squares = 0.0
        self._changes = 0
        self._recent: deque[int] = deque(maxlen=max(1, memory))

    def __len__(self) -> int:
        return len(self._members)

    def add(self, grant: GrantId, start: int, end: int) -> None:
        """A request with prefill [start, end)."""
        self._insert(grant, amount(start, end - start))

    def remove(self, grant: GrantId) -> None:
        """Its prefill is done, or it was given up. Does nothing for who is not there."""
        member = self._members.pop(grant, None)
        if member is None:
            return
        work, ms = member
        del self._sorted[bisect_left(self._sorted, ms)]
        self._tokens -= work.tokens
        self._count(-ms, -ms * ms)
        if not self._members:
            self._recent.clear()

    def reprice(self, cost: StageCost) -> None:
        """The cost has changed. O(members)."""
        self._cost = cost
        members = list(self._members.items())
        self._clear()
        for grant, (work, _) in members:
            self._insert(grant, work)

    def clear(self) -> None:
        """All are gone at once."""
        self._clear()
        self._recent.clear()

    def look(self) -> Typical:
        """What they are like now; there must be one at least. Counts as one of the `memory` looks."""
        present = len(self._members)
        self._recent.append(present)
        mean = self._sum / present
        deviation = math.sqrt(max(0.0, self._squares / present - mean * mean))
        alike = deviation <= _ALIKE * mean
        work = mean if alike else self._sorted[max(0, (present - 3) // 2)]
        return Typical(max(self._recent), work, alike, self._sum / self._tokens, self._sorted[0])

    def _insert(self, grant: GrantId, work: Amount) -> None:
        ms = self._cost.work_ms(work)
        self._members[grant] = (work, ms)
        insort(self._sorted, ms)
        self._tokens += work.tokens
        self._count(ms, ms * ms)

    def _count(self, ms: float, square: float) -> None:
        """Running sums; summed anew now and then, or the rounding of huge requests that left would stay for ever."""
        self._changes += 1
        if self._changes % _SUM_ANEW == 0 or len(self._sorted) <= _SUM_ANEW // 8:
            self._sum = sum(self._sorted)
            self._squares = sum(map(mul, self._sorted, self._sorted))
        else:
            self._sum += ms
            self._squares += square

    def _clear(self) -> None:
        self._members.clear()
        self._sorted.clear()
        self._tokens = self._sum = self._squares = 0.0
