"""The executor thread: runs frozen jobs strictly in order, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wavepp.core.errors import InvariantError
from wavepp.core.ids import StageIndex, WaveId
from wavepp.core.stage.events import JobDone
from wavepp.core.waves.step_bound import StepBound
from wavepp.core.waves.types import StepTime
from wavepp.infra.faults import fatal_faults
from wavepp.stage.model.base import Job, JobResult, StageModel
from wavepp.stage.reruns import run_isolating

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 10.0

RAISED_ALONE_MAX: Final = 16
"""Chunks that raise alone, one after another, before it is the stage's fault and no longer that of requests."""


@dataclass(frozen=True, slots=True)
class ExecutorJob:
    """A job with when its wave arrived here (wall clock)."""

    wave: WaveId
    arrived_ns: int
    job: Job


@dataclass(frozen=True, slots=True)
class RunningStep:
    """What runs now. `number` counts runs: waves are numbered anew in each epoch, and run again when they raise."""

    number: int
    wave: WaveId
    tokens: int


class ExecutorThread:
    """Owns the thread. Results come back on the event loop, in the order of the jobs.

    `on_done` is called on the loop. A job that raises is run again in parts, and fails the grants that raise alone,
    with the error's text as reason. Where everything does, the process ends: a new one may do better. `bound` learns,
    on the loop too, from the steps that went through at once.
    """

    def __init__(
        self, model: StageModel, stage: StageIndex, on_done: Callable[[JobDone], None], bound: StepBound
    ) -> None:
        self._model = model
        self._stage = stage
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[ExecutorJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self.running: RunningStep | None = None
        self.bound = bound
        self._runs = 0
        self._raised_alone = 0
        self.busy_ns = 0
        self.tokens = 0
        """Of all steps, failed ones included."""
        self._thread.start()

    def submit(self, job: ExecutorJob) -> None:
        """Hand over a job; the sequencer bounds how many wait."""
        self._jobs.put(job)

    async def close(self) -> None:
        """End the thread after the jobs that it has. It is a daemon: a job that hangs does not keep the process."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, STOP_TIMEOUT_S)

    def _run(self) -> None:
        while (work := self._jobs.get()) is not None:
            start_ns, began = time.time_ns(), time.perf_counter_ns()
            result, raised = self._attempt(work.job)
            duration_ns = time.perf_counter_ns() - began
            step = StepTime(
                self._stage,
                start_ns,
                duration_ns,
                max(0, start_ns - work.arrived_ns),
                # What was run more than once would teach a wrong cost.
                0 if raised else sum(c.length for c in work.job.chunks),
            )
            self.running = None
            self.busy_ns += duration_ns
            self.tokens += sum(c.length for c in work.job.chunks)
            try:
                if self._raised_alone >= RAISED_ALONE_MAX:
                    self._loop.call_soon_threadsafe(_give_up, f"wave {work.wave}: {result.failed[-1].reason}")
                    return
                self._loop.call_soon_threadsafe(self._report, _done(work, step, result))
            except RuntimeError:
                # The loop is closed: the process ends, and nobody waits for this.
                return

    def _report(self, done: JobDone) -> None:
        if done.step.tokens:
            self.bound.observe(done.step.tokens, done.step.duration_ns / 1e6)
        self._on_done(done)

    def _run_model(self, job: Job) -> JobResult:
        self._runs += 1
        self.running = RunningStep(self._runs, WaveId(job.wave), sum(c.length for c in job.chunks))
        return self._model.run(job)

    def _attempt(self, job: Job) -> tuple[JobResult, bool]:
        """The result, and whether anything raised."""
        if not job.chunks:
            return JobResult((), {}, (), 0), False
        outcome = run_isolating(self._run_model, job, alone_max=RAISED_ALONE_MAX)
        self._raised_alone = outcome.raised_alone + (0 if outcome.succeeded else self._raised_alone)
        if outcome.raised:
            _log.error(
                "a wave raised",
                exc_info=outcome.raised[0],
                extra={"wave": job.wave, "chunks": len(job.chunks), "runs_that_raised": len(outcome.raised)},
            )
        return outcome.result, bool(outcome.raised)


def _done(work: ExecutorJob, step: StepTime, result: JobResult) -> JobDone:
    failed = tuple((f.grant, f.reason) for f in result.failed)
    return JobDone(work.wave, step, failed, result.tensors, tuple(result.samples.items()))


def _give_up(reason: str) -> None:
    with fatal_faults("the executor"):
        raise InvariantError(
            f"{RAISED_ALONE_MAX} requests, one after another, raised on this stage and nothing went through: "
            f"{reason}; the process ends, so that another one can take its place"
        )
