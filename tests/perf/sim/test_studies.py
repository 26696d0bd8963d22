"""The studies: what is said about fairness, wrong priors and where mpu loses."""

from __future__ import annotations

import pytest
from perf.sim.studies import fairness, mpu_loss, two_cold_prompts, wrong_prior

from wavepp.profiles.profile import load_profile
from wavepp.sim.workload import reuse, short_suffix


def test_a_huge_request_among_short_ones_does_not_make_them_wait_for_it() -> None:
    by_policy = {one.policy: one for one in fairness(load_profile("kimi-k3-gb300-pp8"), minutes=4.0)}
    cost, mpu = by_policy["cost"], by_policy["mpu"]
    assert cost.p99_beside_ms <= 3.0 * cost.p99_alone_ms
    assert cost.utilisation_beside >= cost.utilisation_alone - 0.03
    assert mpu.p99_beside_ms > 20.0 * mpu.p99_alone_ms


@pytest.mark.parametrize("workload", [reuse(131_072), short_suffix(36_864)])
def test_a_wrong_prior_on_unequal_stages_is_forgotten(workload) -> None:  # type: ignore[no-untyped-def]
    found = wrong_prior(load_profile("one-slow-stage"), 8, 200, workload, 4)
    assert found.worst >= found.fair - 0.03
    assert found.no_prior >= found.fair - 0.03


def test_with_little_room_and_a_cost_of_launching_mpu_loses_and_cost_does_not() -> None:
    found = mpu_loss(load_profile("kimi-k3-gb300-pp8").model_copy(update={"launch_ms": 40.0}), 8, 32, 1, 10)
    assert found.mpu < 0.96
    assert found.cost > 0.99
    assert found.waves_mpu > 1.5 * found.waves_static


@pytest.mark.parametrize("offset", [0.0, 0.25, 0.5, 0.75])
def test_two_cold_prompts_that_meet_are_both_answered_sooner(offset: float) -> None:
    found = two_cold_prompts(load_profile("kimi-k3-gb300-pp8"), 8, 131_072, offset).completion_ms
    assert found["cost"][0] < 0.8 * found["mpu"][0]
    assert found["cost"][1] < 0.9 * found["mpu"][1]


def test_a_prompt_under_way_is_not_delayed_by_waves_for_two() -> None:
    alone = two_cold_prompts(load_profile("kimi-k3-gb300-pp8"), 8, 131_072, 2.0).completion_ms["cost"][0]
    met = two_cold_prompts(load_profile("kimi-k3-gb300-pp8"), 8, 131_072, 0.5).completion_ms["cost"][0]
    assert met < 1.02 * alone
