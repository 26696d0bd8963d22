"""When a stage tells the router what room it has: only while somebody was refused for want of it."""

from __future__ import annotations

from wavepp.core.cache.types import Missing, Room


class RoomReports:
    """Of one stage. Else nobody needs to know, and room changes with every wave."""

    def __init__(self) -> None:
        self._short: dict[str, int] = {}
        self._refused_now = False
        self._number = -1

    def new_epoch(self) -> None:
        """Nobody waits any more."""
        self._short.clear()

    def refused(self, answer: Missing) -> None:
        """Somebody waits for room here."""
        self._short[answer.pool] = max(self._short.get(answer.pool, 0), answer.available_needed)
        self._refused_now = True

    def after_event(self, room: Room) -> Room | None:
        """What to report, if anything, now that this is the room."""
        reported, self._number = self._number, room.number
        if self._refused_now:
            # The refusal goes out with this very room's number: only what changes after it is news.
            self._refused_now = False
            return None
        if not self._short or room.number == reported:
            return None
        # The largest need of each pool counts: those who need less hear on the way.
        self._short = {pool: need for pool, need in self._short.items() if room.available.get(pool, 0) < need}
        return room
