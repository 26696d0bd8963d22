"""Ends a stage whose step hangs: nothing else can, and while it lives nobody takes its place."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final

from wavepp.stage.executor import ExecutorThread

_log = logging.getLogger(__name__)

TICK_S: Final = 0.5
LEAVE_TIMEOUT_S: Final = 2.0
EXIT_HUNG: Final = 1


async def watch_steps(executor: ExecutorThread, leave: Callable[[], Awaitable[None]]) -> None:
    """Watch for ever; a task of the process. A step that takes longer than its bound ends the process, after a dump of
    all stacks and `leave`, which gives up the stage's place.

    Time is counted in ticks of the event loop: while the whole process was paused, no step hung.
    """
    watched, age_ms, last = None, 0.0, time.monotonic()
    while True:
        await asyncio.sleep(TICK_S)
        now, running = time.monotonic(), executor.running
        elapsed_ms, last = min(now - last, 2 * TICK_S) * 1e3, now
        if running is None or running != watched:
            watched, age_ms = running, 0.0
            continue
        age_ms += elapsed_ms
        limit_ms = executor.bound.limit_ms(running.tokens)
        if age_ms > limit_ms:
            _log.critical(
                "a step of %d tokens has taken %.0f s, its bound is %.0f s: this stage ends",
                running.tokens,
                age_ms / 1e3,
                limit_ms / 1e3,
                extra={"wave": running.wave},
            )
            await _end(leave)


async def _end(leave: Callable[[], Awaitable[None]]) -> None:
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
    try:
        async with asyncio.timeout(LEAVE_TIMEOUT_S):
            await leave()
    except TimeoutError:
        _log.warning("the stage's place was not given up in time, its lease ends by itself")
    finally:
        logging.shutdown()
        os._exit(EXIT_HUNG)
