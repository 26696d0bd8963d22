"""A wave that raises is run again in parts: only the chunks that raise alone fail, and the others never notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import InvariantError
from wavepp.core.ids import GrantId, StageIndex, WaveId
from wavepp.core.stage.events import JobDone
from wavepp.core.waves.step_bound import StepBound
from wavepp.core.waves.types import ChosenToken
from wavepp.core.wire.types import TensorSpec
from wavepp.stage.executor import RAISED_ALONE_MAX, ExecutorJob, ExecutorThread, RunningStep
from wavepp.stage.model.base import Job, JobChunk, JobFailure, JobResult, Sampling
from wavepp.stage.reruns import RUNS_MAX, JobOutcome, run_isolating

Run = Callable[[Job], JobResult]


def make_job(lengths: Collection[int], skipped: Collection[int] = ()) -> Job:
    """Chunk i is of grant i + 1; rows of the skipped ones came in, but have no chunk."""
    chunks, row = [], 0
    for i, length in enumerate(lengths):
        if i not in skipped:
            chunks.append(JobChunk(GrantId(i + 1), 0, length, (i,), row, Sampling()))
        row += length
    rows = np.arange(row * 3, dtype="<u2").tobytes()
    return Job(7, tuple(chunks), row, tensors=((TensorSpec("hidden", "uint16", (row, 3)), rows),))


class Copier:
    """Gives out the rows that came in. Raises where `raises` says so of the grants in a run; `nonfinite` ones fail."""

    def __init__(self, raises: Callable[[set[int]], bool], nonfinite: Collection[int] = ()) -> None:
        self.runs = 0
        self._raises = raises
        self._nonfinite = nonfinite

    def __call__(self, job: Job) -> JobResult:
        self.runs += 1
        if self._raises({c.grant for c in job.chunks}):
            raise RuntimeError(f"{len(job.chunks)} chunks")
        rows = np.frombuffer(job.tensors[0][1], dtype="<u2").reshape(job.rows_in, 3)
        good = [c for c in job.chunks if c.grant not in self._nonfinite]
        out = np.concatenate([rows[:0], *(rows[c.row : c.row + c.length] for c in good)])
        return JobResult(
            ((TensorSpec("hidden", "uint16", out.shape), out.tobytes()),),
            {c.grant: ChosenToken(c.grant, 0.0) for c in good},
            tuple(JobFailure(c.grant, "not finite") for c in job.chunks if c.grant in self._nonfinite),
            1,
        )


def isolate(run: Run, job: Job, alone_max: int = 1000) -> JobOutcome:
    return run_isolating(run, job, alone_max=alone_max)


def rows_of(result: JobResult) -> list[bytes]:
    return [bytes(data) for _, data in result.tensors]


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    culprits=st.sets(st.integers(1, 40), max_size=3),
    nonfinite=st.sets(st.integers(1, 40), max_size=3),
    skipped=st.sets(st.integers(1, 39), max_size=3),
)
def test_only_the_culprits_fail_and_the_rest_is_as_if_they_had_not_been_there(
    lengths: list[int], culprits: set[int], nonfinite: set[int], skipped: set[int]
) -> None:
    job = make_job(lengths, skipped)
    copier = Copier(lambda grants: bool(grants & culprits), nonfinite)
    outcome = isolate(copier, job)
    without = make_job(lengths, skipped | {c - 1 for c in culprits})
    expected = Copier(lambda grants: False, nonfinite)(without)
    assert outcome.result.samples == expected.samples
    assert list(outcome.result.samples) == list(expected.samples)
    present = culprits & {c.grant for c in job.chunks}
    failed = {f.grant: f.reason for f in outcome.result.failed}
    assert failed == {c.grant: "not finite" for c in without.chunks if c.grant in nonfinite} | {
        GrantId(c): "RuntimeError: 1 chunks" for c in present
    }
    if without.chunks:
        assert outcome.result.tensors[0][0].shape == expected.tensors[0][0].shape
        assert rows_of(outcome.result) == rows_of(expected)
    assert copier.runs <= 1 + 2 * max(1, len(present)) * 6
    assert len(outcome.raised) == 0 or present


def test_two_that_raise_only_together_both_go_through() -> None:
    outcome = isolate(Copier(lambda grants: {2, 5} <= grants), make_job([3] * 8))
    assert outcome.result.failed == ()
    assert len(outcome.result.samples) == 8
    assert rows_of(outcome.result) == rows_of(Copier(lambda grants: False)(make_job([3] * 8)))


def test_four_culprits_among_the_largest_wave_are_found_within_the_bound() -> None:
    culprits = {10, 40, 80, 120}
    copier = Copier(lambda grants: bool(grants & culprits))
    outcome = isolate(copier, make_job([1] * 128))
    assert {f.grant for f in outcome.result.failed} == culprits
    assert copier.runs < RUNS_MAX


def test_a_wave_of_which_every_other_chunk_raises_is_given_up_after_so_many_runs() -> None:
    copier = Copier(lambda grants: any(g % 2 for g in grants))
    outcome = isolate(copier, make_job([1] * 128))
    assert copier.runs == RUNS_MAX
    settled = set(outcome.result.samples) | {f.grant for f in outcome.result.failed}
    assert settled == set(range(1, 129)), "each chunk has an outcome"


def test_a_stage_where_everything_raises_is_not_tried_for_every_chunk() -> None:
    copier = Copier(lambda grants: True)
    outcome = isolate(copier, make_job([1] * 128), alone_max=4)
    assert len(outcome.result.failed) == 128
    assert (outcome.raised_alone, outcome.succeeded) == (4, False)
    assert copier.runs <= 16


# ---- the executor ----


class Model:
    """Runs what a test says."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


async def execute(run: Run, *jobs: Job, executors: list[ExecutorThread] | None = None) -> list[JobDone]:
    """What the executor says of each job; raises what it tells the loop to end the process for."""
    done: asyncio.Queue[JobDone | BaseException] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: done.put_nowait(context["exception"]))
    executor = ExecutorThread(Model(run), StageIndex(1), done.put_nowait, StepBound(0.0, 1.0))
    if executors is not None:
        executors.append(executor)
    found = []
    try:
        for number, job in enumerate(jobs, 1):
            executor.submit(ExecutorJob(WaveId(number), 0, job))
            said = await asyncio.wait_for(done.get(), 10)
            if isinstance(said, BaseException):
                raise said
            found.append(said)
    finally:
        await executor.close()
    return found


async def test_the_executor_fails_only_the_culprit_and_teaches_no_cost_by_a_wave_that_raised() -> None:
    copier = Copier(lambda grants: 3 in grants)
    bad, good = await execute(copier, make_job([4] * 6), make_job([4, 4]))
    assert bad.failed == ((GrantId(3), "RuntimeError: 1 chunks"),)
    assert [grant for grant, _ in bad.samples] == [1, 2, 4, 5, 6]
    assert bad.step.tokens == 0
    assert good.step.tokens == 8


async def test_each_run_of_a_wave_that_raised_has_the_watchdogs_time_for_itself() -> None:
    seen: list[RunningStep | None] = []
    copier = Copier(lambda grants: 3 in grants)

    def run(job: Job) -> JobResult:
        seen.append(executors[0].running)
        return copier(job)

    executors: list[ExecutorThread] = []
    await execute(run, make_job([4] * 4), executors=executors)
    assert [(step.number, step.tokens) for step in seen if step is not None] == [
        *((1, 16), (2, 8), (3, 8)),
        *((4, 4), (5, 4)),
    ]


async def test_requests_that_all_raise_are_the_stages_fault_after_a_while_and_end_it() -> None:
    copier = Copier(lambda grants: 1 in grants)
    done = await execute(copier, *[make_job([1])] * (RAISED_ALONE_MAX - 1))
    assert all(d.failed for d in done)
    # One that goes through says that the stage is well.
    await execute(copier, *[make_job([1])] * (RAISED_ALONE_MAX - 1), make_job([1, 1]), make_job([1]))
    with pytest.raises(InvariantError, match="nothing went through"):
        await execute(copier, *[make_job([1])] * RAISED_ALONE_MAX)
