"""Two contenders on the same cores by turns: while one works, the processes of the other are stopped.

On a machine that is shared with others a process may be twice as fast in one minute as in the next. Turns of seconds
give both the same weather, where windows one after the other compare the weather as well.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

TURN_S = 2.0
"""Well below what makes a process count as dead; long against a step, of which one is cut in two at each end."""


@dataclass(slots=True)
class Side:
    """`work` blocks until all is done; it is done by the processes `pids`, and waits when they are stopped."""

    work: Callable[[], object]
    pids: Sequence[int]
    active_s: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def run(self) -> None:
        """For a thread of its own."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised by `by_turns`
            self.error = error
        finally:
            self.done.set()


def by_turns(sides: Sequence[Side], turn_s: float = TURN_S) -> list[float]:
    """Run the work of all sides, one side at a time; the seconds that each was at work until it was done.

    Raises what the work of a side raised. No process stays stopped.
    """
    threads = [threading.Thread(target=side.run, daemon=True) for side in sides]
    try:
        for side in sides:
            _signal(side.pids, signal.SIGSTOP)
        for thread in threads:
            thread.start()
        while waiting := [side for side in sides if not side.done.is_set()]:
            for side in waiting:
                _signal(side.pids, signal.SIGCONT)
                began = time.monotonic()
                side.done.wait(turn_s)
                side.active_s += time.monotonic() - began
                _signal(side.pids, signal.SIGSTOP)
    finally:
        for side in sides:
            _signal(side.pids, signal.SIGCONT)
    for side in sides:
        if side.error is not None:
            raise side.error
    return [side.active_s for side in sides]


def _signal(pids: Iterable[int], which: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it died; whoever waits for its work hears of it
            os.kill(pid, which)
