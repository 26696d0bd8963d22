"""Many runs of a simulation at a time, in processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
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

    `jobs`: processes, 0 = one a core. The first error of a call ends all of it at once and is raised. A process that is
    killed is a WaveppError.
    """
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(processes(jobs), max(1, len(calls))), initializer=_belong_to_the_parent) as pool:
        try:
            pending = [pool.submit(function, *call) for call in calls]
            for done, future in enumerate(as_completed(pending), 1):
                future.result()
                progress(done, len(calls))
            return [future.result() for future in pending]
        except BaseException as error:
            # The pool itself would wait for what is running, which may take minutes.
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            if isinstance(error, BrokenProcessPool):
                raise WaveppError(
                    "a process that simulated was killed, perhaps for lack of memory; try fewer jobs"
                ) from error
            raise


def _belong_to_the_parent() -> None:
    """Ctrl-C reaches every process of a terminal; the parent ends the others. Without a parent nobody would."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.join,), daemon=True).start()


def _end_after(wait: Callable[[], None]) -> None:
    wait()
    os._exit(1)
