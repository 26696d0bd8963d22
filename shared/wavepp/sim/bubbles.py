"""Where a stage's time went: work, launches, and bubbles by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavepp.core.waves.cost import StageCost
from wavepp.sim.results import WaveSpan


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Shares of the window on one stage; they sum to 1.

    `starved`: nothing was on its way, stage 0 had been idle: all requests under way were in later stages, or there was
    none. `uneven`: the wave was on its way but late: earlier stages took longer for it than this one for the wave
    before.
    """

    work: float
    launches: float
    starved: float
    uneven: float

    @property
    def idle(self) -> float:
        """Neither work nor launches."""
        return self.starved + self.uneven


def time_shares(spans: Sequence[WaveSpan], stage: int, cost: StageCost, start_ms: float, end_ms: float) -> TimeShares:
    """Of one stage between two moments. `spans`: in the order of waves."""
    window = end_ms - start_ms
    busy = launches = starved = uneven = 0.0
    first_end = 0.0
    gap_at_first: dict[int, float] = {}
    before = start_ms
    for span in spans:
        if span.stage == 0:
            gap_at_first[span.wave] = max(0.0, span.start_ms - first_end)
            first_end = span.end_ms
        if span.stage != stage:
            continue
        begin, end = max(span.start_ms, start_ms), min(span.end_ms, end_ms)
        if end <= begin:
            continue
        launch = min(cost.launch_ms, end - begin)
        launches += launch
        busy += end - begin - launch
        gap = max(0.0, begin - before)
        idle_first = min(gap, gap_at_first.get(span.wave, 0.0))
        starved += idle_first
        uneven += gap - idle_first
        before = end
    starved += max(0.0, end_ms - before)
    return TimeShares(busy / window, launches / window, starved / window, uneven / window)
