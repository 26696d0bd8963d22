"""The bound: the maximum of its formula, and no regular schedule of equal requests is better."""

from __future__ import annotations

from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.cost_policy import CostPolicy
from wavepp.core.waves.policies import MpuPolicy, QueueView, StaticPolicy, WavePolicy
from wavepp.core.waves.target import Cutting, WaveSize
from wavepp.core.waves.time_packing import TimeBudget
from wavepp.core.waves.types import PlannerConfig
from wavepp.sim.bound import equal_bound
from wavepp.sim.clients import ClosedLoop
from wavepp.sim.schedule import Delays, ScheduleSim
from wavepp.sim.workload import Ask

M = 1 << 20


def formula(m: int, n: int, stages: int, concurrency: int, work: float, launch: float, fixed: float) -> float:
    latency = (n + stages - 1) * (m * work / n + launch) + fixed
    return work * min(concurrency / latency, m / (m * work + n * launch))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 12),
    st.sampled_from([1.0, 100.0, 3000.0]),
    st.floats(0.05, 500.0),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([0.0, 9.0]),
)
def test_it_is_the_maximum_of_the_formula(
    stages: int, concurrency: int, work: float, launch: float, hop: float, admission: float
) -> None:
    bound = equal_bound(
        stages=stages,
        concurrency=concurrency,
        work_ms=work,
        launch_ms=launch,
        hop_ms=hop,
        admission_ms=admission,
    )
    fixed = (stages - 1) * hop + admission
    args = (stages, concurrency, work, launch, fixed)
    best = max(formula(m, n, *args) for m in range(1, concurrency + 1) for n in range(1, 1200))
    assert bound.utilisation == pytest.approx(best, rel=1e-6)
    assert bound.utilisation == pytest.approx(formula(bound.requests, bound.parts, *args), rel=1e-12)


def test_unequal_stages_count_by_their_time() -> None:
    half = equal_bound(stages=8, concurrency=1, work_ms=100.0, launch_ms=1.0, others=3.5)
    assert half.utilisation == max(
        100.0 * min(1.0 / ((n + 3.5) * (100.0 / n + 1.0)), 1.0 / (100.0 + n)) for n in range(1, 200)
    )


def test_without_launch_cost_a_lone_request_can_be_cut_until_nothing_is_lost() -> None:
    assert equal_bound(stages=8, concurrency=1, work_ms=100.0, launch_ms=0.0).utilisation > 0.999


class Fixed(WavePolicy):
    """Always the same target."""

    def __init__(self, cost: StageCost, work_ms: float, cutting: Cutting) -> None:
        self._budget = TimeBudget(WaveSize(work_ms, cutting), cost)

    def budget(self, view: QueueView) -> TimeBudget:
        return self._budget


def utilisation(stages: int, concurrency: int, launch: float, tokens: int, policy: WavePolicy, hop: float) -> float:
    """Of equal requests, over many cycles: all work that the last stage ended in (first, last], whatever became of
    the requests, so no end of the window flatters it.
    """
    cost = StageCost(launch, 0.01, 0.0)
    config = PlannerConfig(stages, M, 512, 1, 1, wave_requests_max=512)
    sim = ScheduleSim([cost] * stages, config, policy, Delays(hop), record_spans=True)
    loop = ClosedLoop(sim.clock, repeat(Ask(tokens, 0)), concurrency, sim.submit)
    sim.on_finished = lambda finished: loop.answered()
    sim.clock.run(lambda: len(sim.log.finished) >= 20 + 25 * concurrency)
    spans = [span for span in sim.log.spans or [] if span.stage == stages - 1 and span.end_ms <= sim.clock.now_ms]
    # Windows of whole cycles: from the end of one wave to the end of another one after as many requests.
    first, last = spans[len(spans) // 4], spans[-1]
    done = sum(span.tokens for span in spans if span.wave > first.wave) * 0.01
    return done / (last.end_ms - first.end_ms)


@pytest.mark.parametrize("launch", [1.0, 20.0])
@pytest.mark.parametrize(("stages", "concurrency"), [(1, 1), (1, 5), (2, 3), (4, 1), (4, 4), (4, 9), (8, 2), (8, 7)])
def test_no_regular_closed_loop_of_equal_requests_beats_it(stages: int, concurrency: int, launch: float) -> None:
    tokens, cost = 10_000, StageCost(launch, 0.01, 0.0)
    bound = equal_bound(stages=stages, concurrency=concurrency, work_ms=100.0, launch_ms=launch).utilisation
    policies: list[WavePolicy] = [
        CostPolicy(stages=stages, wave_tokens_max=M, priors=[cost] * stages),
        StaticPolicy(M),
        MpuPolicy(stages=stages, wave_tokens_max=8192, wave_tokens_min=512, block_tokens=1),
        *(
            Fixed(cost, share * 100.0, cutting)
            for share, cutting in (
                (0.3, Cutting.EQUAL_PARTS),
                (0.75, Cutting.ANYWHERE),
                (2.0, Cutting.EQUAL_PARTS),
            )
        ),
    ]
    for policy in policies:
        # The window may be off by a part of a wave, of some twenty rounds.
        assert utilisation(stages, concurrency, launch, tokens, policy, 0.0) <= bound * 1.02


@pytest.mark.parametrize(("stages", "concurrency"), [(1, 4), (4, 1), (4, 6), (8, 3), (8, 16)])
def test_the_policy_cost_comes_near_it(stages: int, concurrency: int) -> None:
    cost = StageCost(5.0, 0.01, 0.0)
    bound = equal_bound(stages=stages, concurrency=concurrency, work_ms=100.0, launch_ms=5.0, hop_ms=1.0)
    policy = CostPolicy(stages=stages, wave_tokens_max=M, priors=[cost] * stages, hop_ms=1.0)
    assert utilisation(stages, concurrency, 5.0, 10_000, policy, 1.0) >= 0.9 * bound.utilisation


def test_a_staggered_pattern_of_exactly_equal_requests_can_exceed_it_by_a_few_percent() -> None:
    launch, hop = 12.5, 2.0
    bound = equal_bound(stages=16, concurrency=8, work_ms=100.0, launch_ms=launch, hop_ms=hop).utilisation
    staggered = Fixed(StageCost(launch, 0.01, 0.0), 40.0, Cutting.ANYWHERE)
    assert 1.0 < utilisation(16, 8, launch, 10_000, staggered, hop) / bound < 1.08
