"""Single cells: the paper's table under its rules, where the time goes, and the bound."""

from __future__ import annotations

import pytest

from wavepp.profiles.profile import load_profile
from wavepp.sim.bubbles import time_shares
from wavepp.sim.experiment import Cell, Rules, SimPolicy, bound_of, run_closed_loop, slowest_stage
from wavepp.sim.workload import Workload, cold, reuse, short_suffix

PROFILE = load_profile("kimi-k3-gb300-pp8")
PAPER = Rules(paper=True)


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
