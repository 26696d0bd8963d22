"""How long a step may take before it counts as hung: learned from the steps of late, never below a floor."""

from __future__ import annotations

from collections import deque
from typing import Final

FACTOR: Final = 20.0
"""Far above what other work on the machine, a cold cache or a long context add to a step of the same size."""
STEPS_KEPT: Final = 256


class StepBound:
    """`floor_ms`: no step counts as hung before. `unlearned_ms`: the most that is waited, beyond what steps of late
    justify, for a step that is larger than all of these; also the bound while there are none.
    """

    def __init__(self, floor_ms: float, unlearned_ms: float) -> None:
        self._floor_ms = floor_ms
        self._unlearned_ms = max(floor_ms, unlearned_ms)
        self._steps: deque[tuple[int, float]] = deque(maxlen=STEPS_KEPT)

    def observe(self, tokens: int, duration_ms: float) -> None:
        """A step of so many tokens took so long."""
        self._steps.append((max(1, tokens), duration_ms))

    @property
    def learned(self) -> tuple[int, float]:
        """Tokens of the largest and milliseconds of the slowest step of late, for another bound to `observe`; (0, 0.0)
        while there are none.
        """
        if not self._steps:
            return 0, 0.0
        return max(size for size, _ in self._steps), max(duration_ms for _, duration_ms in self._steps)

    def limit_ms(self, tokens: int) -> float:
        """How long a step of so many tokens may take."""
        if not self._steps:
            return self._unlearned_ms
        largest, slowest_ms = self.learned
        learned_ms = max(self._floor_ms, FACTOR * slowest_ms)
        if tokens <= largest:
            return learned_ms
        return max(learned_ms, min(learned_ms * tokens / largest, self._unlearned_ms))
