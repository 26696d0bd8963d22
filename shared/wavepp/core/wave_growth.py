"""How fast waves may grow while a pipeline is under way.

P equal stages take sum(T_i) + (P - 1) max(T_i) for waves of work T_i (a permutation flow shop): a wave that is larger
by D than those before it leaves the other stages `others` * D without work, at once, and pays that back by saving
launches only as long as such waves are wanted. Nobody knows how long that is: a second request beside a lone one may be
gone in a moment. So the time that growing wastes is held to a share of what launches take anyway, as with every choice
between renting and buying: then neither can cost much more than the better of the two would have.
"""

from __future__ import annotations

from typing import Final

_SHARE_OF_LAUNCHES: Final = 0.5


class WaveGrowth:
    """Remembers the size of the last wave. Shrinking is free."""

    def __init__(self) -> None:
        self._last_ms = 0.0
        self._waves = 0

    def limited(self, work_ms: float, launch_ms: float, others: float) -> float:
        """The work of the next wave, of which `work_ms` is wanted; `launch_ms` is what a launch costs, `others` what
        the other stages' work is in units of the slowest one's.

        The first waves, as many as it takes to fill the pipeline, may be as large as they like: requests that come
        together are not granted in the same instant.
        """
        self._waves += 1
        if others > 0.0 and self._waves > others + 1.0:
            work_ms = min(work_ms, self._last_ms + _SHARE_OF_LAUNCHES * launch_ms / others)
        self._last_ms = work_ms
        return work_ms

    def repriced(self, factor: float) -> None:
        """The same work is now said to take `factor` times as long."""
        self._last_ms *= factor

    def idle(self) -> None:
        """Nothing is under way: there is no last wave."""
        self._last_ms = 0.0
        self._waves = 0
