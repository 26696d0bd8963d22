"""When to send a heartbeat, and when to give a silent peer up: one timer of the event loop.

The loops that we run on serve sockets before timers, so bytes that waited while the loop was stalled are heard
before the silence is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Keepalive:
    """Watches both directions of one link. `spoke` and `heard` are cheap; call them for every message."""

    def __init__(
        self, heartbeat_s: float, silence_s: float, beat: Callable[[], None], silent: Callable[[float], None]
    ) -> None:
        """`beat` is called when nothing was sent for `heartbeat_s`, and must lead to a call of `spoke`;
        `silent` once, with the seconds, when nothing was heard for `silence_s`."""
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._beat = beat
        self._silent = silent
        self._loop = asyncio.get_running_loop()
        self._spoke_at = self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def spoke(self) -> None:
        self._spoke_at = self._loop.time()

    def heard(self) -> None:
        self._heard_at = self._loop.time()

    def start(self) -> None:
        """Watch from now on."""
        due = min(self._spoke_at + self._heartbeat_s, self._heard_at + self._silence_s)
        self._timer = self._loop.call_at(due, self._on_timer)

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        now = self._loop.time()
        if now >= self._heard_at + self._silence_s:
            self._timer = None
            self._silent(now - self._heard_at)
            return
        if now >= self._spoke_at + self._heartbeat_s:
            self._beat()
        if self._timer is not None:  # `beat` may have found out that the link is lost
            self.start()
