"""A few cells of the grid, with fixed seeds: what the policy `cost` is held to.

The whole grid takes two hours (`wavepp sim grid`); docs/scheduling.md has its figures. The cells here are ones in
which the goals are reached with a margin, of every kind of workload.
"""

from __future__ import annotations

from functools import cache

import pytest

from wavepp.sim.bubbles import time_shares
from wavepp.sim.experiment import Cell, Rules, SimPolicy, bound_of, run_closed_loop, slowest_stage
from wavepp.sim.grid import CellResult, GridPlan, as_json, cells, run_grid, workload_by_name
from wavepp.sim.profile import load_profile
from wavepp.sim.verdict import COMPLETION_MAX, GAIN_MIN, THROUGHPUT_MIN, Comparison, compare, gain_over_mpu
from wavepp.sim.workload import Workload, cold, reuse, short_suffix

PROFILE = load_profile("kimi-k3-gb300-pp8")
PAPER = Rules(paper=True)


@cache
def quick_grid() -> tuple[CellResult, ...]:
    chosen = [workload_by_name(name) for name in ("cold 64K", "reuse 128K", "4K on 36K", "mixed 128K")]
    plan = GridPlan(PROFILE, Rules(), cells(chosen, [8], [1, 4, 16]), ("static", "mpu", "cost", "lockstep"), 2, 20)
    return tuple(run_grid(plan, 2, lambda done, of: None))


def label(result: CellResult) -> str:
    return f"{result.cell.workload.name}, c = {result.cell.concurrency}"


def test_cost_has_the_throughput_of_the_better_policy_at_no_longer_completion() -> None:
    for result in quick_grid():
        found = compare(result)
        assert found.throughput >= THROUGHPUT_MIN, label(result)
        assert found.p50 <= COMPLETION_MAX, label(result)
        assert found.p95 <= COMPLETION_MAX, label(result)


def test_cost_comes_near_the_bound() -> None:
    for result in quick_grid():
        assert compare(result).of_bound >= (0.95 if "mixed" in label(result) else 0.97), label(result)


def test_cost_is_far_ahead_of_mpu_where_few_requests_are_under_way() -> None:
    gain = gain_over_mpu(quick_grid(), 8)
    assert gain is not None
    assert gain >= GAIN_MIN


def test_admission_on_the_executors_path_costs_the_lockstep_baseline_much_of_its_time_with_short_suffixes() -> None:
    for result in quick_grid():
        lockstep, static = result.by_policy["lockstep"].utilisation, result.by_policy["static"].utilisation
        assert lockstep < static, label(result)
        if result.cell.workload.name == "4K on 36K":
            assert lockstep < 0.7 * static, label(result)


def test_a_grid_as_json_says_what_it_was_made_with() -> None:
    plan = GridPlan(PROFILE, Rules(), cells([cold(65_536)], [8], [1]), ("static", "mpu", "cost", "lockstep"), 2, 20)
    content = as_json(plan, quick_grid()[:1])
    assert content["simulated"] is True
    assert content["seeds"] == 2
    assert set(content["cells"][0]["policies"]) == {"static", "mpu", "cost", "lockstep"}  # type: ignore[index]


def test_what_is_missed_is_named() -> None:
    found = compare(quick_grid()[0])
    assert found.misses == []
    assert Comparison(found.result, 0.98, 1.03, 1.03, 0.9).misses == ["throughput", "p50", "p95", "bound"]


# ---- the paper's table ----


@pytest.mark.parametrize(
    ("workload", "concurrency", "static", "mpu"),
    [
        (cold(131_072), 2, 0.92, 0.97),
        (reuse(131_072), 2, 0.25, 0.36),
        (short_suffix(36_864), 8, 0.78, 0.85),
        (short_suffix(131_072), 8, 0.73, 0.87),
    ],
)
def test_the_papers_utilisation_under_its_dispatch_rule(
    workload: Workload, concurrency: int, static: float, mpu: float
) -> None:
    cell = Cell(workload, 8, concurrency)

    def utilisation(policy: SimPolicy) -> float:
        return sum(run_closed_loop(cell, policy, PROFILE, PAPER, seed)[0].utilisation for seed in range(3)) / 3

    assert utilisation("static") == pytest.approx(static, abs=0.02)
    assert utilisation("mpu") == pytest.approx(mpu, abs=0.02)


# ---- where the time goes ----


def test_the_shares_of_a_stages_time_are_all_of_it_and_the_work_is_the_utilisation() -> None:
    cell = Cell(short_suffix(36_864), 8, 4)
    summary, log = run_closed_loop(cell, "mpu", PROFILE, Rules(), 0, requests_per_client=20, record_spans=True)
    costs = PROFILE.stages(8)
    stage = costs.index(slowest_stage(costs))
    assert log.spans is not None
    shares = time_shares(log.spans, stage, costs[stage], log.finished[3].done_ms, log.finished[-1].done_ms)
    assert shares.work + shares.launches + shares.starved + shares.uneven == pytest.approx(1.0, abs=1e-6)
    assert shares.work == pytest.approx(summary.utilisation, abs=0.02)
    assert shares.starved > 0.4, "mpu gives four short requests one wave each, and there are eight stages"


def test_the_bound_has_launch_hop_and_admission_in_it() -> None:
    cell = Cell(short_suffix(36_864), 8, 1)
    slower = PROFILE.model_copy(update={"hop_ms": 5.0, "admission_ms": 50.0})
    assert bound_of(cell, slower, Rules()).utilisation < bound_of(cell, PROFILE, Rules()).utilisation
    assert bound_of(cell, slower, PAPER).utilisation == bound_of(cell, PROFILE, PAPER).utilisation
