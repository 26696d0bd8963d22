"""The pause between tries against a peer that is unavailable: doubling, bounded, jittered."""

from __future__ import annotations

import random
from typing import Final

FIRST_S: Final = 0.1
MAX_S: Final = 2.0


class Backoff:
    """`next_s()` gives the next pause; `reset()` after a success. Half of each pause is random.

    Without the random part, the processes that lost the same peer together would come back together, for ever.
    """

    def __init__(self, first_s: float = FIRST_S, max_s: float = MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._ceiling_s = first_s

    def next_s(self) -> float:
        """Seconds to wait now: between half of and the full ceiling, which then doubles."""
        pause_s = self._ceiling_s * random.uniform(0.5, 1.0)
        self._ceiling_s = min(self._max_s, self._ceiling_s * 2)
        return pause_s

    def reset(self) -> None:
        """The peer answered: begin with the shortest pause again."""
        self._ceiling_s = self._first_s
