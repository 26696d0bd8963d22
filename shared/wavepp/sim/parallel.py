"""Many runs of a simulation at a time, in processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar, TypeVarTuple

from wavepp.core.errors import WaveppError

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


def processes(jobs: int) -> int:
    """`jobs`, or with 0 one a core that this process may use."""
    return jobs or max(1, len(os.sched_getaffinity(0)))


def run_all(
    function: Callable[[*Given], Result],
    calls: Sequence[tuple[*Given]],
    jobs: int,
    progress: Callable[[int, int], None],
) -> list[Result]:
    """`function` with each of `calls`, begun in this order; results in the same order. `progress`: (done, in all).

    `jobs`: processes, 0 = one a core. The first error ends all of it and is raised; WaveppError when a process died.
    """
    pool = ProcessPoolExecutor(min(processes(jobs), max(1, len(calls))), initializer=_end_silently_on_interrupt)
    try:
        pending = [pool.submit(function, *call) for call in calls]
        for done, future in enumerate(as_completed(pending), 1):
            future.result()
            progress(done, len(calls))
    except BrokenProcessPool as error:
        raise WaveppError("a process that simulated was killed, perhaps for lack of memory; try fewer jobs") from error
    finally:
        pool.shutdown(cancel_futures=True)
    return [future.result() for future in pending]


def _end_silently_on_interrupt() -> None:
    """Ctrl-C reaches every process of a terminal; only the parent has something to say about it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as for the parent of a job in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
