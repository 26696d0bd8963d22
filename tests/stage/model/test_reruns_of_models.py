"""Waves that raise on real models: what is run again gives the same bits and leaves the same cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh_support import write_profile
from model_support import BLOCK_TOKENS, open_stages, token_bytes
from wavepp.core.ids import GrantId
from wavepp.core.waves.types import ChosenToken
from wavepp.core.wire.types import NamedTensor
from wavepp.stage.model.base import Job, JobChunk, JobResult, Sampling, StageModel
from wavepp.stage.reruns import run_isolating

LENGTHS = (30, 1, 16, 47, 5, 20)
CULPRIT = GrantId(4)


def chunks(start: int, lengths: tuple[int, ...]) -> list[JobChunk]:
    """One chunk a grant, from token `start` on; each has four blocks."""
    made, row = [], 0
    for i, length in enumerate(lengths):
        made.append(
            JobChunk(GrantId(i + 1), start, length, tuple(range(4 * i, 4 * i + 4)), row, Sampling(top_logprobs=5))
        )
        row += length
    return made


class RaisedAfterItsWorkError(Exception):
    """By then the run has written to the cache."""


def run_wave(stages: list[StageModel], start: int, lengths: tuple[int, ...], raising: int | None) -> list[JobResult]:
    """One wave through the stages, raising on stage `raising` whenever the culprit is in a run."""
    alive = chunks(start, lengths)
    tokens = token_bytes([(7 * i + start) % 250 for i in range(sum(lengths))])
    results: list[JobResult] = []
    tensors: tuple[NamedTensor, ...] = ()
    for index, stage in enumerate(stages):

        def run(job: Job, index: int = index, stage: StageModel = stage) -> JobResult:
            result = stage.run(job)
            if index == raising and any(c.grant == CULPRIT for c in job.chunks):
                raise RaisedAfterItsWorkError
            return result

        rows = sum(c.length for c in alive)
        job = Job(1, tuple(alive), rows, tokens if index == 0 else None, tensors)
        result = run_isolating(run, job, alone_max=1000).result
        results.append(result)
        tensors = result.tensors
        failed = {f.grant for f in result.failed}
        survivors, row = [], 0
        for c in alive:
            if c.grant not in failed:
                survivors.append(JobChunk(c.grant, c.start, c.length, c.table, row, c.sample))
                row += c.length
        alive = survivors
    return results


def without_culprit(samples: dict[GrantId, ChosenToken]) -> dict[GrantId, ChosenToken]:
    return {grant: chosen for grant, chosen in samples.items() if grant != CULPRIT}


@pytest.mark.parametrize("runner", ["fast", "hf", "emulated"])
@pytest.mark.parametrize("raising", [0, 1])
def test_the_others_of_a_wave_that_raised_get_the_same_bits_then_and_later(
    tiny_models: dict[str, Path], tmp_path: Path, runner: str, raising: int
) -> None:
    if runner == "emulated":
        model, options = write_profile(tmp_path / "profile.json"), {}
    else:
        model, options = str(tiny_models["qwen3"]), {"runner": runner}
    calm = open_stages(model, (0, 2, 4), block_tokens=BLOCK_TOKENS, **options)
    upset = open_stages(model, (0, 2, 4), block_tokens=BLOCK_TOKENS, **options)
    expected = run_wave(calm, 0, LENGTHS, None)
    found = run_wave(upset, 0, LENGTHS, raising)
    assert [f.grant for f in found[raising].failed] == [CULPRIT]
    assert found[-1].samples == without_culprit(expected[-1].samples)
    # What the cache holds shows in the next step: with neither a culprit nor a rerun.
    assert decode(upset, found[-1].samples) == decode(calm, without_culprit(expected[-1].samples))


def decode(stages: list[StageModel], samples: dict[GrantId, ChosenToken]) -> dict[GrantId, ChosenToken]:
    """The token after the sampled one, of every grant in `samples`."""
    made = []
    for row, grant in enumerate(samples):
        table = tuple(range(4 * (grant - 1), 4 * grant))
        made.append(JobChunk(grant, LENGTHS[grant - 1], 1, table, row, Sampling(top_logprobs=5)))
    tokens: bytes | None = token_bytes([chosen.token for chosen in samples.values()])
    tensors: tuple[NamedTensor, ...] = ()
    result = None
    for stage in stages:
        result = stage.run(Job(2, tuple(made), len(made), tokens, tensors))
        assert not result.failed
        tokens, tensors = None, result.tensors
    assert result is not None
    return result.samples
