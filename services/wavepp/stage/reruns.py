"""A wave that raised is run again in parts, until what raises is a chunk alone: only its grant fails.

A job may be run again: it reads and writes the same slots of the cache, and a chunk's rows, samples and state depend on
nothing of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from wavepp.core.wire.types import NamedTensor, TensorSpec
from wavepp.stage.model.base import Job, JobFailure, JobResult

RUNS_MAX: Final = 64
"""Of one wave; four culprits among 128 chunks need fewer."""

_REASON_CHARS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """`result`: of all chunks together, those that raised alone among its `failed`.

    `raised`: one error for each run that raised, the first for the whole wave. `raised_alone`: chunks that raised with
    nothing but them in the run, since the last run that went through. `succeeded`: whether any run went through.
    """

    result: JobResult
    raised: tuple[Exception, ...]
    raised_alone: int
    succeeded: bool


def run_isolating(run: Callable[[Job], JobResult], job: Job, *, alone_max: int, runs_max: int = RUNS_MAX) -> JobOutcome:
    """Run a job, in parts where it raises.

    Gives up, and fails every chunk that no run has settled, after `runs_max` runs, or when `alone_max` chunks one after
    another raised alone without one that went through.
    """
    waiting = [job]
    done: list[JobResult] = []
    failed: list[JobFailure] = []
    raised: list[Exception] = []
    raised_alone = 0
    runs = 0
    while waiting:
        part = waiting.pop()
        if raised and (runs >= runs_max or raised_alone >= alone_max):
            failed.extend(JobFailure(chunk.grant, _reason(raised[-1])) for chunk in part.chunks)
            continue
        runs += 1
        try:
            done.append(run(part))
            raised_alone = 0
        except Exception as error:  # noqa: BLE001 - whatever the model raises is some chunk's, or the stage's, fault
            raised.append(error)
            if len(part.chunks) > 1:
                waiting.extend(reversed(halves(part)))
            else:
                raised_alone += 1
                failed.extend(JobFailure(chunk.grant, _reason(error)) for chunk in part.chunks)
    return JobOutcome(join_results(done, failed), tuple(raised), raised_alone, bool(done))


def halves(job: Job) -> tuple[Job, Job]:
    """Two jobs with the chunks of one, in order; both read the same rows of what came in."""
    middle = len(job.chunks) // 2
    return replace(job, chunks=job.chunks[:middle]), replace(job, chunks=job.chunks[middle:])


def join_results(parts: Sequence[JobResult], failed: Sequence[JobFailure] = ()) -> JobResult:
    """What one run of all parts' chunks, in this order, would have given; and what failed besides."""
    return JobResult(
        tensors=parts[0].tensors if len(parts) == 1 else _join_rows([part.tensors for part in parts if part.tensors]),
        samples={grant: chosen for part in parts for grant, chosen in part.samples.items()},
        failed=(*(failure for part in parts for failure in part.failed), *failed),
        duration_ns=sum(part.duration_ns for part in parts),
    )


def _join_rows(parts: Sequence[tuple[NamedTensor, ...]]) -> tuple[NamedTensor, ...]:
    """Tensor by tensor, the rows of all parts one after another."""
    joined: list[NamedTensor] = []
    for same in zip(*parts, strict=True):
        first = same[0][0]
        rows = sum(spec.shape[0] for spec, _ in same)
        data = memoryview(b"".join(buffer for _, buffer in same))
        joined.append((TensorSpec(first.name, first.dtype, (rows, *first.shape[1:])), data))
    return tuple(joined)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_REASON_CHARS_MAX]
