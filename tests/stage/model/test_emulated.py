"""The emulated model: right answers, right times, and wrong state found out."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulated_support import emulated_answer
from wavepp.core.waves.cost import total
from wavepp.profiles.profile import EmulatedFault, EmulatedModel, Profile, ProfileError, emulated_profile
from wavepp.stage.model.base import REASON_STATE_MISMATCH, Job, JobChunk, JobError, JobResult, Sampling
from wavepp.stage.model.emulated import EmulatedStage, fingerprint
from wavepp.stage.model.factory import plan_model
from wavepp.stage.model.fingerprints import consistent, extend

B = 8
VOCAB = 997
PROFILE = Profile(
    name="test",
    derived="made up for tests",
    measured_stages=2,
    launch_ms=0.1,
    token_us=4.0,
    pair_ps=20_000.0,
    slowdown=(0.5, 1.0, 3.0),
    wave_tokens_max=64,
    wave_tokens_min=64,
    pool_tokens=256,
    model=EmulatedModel(layers=4, vocab_size=VOCAB, max_tokens=4096, hidden_size=32, hidden_bytes=64),
)
PROMPT = [int(t) for t in np.random.default_rng(2).integers(0, VOCAB, 40)]
TABLE = (5, 2, 7, 0, 9, 11, 12)


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.slept_s: list[float] = []

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_ns += round(seconds * 1e9)


def make_stages(
    clock: Clock, cuts: tuple[int, ...] = (0, 1, 3, 4), faults: tuple[EmulatedFault, ...] = ()
) -> list[EmulatedStage]:
    profile = PROFILE.model_copy(update={"model": PROFILE.emulated().model_copy(update={"faults": faults})})
    return [
        EmulatedStage(
            profile,
            stage=i,
            stages=len(cuts) - 1,
            first_layer=a,
            last_layer=b,
            blocks=32,
            block_tokens=B,
            clock_ns=clock,
            sleep=clock.sleep,
        )
        for i, (a, b) in enumerate(pairwise(cuts))
    ]


def run(stages: list[EmulatedStage], tokens: list[int], start: int, *tables: tuple[int, ...]) -> list[JobResult]:
    """One chunk of grant 1 through the stages; a table for all, or one for each."""
    data: bytes | None = np.asarray(tokens, dtype="<u4").tobytes()
    results: list[JobResult] = []
    for i, stage in enumerate(stages):
        table = tables[i] if len(tables) > 1 else tables[0]
        sampling = Sampling() if stage is stages[-1] else None
        chunk = JobChunk(1, start, len(tokens), table, 0, sampling)
        tensors = results[-1].tensors if results else ()
        results.append(stage.run(Job(1, (chunk,), len(tokens), data, tensors)))
        data = None
        if results[-1].failed:
            break
    return results


def test_chunks_through_stages_answer_what_is_expected() -> None:
    stages = make_stages(Clock())
    run(stages, PROMPT[:16], 0, TABLE)
    run(stages, PROMPT[16:24], 16, TABLE)
    answer = [run(stages, PROMPT[24:], 24, TABLE)[-1].samples[1].token]
    for position in range(40, 43):
        answer.append(run(stages, answer[-1:], position, TABLE)[-1].samples[1].token)
    assert answer == emulated_answer(PROMPT, 4, VOCAB)


def test_stages_may_have_different_block_tables_and_a_prefix_can_be_reused() -> None:
    stages = make_stages(Clock())
    tables = (TABLE, tuple(reversed(TABLE)), (20, 21, 22, 23, 24, 25, 26))
    run(stages, PROMPT[:24], 0, *tables)
    others = tuple((*table[:3], 30, 31) for table in tables)
    assert run(stages, PROMPT[24:], 24, *others)[-1].samples[1].token == emulated_answer(PROMPT, 1, VOCAB)[0]


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("wrong", ["never written", "of another prompt", "of another position"])
def test_a_wrong_block_anywhere_in_the_prefix_is_found_on_any_stage(stage: int, block: int, wrong: str) -> None:
    stages = make_stages(Clock())
    run(stages, PROMPT[:24], 0, TABLE)
    run(stages, list(reversed(PROMPT[:24])), 0, (15, 16, 17))
    stray = {"never written": 31, "of another prompt": 15 + block, "of another position": TABLE[(block + 1) % 3]}
    table = list(TABLE)
    table[block] = stray[wrong]
    tables = [TABLE, TABLE, TABLE]
    tables[stage] = tuple(table)
    results = run(stages, PROMPT[24:], 24, *tables)
    assert results[-1].failed[0].reason == REASON_STATE_MISMATCH
    assert len(results) == stage + 1
    assert not results[-1].tensors or results[-1].tensors[0][0].shape == (0, 2)


def test_the_whole_prefix_of_another_prompt_on_one_stage_is_found_by_the_next() -> None:
    stages = make_stages(Clock())
    run(stages, PROMPT[:24], 0, TABLE)
    run(stages, list(reversed(PROMPT[:24])), 0, (15, 16, 17))
    results = run(stages, PROMPT[24:], 24, (15, 16, 17, 18, 19), TABLE, TABLE)
    assert results[1].failed[0].reason == REASON_STATE_MISMATCH


def test_a_failed_grant_leaves_the_others_alone() -> None:
    first, second, _ = make_stages(Clock())
    run([first, second], PROMPT[:24], 0, TABLE)
    tokens = np.asarray(PROMPT[24:40] + PROMPT[:8], dtype="<u4").tobytes()
    chunks = (JobChunk(1, 24, 16, (5, 2, 31, 0, 9), 0), JobChunk(2, 0, 8, (20,), 16))
    result = first.run(Job(2, chunks, 24, tokens))
    assert [(f.grant, f.reason) for f in result.failed] == [(1, REASON_STATE_MISMATCH)]
    assert result.tensors[0][0].shape == (8, 2)
    assert result.tensors[1][0].shape == (8, 48)
    again = second.run(Job(2, (JobChunk(2, 0, 8, (20,), 0),), 8, tensors=result.tensors))
    assert again.failed == ()


def test_a_step_takes_what_the_profile_says() -> None:
    clock = Clock()
    stages = make_stages(clock)

    def wanted_ns(tokens: int, pairs: int) -> list[int]:
        """100 us a step; 2 us a token and 10 ns a pair in each layer, of which the stages have 1, 2 and 1."""
        whole = ((1, 0.5), (2, 1.0), (1, 3.0))
        return [round(slowdown * (100_000 + layers * (2000 * tokens + 10 * pairs))) for layers, slowdown in whole]

    assert [step.duration_ns for step in run(stages, PROMPT[:24], 0, TABLE)] == wanted_ns(24, 24 * 24)
    assert [step.duration_ns for step in run(stages, PROMPT[24:], 24, TABLE)] == wanted_ns(16, 2 * 24 * 16 + 16 * 16)


@given(
    chunks=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 1 << 16)), max_size=8),
    layers=st.integers(1, 32),
    stages=st.integers(1, 32),
)
def test_a_step_of_the_default_profile_takes_300_us_and_so_much_a_layer(
    chunks: list[tuple[int, int]], layers: int, stages: int
) -> None:
    step_us = 300.0
    for start, length in chunks:
        step_us += layers * (0.6 * length + 0.00004 * (2 * start * length + length * length))
    cost = emulated_profile("emulated").stage_cost(stages - 1, stages, layers / 32)
    assert round(1e6 * cost.step_ms(total(chunks))) == round(1000 * step_us)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_fault_of_the_profile_is_met_by_the_chunk_with_its_token_on_its_stage_only(stage: int) -> None:
    stages = make_stages(Clock(), faults=(EmulatedFault(token=PROMPT[20], stage=stage, does="raise"),))
    run(stages, PROMPT[:16], 0, TABLE)
    with pytest.raises(RuntimeError, match=f"token {PROMPT[20]} on stage {stage}"):
        run(stages, PROMPT[16:24], 16, TABLE)
    other = run(stages, [PROMPT[20] + 1, *PROMPT[21:]], 16, TABLE)
    assert not other[-1].failed


def test_a_step_that_hangs_sleeps_for_ever() -> None:
    class EnoughError(Exception):
        pass

    clock = Clock()
    (stage,) = make_stages(clock, (0, 4), (EmulatedFault(token=PROMPT[0], stage=0, does="hang"),))

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if len(clock.slept_s) > 3:
            raise EnoughError

    stage._sleep = sleep
    with pytest.raises(EnoughError):
        run([stage], PROMPT[:8], 0, TABLE)
    assert sum(clock.slept_s) > 4 * 3000


def test_a_job_without_its_input_is_refused() -> None:
    first, second, _ = make_stages(Clock())
    chunk = JobChunk(1, 0, 4, (0,), 0)
    with pytest.raises(JobError, match="no tokens"):
        first.run(Job(1, (chunk,), 4))
    with pytest.raises(JobError, match="missing"):
        second.run(Job(1, (chunk,), 4))


@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=80), st.data())
def test_fingerprints_do_not_depend_on_the_cuts_and_are_consistent(tokens: list[int], data: st.DataObject) -> None:
    own = np.asarray(tokens, dtype=np.uint32)
    whole = extend(np.uint64(0), own, 0)
    cut = data.draw(st.integers(0, len(tokens) - 1))
    before = extend(np.uint64(0), own[:cut], 0)
    after = extend(before[-1] if cut else np.uint64(0), own[cut:], cut)
    assert np.concatenate((before, after)).tolist() == whole.tolist()
    assert consistent(whole, VOCAB)
    place = data.draw(st.integers(0, len(tokens) - 1))
    whole[place : place + 1] += np.uint64(data.draw(st.integers(1, 2**63)))
    assert not consistent(whole, VOCAB)


def test_the_default_profile_comes_with_the_package_and_splits_evenly() -> None:
    plan = plan_model("emulated", 8)
    assert plan.spans == tuple((4 * i, 4 * i + 4) for i in range(8))
    assert plan.tokenizer is None
    assert plan.name == "emulated-small"
    assert plan_model("emulated:small", 8) == plan
    assert plan.fingerprint == fingerprint(emulated_profile("emulated")) != fingerprint(PROFILE)


def test_a_file_can_be_emulated(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(PROFILE.model_dump_json())
    assert plan_model(f"emulated:{path}", 2).fingerprint == fingerprint(PROFILE)


@pytest.mark.parametrize(("name", "said"), [("none", "neither a file nor one of"), ("equal", "cannot be emulated")])
def test_a_profile_that_is_missing_or_can_only_be_simulated_says_so(name: str, said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        plan_model(f"emulated:{name}", 2)


def test_an_emulated_stage_imports_no_torch() -> None:
    code = (
        "import sys; from wavepp.stage.model.factory import ModelOptions, open_stage_model, plan_model;"
        "m = open_stage_model(ModelOptions('emulated', 0, 8, 0, 4, blocks=4));"
        "assert m.describe().compute.startswith('emulated'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
