"""Waves grow as fast as launches pay for, and shrink as they like."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.wave_growth import WaveGrowth


def sizes(wanted: list[float], launch_ms: float, others: float) -> list[float]:
    growth = WaveGrowth()
    return [growth.limited(work_ms, launch_ms, others) for work_ms in wanted]


def flow_shop_ms(waves: list[float], stages: int) -> float:
    """When equal stages have done the waves, one after another on each: wave by wave, stage by stage."""
    free = [0.0] * stages
    for work in waves:
        ready = 0.0
        for stage in range(stages):
            free[stage] = max(free[stage], ready) + work
            ready = free[stage]
    return free[-1]


@given(
    st.lists(st.floats(0.1, 1e4), min_size=1, max_size=60),
    st.floats(0.0, 100.0),
    st.sampled_from([0.5, 1.0, 3.3, 7.0, 15.0]),
)
def test_once_the_pipeline_is_full_growing_wastes_at_most_half_of_what_launches_take(
    wanted: list[float], launch_ms: float, others: float
) -> None:
    found = sizes(wanted, launch_ms, others)
    first = int(others + 1.0)
    assert found[:first] == wanted[:first]
    assert all(size <= want for size, want in zip(found, wanted, strict=True))
    for before, after in pairwise(found[first - 1 :]):
        assert others * (after - before) <= 0.5 * launch_ms + 1e-6


def test_a_second_request_for_a_moment_does_not_delay_the_first() -> None:
    stages, launch = 8, 6.0
    small, large = [100.0] * 20, [600.0] * 4
    limited = sizes([*small, *large], launch, stages - 1.0)
    work, done = sum(large), sum(limited[:20])
    while done < 20 * 100.0 + work:  # the same work, in more waves
        limited.append(100.0)
        done = sum(limited)
    eager = flow_shop_ms([wave + launch for wave in [*small, *large]], stages)
    careful = flow_shop_ms([wave + launch for wave in limited], stages)
    assert careful < 0.65 * eager


def test_shrinking_is_free_and_growing_back_is_not() -> None:
    assert sizes([100.0, 100.0, 10.0, 100.0], 6.0, 1.0) == [100.0, 100.0, 10.0, 13.0]


def test_a_lone_stage_has_no_bubbles_to_fear() -> None:
    assert sizes([1.0, 1.0, 1000.0], 6.0, 0.0) == [1.0, 1.0, 1000.0]


def test_after_idleness_there_is_no_last_wave() -> None:
    growth = WaveGrowth()
    for _ in range(5):
        growth.limited(10.0, 6.0, 1.0)
    assert growth.limited(500.0, 6.0, 1.0) == pytest.approx(13.0)
    growth.idle()
    assert growth.limited(500.0, 6.0, 1.0) == pytest.approx(500.0)


def test_a_wave_keeps_its_size_when_its_price_changes() -> None:
    growth = WaveGrowth()
    for _ in range(3):
        growth.limited(10.0, 0.0, 1.0)
    growth.repriced(4.0)
    assert growth.limited(1000.0, 0.0, 1.0) == pytest.approx(40.0)
