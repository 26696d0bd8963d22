"""Signals that ask a supervisor to stop, as something that its main thread can look at and wait for."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequestedError(Exception):
    """Somebody wants this process to end; no fault."""


class StopSignals:
    """While entered, SIGINT, SIGTERM and SIGHUP are requests to stop.

    `on_first` and `on_second` are called at the first and at the second one, inside the signal handler.
    """

    def __init__(self) -> None:
        self.on_first: Callable[[], None] | None = None
        self.on_second: Callable[[], None] | None = None
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}
        # A pipe, not an event: taking a lock in a signal handler may wait for the very code it interrupted.
        self._read, self._write = -1, -1

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        for number in SIGNALS:
            # Under nohup a terminal that closes is no reason to stop.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self._count > 0

    def wait(self, seconds: float) -> bool:
        """Wait until a signal comes, at most so long; whether one came."""
        if not self._count:
            select.select([self._read], [], [], seconds)
        return self._count > 0

    def check(self) -> None:
        """Raises StopRequestedError when a signal came."""
        if self._count:
            raise StopRequestedError

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            os.write(self._write, b"x")
            if self.on_first is not None:
                self.on_first()
        elif self.on_second is not None:
            self.on_second()
