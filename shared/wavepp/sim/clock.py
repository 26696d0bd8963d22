"""Virtual time: what happens when, in milliseconds, with no waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from wavepp.core.errors import InvariantError

_EVENTS_MAX: Final = 100_000_000


class VirtualClock:
    """Runs what was scheduled in order of time; what falls on the same moment runs in the order of scheduling."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._order = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time_ms: float, happen: Callable[[], None]) -> None:
        """Not before now."""
        if time_ms < self.now_ms:
            raise InvariantError(f"{time_ms} ms has passed; it is {self.now_ms} ms")
        self._order += 1
        heapq.heappush(self._events, (time_ms, self._order, happen))

    def after(self, delay_ms: float, happen: Callable[[], None]) -> None:
        """`delay_ms` from now, at least 0."""
        self.at(self.now_ms + delay_ms, happen)

    def run(self, until: Callable[[], bool], events_max: int = _EVENTS_MAX) -> None:
        """Until the condition holds, which is looked at after every event, or nothing is left to happen."""
        for _ in range(events_max):
            if not self._events or until():
                return
            self.now_ms, _, happen = heapq.heappop(self._events)
            happen()
        raise InvariantError(f"no end after {events_max} events, at {self.now_ms} ms")
