"""How fast waves may grow while a pipeline is under way.

P equal stages take sum(T_i) + (P - 1) max(T_i) for waves of work T_i (a permutation flow shop): a wave that is larger
by D than all that are still on their way leaves the other stages `others` * D without work, at once, and pays that back
by saving launches only as long as such waves are wanted. Nobody knows how long that is: a second request beside a lone
one may be gone in a moment. So the time that growing may waste is a share of what launches take anyway, as with every
choice between renting and buying: then neither costs much more than the better of the two would have.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_SHARE_OF_LAUNCHES: Final = 0.5

_GROWTH_MIN: Final = 0.001
"""Waves may always grow by this part of themselves: they double within 700, whatever a launch is thought to cost."""


class WaveGrowth:
    """Remembers the budgets of the waves that may still be on their way. Shrinking is free."""

    def __init__(self, stages: int) -> None:
        self._recent_ms: deque[float] = deque(maxlen=stages)

    def next_ms(self, wanted_ms: float, launch_ms: float, others: float, waves_in_flight: int) -> float:
        """The budget of the next wave, which counts as issued. `launch_ms`: what a launch costs; `others`: the other
        stages' work in units of the slowest one's.

        The first waves in an empty pipeline, one a stage, may be as large as they like: requests that come together
        are not granted in the same instant.
        """
        if waves_in_flight == 0:
            self.forget()
        recent = self._recent_ms
        if others > 0.0 and len(recent) == recent.maxlen:
            largest = max(recent)
            growth = max(_SHARE_OF_LAUNCHES * launch_ms / others, _GROWTH_MIN * largest)
            wanted_ms = min(wanted_ms, largest + growth)
        recent.append(wanted_ms)
        return wanted_ms

    def repriced(self, factor: float) -> None:
        """What was issued is now thought to take `factor` times as long."""
        self._recent_ms = deque((factor * one for one in self._recent_ms), self._recent_ms.maxlen)

    def forget(self) -> None:
        """Nothing is under way."""
        self._recent_ms.clear()
