"""The scheduling simulation: every request is served once, the same every time, in the time that its stages take."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from wavepp.core.ids import StageIndex
from wavepp.core.waves.cost import StageCost, amount, total
from wavepp.core.waves.cost_policy import CostPolicy
from wavepp.core.waves.policies import MpuPolicy, StaticPolicy, WavePolicy
from wavepp.core.waves.types import PlannerConfig
from wavepp.sim.clients import ClosedLoop, replay
from wavepp.sim.results import Finished, Log, quantile
from wavepp.sim.schedule import Delays, ScheduleSim
from wavepp.sim.stages import TimedStages
from wavepp.sim.workload import Ask, Workload, cold, mixed, reuse, short_suffix

COST = StageCost(launch_ms=6.0, token_ms=0.018, pair_ms=7e-8)
M = 16_384

POLICIES: dict[str, Callable[[], WavePolicy]] = {
    "static": lambda: StaticPolicy(M),
    "mpu": lambda: MpuPolicy(stages=4, wave_tokens_max=M, wave_tokens_min=M // 2, block_tokens=64),
    "cost": lambda: CostPolicy(stages=4, wave_tokens_max=M),
}


def simulation(policy: WavePolicy, delays: Delays | None = None, *, spans: bool = True) -> ScheduleSim:
    costs = [COST, COST.scaled(1.3), COST, COST.scaled(0.9)]
    config = PlannerConfig(4, M, M // 2, 64, 64)
    return ScheduleSim(costs, config, policy, delays or Delays(hop=1.0, admission=3.0), record_spans=spans)


def closed_loop(sim: ScheduleSim, workload: Workload, concurrency: int, requests: int) -> None:
    loop = ClosedLoop(sim.clock, workload.asks(1), concurrency, sim.submit)
    sim.on_finished = lambda finished: loop.answered()
    sim.clock.run(lambda: len(sim.log.finished) >= requests)


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_run_gives_the_same_log(name: str) -> None:
    logs = []
    for _ in range(2):
        sim = simulation(POLICIES[name]())
        closed_loop(sim, mixed(20_000), 6, 60)
        logs.append(sim.log)
    assert logs[0] == logs[1]
    assert logs[0].spans


@pytest.mark.parametrize("name", POLICIES)
def test_every_request_is_served_once_and_all_its_tokens_go_through_every_stage(name: str) -> None:
    sim = simulation(POLICIES[name]())
    asks = [ask for _, ask in zip(range(80), mixed(20_000).asks(2), strict=False)]
    draw = random.Random(3)
    replay(sim.clock, [(draw.uniform(0.0, 40_000.0), ask) for ask in asks], 1.0, sim.submit)
    sim.clock.run(lambda: False)
    sim.dispatcher.validate()
    assert sim.dispatcher.idle
    served = Counter((one.prompt_tokens, one.cached_tokens, one.kind) for one in sim.log.finished)
    assert served == Counter((ask.prompt_tokens, ask.cached_tokens, ask.kind) for ask in asks)
    computed = sum(ask.prompt_tokens - ask.cached_tokens for ask in asks)
    spans = sim.log.spans or []
    for stage in range(4):
        assert sum(span.tokens for span in spans if span.stage == stage) == computed
    assert len(spans) == 4 * sim.log.waves


def test_a_stage_runs_one_wave_at_a_time_in_order_and_none_before_the_stage_before_it() -> None:
    sim = simulation(POLICIES["cost"]())
    closed_loop(sim, mixed(20_000), 8, 60)
    spans = sim.log.spans or []
    at = {(span.wave, span.stage): span for span in spans}
    for stage in range(4):
        row = [span for span in spans if span.stage == stage]
        assert [span.wave for span in row] == sorted(span.wave for span in row)
        assert all(before.end_ms <= after.start_ms for before, after in pairwise(row))
    assert all(span.start_ms >= at[span.wave, span.stage - 1].end_ms + 1.0 for span in spans if span.stage)


def test_a_lone_request_takes_admission_every_step_and_every_hop() -> None:
    sim = simulation(StaticPolicy(M))
    sim.submit(Ask(1000, 640))
    sim.clock.run(lambda: False)
    (done,) = sim.log.finished
    work = amount(640, 360)
    steps = sum(COST.scaled(factor).step_ms(work) for factor in (1.0, 1.3, 1.0, 0.9))
    assert done.completion_ms == pytest.approx(3.0 + steps + 3 * 1.0)
    assert done.work_ms == pytest.approx(COST.scaled(1.3).work_ms(work))


def test_a_lone_request_after_a_burst_is_as_fast_as_one_at_the_start() -> None:
    fresh, after = simulation(POLICIES["cost"]()), simulation(POLICIES["cost"]())
    for sim in (fresh, after):
        # What a step costs is learned first.
        closed_loop(sim, cold(32_768), 1, 20)
        sim.on_finished = lambda finished: None
        sim.clock.run(lambda: False)
    for _ in range(64):
        after.submit(Ask(4096, 0))
    after.clock.run(lambda: False)
    for sim in (fresh, after):
        sim.submit(Ask(32_768, 0))
        sim.clock.run(lambda: False)
    assert after.log.finished[-1].completion_ms <= 1.1 * fresh.log.finished[-1].completion_ms


def test_work_on_the_path_is_done_by_every_stage_once_a_request() -> None:
    plain, loaded = simulation(StaticPolicy(M), Delays()), simulation(StaticPolicy(M), Delays(on_path=10.0))
    for sim in (plain, loaded):
        sim.submit(Ask(40_000, 0))
        sim.clock.run(lambda: False)
    # All three waves of the request queue behind the first one on the slowest stage, and the ways before and after it.
    difference = loaded.log.finished[0].done_ms - plain.log.finished[0].done_ms
    assert 10.0 <= difference <= 40.0
    spans = loaded.log.spans or []
    assert sum(span.end_ms - span.start_ms for span in spans if span.stage == 0) == pytest.approx(
        10.0 + COST.chunk_ms(0, 40_000) + 6.0 * loaded.log.waves
    )


def test_utilisation_is_never_above_one() -> None:
    for workload in (cold(8192), reuse(65_536), short_suffix(36_864)):
        sim = simulation(POLICIES["cost"](), spans=False)
        closed_loop(sim, workload, 8, 120)
        summary = sim.log.summary(40)
        assert 0.3 < summary.utilisation <= 1.0
        assert summary.p50_ms <= summary.p95_ms <= summary.p99_ms


# ---- its parts ---------------------------------------------------------------------------------------------


def test_a_wave_waits_for_its_stage_and_says_how_long() -> None:
    stages = TimedStages([StageCost(1.0, 1.0, 0.0)] * 2, 5.0, None)
    first = stages.run(1, 0.0, total([(0, 9)]), 1)
    assert (first.stage0_done_ms, first.done_ms) == (10.0, 25.0)
    second = stages.run(2, 4.0, total([(0, 1)]), 1)
    assert (second.stage0_done_ms, second.done_ms) == (12.0, 27.0)
    assert [(step.stage, step.queued_ns) for step in second.steps] == [
        (StageIndex(0), 6_000_000),
        (StageIndex(1), 8_000_000),
    ]


def test_the_summary_is_of_the_window_after_the_first_requests() -> None:
    log = Log(waves=8)
    for number in range(1, 5):
        log.finished.append(Finished(10.0 * number - 5.0 * number, 10.0 * number, 1000, 0, 8.0))
    summary = log.summary(2)
    assert summary.requests == 2
    assert summary.utilisation == pytest.approx(16.0 / 20.0)
    assert summary.input_tokens_s == pytest.approx(100_000.0)
    assert (summary.p50_ms, summary.p99_ms) == (15.0, 20.0)
    assert summary.waves_per_request == 2.0


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.0, 1.0), (0.2, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.75, 3.0), (0.95, 4.0), (1.0, 4.0)],
)
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(share: float, value: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == value


def test_workloads_are_the_same_with_the_same_seed_and_keep_their_shares() -> None:
    workload = mixed(100_000)
    asks = [ask for _, ask in zip(range(2000), workload.asks(7), strict=False)]
    assert asks == [ask for _, ask in zip(range(2000), workload.asks(7), strict=False)]
    assert sum(ask.kind == "warm" for ask in asks) / 2000 == pytest.approx(0.75, abs=0.03)
    for ask in asks:
        assert 0 <= ask.cached_tokens < ask.prompt_tokens
        assert ask.cached_tokens % 64 == 0
        assert 95_000 <= ask.prompt_tokens <= 105_000
    assert workload.mean(lambda prompt, cached: cached) == pytest.approx(67_500.0)


def test_spans_are_kept_only_where_they_are_wanted() -> None:
    sim = simulation(StaticPolicy(M), spans=False)
    sim.submit(Ask(100, 0))
    sim.clock.run(lambda: False)
    assert sim.log.spans is None
    assert sim.log.waves == 1
