"""Clients that wait for a request: one call each, from the door to the answer."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from wavepp.core.errors import WaveppError
from wavepp.core.ids import RequestId
from wavepp.core.router.requests import RequestOutcome
from wavepp.core.waves.types import ChosenToken
from wavepp.router.timeline import WaveEntry

TRACED_WAVES_MAX: Final = 4096


@dataclass(slots=True)
class Call:
    """What a client waits for. `waves` is kept only for traced requests (`traced`)."""

    request: RequestId
    traced: bool
    tokens: deque[tuple[int, ChosenToken]] = field(default_factory=deque)
    outcome: RequestOutcome | None = None
    error: WaveppError | None = None
    waves: deque[WaveEntry] = field(default_factory=lambda: deque(maxlen=TRACED_WAVES_MAX))
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def token(self, index: int, chosen: ChosenToken) -> None:
        """A token came; at most the output budget of them."""
        self.tokens.append((index, chosen))
        self.changed.set()

    def finish(self, outcome: RequestOutcome) -> None:
        """All tokens are there."""
        self.outcome = outcome
        self.changed.set()

    def fail(self, error: WaveppError) -> None:
        """There will be no more tokens."""
        self.error = error
        self.changed.set()

    async def result(self) -> RequestOutcome:
        """Wait for the outcome; raises what went wrong."""
        while True:
            if self.error is not None:
                raise self.error
            if self.outcome is not None:
                return self.outcome
            self.changed.clear()
            await self.changed.wait()

    async def next_token(self) -> tuple[int, ChosenToken] | None:
        """The next token, or None after the last one; raises what went wrong."""
        while not self.tokens:
            if self.error is not None:
                raise self.error
            if self.outcome is not None:
                return None
            self.changed.clear()
            await self.changed.wait()
        return self.tokens.popleft()
