"""The policy `cost` behind a planner: what it learns, what it plans, and what leaves it unmoved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import GrantId, StageIndex
from wavepp.core.waves.cost import StageCost, total
from wavepp.core.waves.cost_policy import CostPolicy, default_prior
from wavepp.core.waves.planner import WavePlanner
from wavepp.core.waves.policies import QueueView
from wavepp.core.waves.types import Chunk, FitState, PlannerConfig, StepTime

M = 16_384
TRUE = StageCost(launch_ms=6.0, token_ms=0.018, pair_ms=7e-8)
NO_VIEW = QueueView((), 0, 0)


def policy(stages: int = 8, m: int = M, **more: Any) -> CostPolicy:
    return CostPolicy(stages=stages, wave_tokens_max=m, **more)


def planner(wave_policy: CostPolicy, stages: int = 8, m: int = M, **more: Any) -> WavePlanner:
    return WavePlanner(PlannerConfig(stages, m, m // 2, 64, 64, **more), wave_policy)


def chunk(start: int, length: int, *, decode: bool = False, grant: int = 1) -> Chunk:
    return Chunk(GrantId(grant), start, length, last=False, snapshot=False, decode=decode)


def steps(chunks: Sequence[Chunk], stages: Sequence[StageCost]) -> list[StepTime]:
    work = total((one.start, one.length) for one in chunks)
    return [
        StepTime(StageIndex(at), 0, int(cost.step_ms(work) * 1e6), 0, int(work.tokens))
        for at, cost in enumerate(stages)
    ]


def measure(learner: CostPolicy, stages: Sequence[StageCost], waves: Sequence[Sequence[Chunk]]) -> None:
    for chunks in waves:
        learner.measured(chunks, steps(chunks, stages))


PREFILL = [[chunk(8192 * i % 120_000, 500 + 997 * i % 8000)] for i in range(200)]


def drain(plan: WavePlanner, in_flight: int = 8) -> list[list[Chunk]]:
    waves = []
    while plan.has_work():
        wave = plan.plan(in_flight, 0)
        assert wave is not None
        waves.append(list(wave.chunks))
    return waves


def test_costs_are_learned_from_waves_whatever_unit_the_prior_is_in() -> None:
    learner = policy(stages=2)
    assert learner.reports()[0].cost == default_prior(M)
    measure(learner, [TRUE, TRUE.scaled(2.0)], PREFILL)
    first, second = learner.reports()
    assert (first.state, second.state) == (FitState.FITTED, FitState.FITTED)
    assert first.cost.token_ms == pytest.approx(TRUE.token_ms, rel=0.05)
    assert second.cost.pair_ms == pytest.approx(2.0 * TRUE.pair_ms, rel=0.05)
    learner.admitted(GrantId(1), 0, 4096)
    assert learner.budget(NO_VIEW).cost.token_ms == pytest.approx(2.0 * TRUE.token_ms, rel=0.05)


def test_decode_steps_however_many_leave_the_cost_of_prefill_alone() -> None:
    learner = policy(stages=2)
    measure(learner, [TRUE] * 2, PREFILL)
    before = learner.reports()
    measure(learner, [TRUE] * 2, [[chunk(1000 + i, 1, decode=True, grant=i) for i in range(4)]] * 2000)
    assert learner.reports() == before
    measure(learner, [TRUE] * 2, [[chunk(1000, 1, decode=True, grant=2), chunk(0, 2048)]])
    # That many waves on, a wave teaches every other stage.
    assert sum(report.steps for report in learner.reports()) == sum(report.steps for report in before) + 1


def test_a_wave_without_chunks_teaches_nothing() -> None:
    learner = policy()
    learner.measured((), [StepTime(StageIndex(0), 0, 1, 0, 0)])
    assert learner.reports()[0].steps == 0


def test_one_prior_for_every_stage_or_none() -> None:
    with pytest.raises(InvalidInputError):
        policy(stages=3, priors=[TRUE, TRUE])
    assert policy(stages=2, priors=[TRUE, TRUE]).reports()[0].cost == TRUE


def test_a_lone_request_is_cut_so_that_all_stages_have_some_of_it() -> None:
    plan = planner(policy(priors=[TRUE] * 8))
    plan.add(GrantId(1), 0, 32_768, keep_alive=False)
    waves = drain(plan)
    assert len(waves) == pytest.approx(math.sqrt(7.0 * TRUE.chunk_ms(0, 32_768) / 6.0), rel=0.35)
    times = [TRUE.step_ms(total((one.start, one.length) for one in wave)) for wave in waves]
    assert max(times) < 1.2 * min(times)


def test_on_one_stage_a_lone_request_goes_in_waves_of_m() -> None:
    plan = planner(policy(stages=1, priors=[TRUE]), stages=1)
    plan.add(GrantId(1), 0, 2 * M, keep_alive=False)
    assert [[one.length for one in wave] for wave in drain(plan, in_flight=1)] == [[M], [M]]


def test_many_short_requests_share_waves_but_leave_every_stage_one() -> None:
    plan = planner(policy(priors=[TRUE] * 8))
    for grant in range(64):
        plan.add(GrantId(grant), 0, 256, keep_alive=False)
    waves = drain(plan)
    assert 8 <= len(waves) <= 32


@pytest.mark.parametrize("prior", [StageCost(0.0, 0.018, 7e-8), StageCost(6.0, 0.018, 0.0), StageCost(0.0, 1e-9, 0.0)])
@pytest.mark.parametrize("m", [64, 128, M])
def test_costs_that_are_zero_and_small_m_are_planned_for_too(prior: StageCost, m: int) -> None:
    plan = planner(policy(m=m, priors=[prior] * 8, hop_ms=1.0), m=m, wave_requests_max=1)
    for grant, (start, end) in enumerate([(0, 1), (10, 5000), (64_000, 64_100), (0, 3000)]):
        plan.add(GrantId(grant), start, end, keep_alive=False)
    waves = drain(plan)
    assert sum(one.length for wave in waves for one in wave) == 1 + 4990 + 100 + 3000
    assert all(len(wave) == 1 and wave[0].length <= m for wave in waves)


def test_a_request_that_ends_before_its_first_chunk_no_longer_counts() -> None:
    learner, fresh = policy(priors=[TRUE] * 8), policy(priors=[TRUE] * 8)
    plan = planner(learner)
    for grant in range(32):
        plan.add(GrantId(grant), 0, 32_768, keep_alive=False)
    for grant in range(1, 32):
        assert plan.end(GrantId(grant))
        assert not plan.end(GrantId(grant))
        learner.left(GrantId(grant))
    fresh.admitted(GrantId(0), 0, 32_768)
    assert learner.budget(NO_VIEW) == fresh.budget(NO_VIEW)


def test_prefill_that_decodes_no_longer_counts() -> None:
    learner, fresh = policy(priors=[TRUE] * 8), policy(priors=[TRUE] * 8)
    plan = planner(learner)
    plan.add(GrantId(1), 0, 32_768, keep_alive=True)
    drain(plan)
    plan.add(GrantId(2), 0, 32_768, keep_alive=False)
    fresh.admitted(GrantId(2), 0, 32_768)
    assert learner.budget(NO_VIEW) != fresh.budget(NO_VIEW)
    plan.add_decode(GrantId(1), 32_768)
    # Until its peak is forgotten.
    for _ in range(16):
        learner.budget(NO_VIEW)
    assert learner.budget(NO_VIEW) == fresh.budget(NO_VIEW)


def test_after_a_reset_the_requests_are_forgotten_and_the_costs_are_not() -> None:
    learner = policy(priors=[default_prior(M)] * 8)
    plan = planner(learner)
    for grant in range(32):
        plan.add(GrantId(grant), 0, 1000, keep_alive=False)
    assert plan.plan(0, 0) is not None
    measure(learner, [TRUE] * 8, PREFILL)
    before = learner.reports()
    plan.reset()
    assert learner.reports() == before
    plan.add(GrantId(100), 0, 32_768, keep_alive=False)
    assert len(drain(plan)) > 4


def test_after_the_pipeline_was_empty_planning_goes_on() -> None:
    learner = policy(priors=[TRUE] * 8)
    plan = planner(learner)
    for grant in range(200):
        plan.add(GrantId(grant), 0, 1 + 997 * grant % 5000, keep_alive=False)
        waves = drain(plan)
        assert sum(one.length for wave in waves for one in wave) == 1 + 997 * grant % 5000
        measure(learner, [TRUE] * 8, waves)
        plan.end(GrantId(grant))


def test_when_steps_become_dearer_the_waiting_requests_are_priced_anew() -> None:
    learner = policy(stages=2, priors=[TRUE] * 2)
    for grant in range(4):
        learner.admitted(GrantId(grant), 0, 8192)
    before = learner.budget(NO_VIEW)
    measure(learner, [TRUE.scaled(5.0)] * 2, PREFILL)
    after = learner.budget(NO_VIEW)
    assert after.size.work_ms == pytest.approx(5.0 * before.size.work_ms, rel=0.1)
    assert after.cost.token_ms == pytest.approx(5.0 * TRUE.token_ms, rel=0.1)


# ---- growth ----


def crowded(learner: CostPolicy, grants: Sequence[int], in_flight: int = 8) -> list[float]:
    """The budgets of twelve waves with these grants of 131,072 tokens under way."""
    for grant in grants:
        learner.admitted(GrantId(grant), 0, 131_072)
    view = QueueView((), 0, in_flight)
    return [learner.budget(view).size.work_ms for _ in range(12)]


def test_once_the_pipeline_is_full_a_second_request_makes_waves_grow_slowly() -> None:
    learner = policy(priors=[TRUE] * 8)
    alone = crowded(learner, [1])
    with_another = crowded(learner, [2])
    fresh = crowded(policy(priors=[TRUE] * 8), [1, 2])
    assert fresh[0] > 3.0 * alone[-1]
    assert with_another[-1] < 1.2 * alone[-1]


def test_who_comes_when_nothing_is_under_way_gets_the_waves_that_fit() -> None:
    fresh = crowded(policy(priors=[TRUE] * 8), [1, 2])[0]
    for end in ("left", "reset", "empty"):
        learner = policy(priors=[TRUE] * 8)
        crowded(learner, [1])
        if end == "reset":
            learner.reset()
        else:
            learner.left(GrantId(1))
        assert crowded(learner, [2, 3], in_flight=0 if end == "empty" else 8)[0] == pytest.approx(fresh)


def test_on_a_fixed_grid_waves_may_be_any_size() -> None:
    learner = policy(priors=[TRUE] * 8, fixed_grid=True)
    alone = crowded(learner, [1])
    assert crowded(learner, [2])[0] > 3.0 * alone[-1]


def test_waves_stay_as_large_when_steps_turn_out_to_be_dearer() -> None:
    learner = policy(priors=[TRUE] * 8)
    before = crowded(learner, [1])[-1]
    measure(learner, [TRUE.scaled(5.0)] * 8, PREFILL)
    assert crowded(learner, [])[0] == pytest.approx(5.0 * before, rel=0.15)
