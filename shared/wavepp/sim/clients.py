"""Clients in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from wavepp.sim.clock import VirtualClock

_A = TypeVar("_A")


class ClosedLoop(Generic[_A]):
    """`concurrency` clients, all there at the start, each of which asks again as soon as it has its answer.

    Whoever drives it calls `answered` once for every answer.
    """

    def __init__(self, clock: VirtualClock, asks: Iterator[_A], concurrency: int, submit: Callable[[_A], None]) -> None:
        self._clock = clock
        self._asks = asks
        self._submit = submit
        for _ in range(concurrency):
            self.answered()

    def answered(self) -> None:
        """A client is free."""
        self._clock.after(0.0, lambda: self._submit(next(self._asks)))


def replay(clock: VirtualClock, timed: Iterable[tuple[float, _A]], speed: float, submit: Callable[[_A], None]) -> None:
    """Open loop: every request at its own time (ms), `speed` times as fast."""
    for time_ms, ask in timed:
        clock.at(time_ms / speed, lambda ask=ask: submit(ask))  # type: ignore[misc]
