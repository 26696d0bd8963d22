"""What a transport does for a session: move bytes, and end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol


class Wire(Protocol):
    """One connection. Incoming messages go to the session, in three steps: `begin`, `header`, `arrived`."""

    @property
    def gone(self) -> asyncio.Event:
        """Set when the connection is torn down and its buffers are free."""

    def post(self, prologue: bytes, header: bytes) -> None:
        """Send a small message, in order with other small messages. Never waits and never raises."""

    async def write(self, prologue: bytes, header: bytes, payload: Sequence[memoryview]) -> None:
        """Send a frame; returns when the buffers may be reused. Raises LinkLostError as soon as it is lost."""

    def abort(self) -> None:
        """Tear down at once; sets `gone` soon. Idempotent."""
