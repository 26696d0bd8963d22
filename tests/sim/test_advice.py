"""What `wavepp plan` says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wavepp.core.errors import InvalidInputError
from wavepp.profiles.profile import load_profile
from wavepp.sim.advice import Choice, best, choices, look_into
from wavepp.sim.experiment import Rules
from wavepp.sim.workload import cold, short_suffix

PROFILE = load_profile("kimi-k3-gb300-pp8")


def test_every_device_is_used() -> None:
    found = choices(8, [4, 8, 3], [8192, 16_384])
    assert {(one.stages, one.pipelines) for one in found} == {(4, 2), (8, 1)}
    assert len(found) == 2 * 2 * 3
    with pytest.raises(InvalidInputError, match="cannot be split"):
        choices(8, [3, 16], [8192])


def test_few_short_requests_are_best_served_by_cost_and_the_bubbles_of_static_are_named() -> None:
    options = [Choice(8, 1, 16_384, "static"), Choice(8, 1, 16_384, "cost")]
    seen: list[tuple[int, int]] = []
    outlooks = look_into(options, short_suffix(36_864), 4, PROFILE, Rules(), lambda done, of: seen.append((done, of)))
    assert seen == [(1, 2), (2, 2)]
    assert best(outlooks).choice.policy == "cost"
    static = next(one for one in outlooks if one.choice.policy == "static")
    assert static.shares.starved > 0.4
    assert outlooks[0].input_tokens_s >= outlooks[1].input_tokens_s


def test_clients_and_throughput_are_shared_among_pipelines() -> None:
    (alone,) = look_into([Choice(8, 1, 16_384, "cost")], short_suffix(36_864), 2, PROFILE, Rules(), lambda *_: None)
    options = [Choice(8, 2, 16_384, "cost")]
    (twice,) = look_into(options, short_suffix(36_864), 4, PROFILE, Rules(), lambda *_: None)
    assert twice.summary == alone.summary, "two clients each"
    assert twice.input_tokens_s == pytest.approx(2.0 * alone.input_tokens_s)


def test_clients_that_do_not_deal_out_evenly_are_neither_invented_nor_dropped() -> None:
    def rate(pipelines: int, clients: int) -> float:
        options = [Choice(4, pipelines, 16_384, "cost")]
        (outlook,) = look_into(options, short_suffix(36_864), clients, PROFILE, Rules(), lambda *_: None)
        return outlook.input_tokens_s

    one, two = rate(1, 1), rate(1, 2)
    assert rate(4, 1) == pytest.approx(one), "three of the four pipelines have nothing to do"
    assert rate(4, 7) == pytest.approx(3 * two + one)


def test_where_all_are_equal_the_default_policy_is_taken() -> None:
    options = [Choice(8, 1, 64, policy) for policy in ("static", "mpu", "cost")]
    outlooks = look_into(options, cold(19), 1, PROFILE, Rules(), lambda *_: None)
    assert best(outlooks).choice.policy == "cost"


def test_a_tail_that_is_longer_by_a_hair_does_not_decide_against_the_default_policy() -> None:
    options = [Choice(8, 1, 64, policy) for policy in ("mpu", "cost")]
    outlooks = look_into(options, cold(19), 1, PROFILE, Rules(), lambda *_: None)

    def chosen(cost_p95_ms: float) -> str:
        tails = {"mpu": 500.0, "cost": cost_p95_ms}
        near = [replace(one, summary=replace(one.summary, p95_ms=tails[one.choice.policy])) for one in outlooks]
        return best(near).choice.policy

    assert [chosen(p95_ms) for p95_ms in (500.0, 505.1, 510.0, 511.0)] == ["cost", "cost", "cost", "mpu"]
