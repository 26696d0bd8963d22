"""Waves grow as fast as launches pay for, and shrink as they like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.waves.growth import WaveGrowth


def budgets(wanted: list[float], launch_ms: float, stages: int) -> list[float]:
    """Of waves that are issued with others in flight, on equal stages."""
    growth = WaveGrowth(stages)
    return [growth.next_ms(work_ms, launch_ms, stages - 1.0, min(at, 1)) for at, work_ms in enumerate(wanted)]


def flow_shop(waves: list[float], stages: int) -> list[float]:
    """When each wave has left the last of equal stages, which do them one after another: step by step."""
    free, done = [0.0] * stages, []
    for work in waves:
        ready = 0.0
        for stage in range(stages):
            free[stage] = max(free[stage], ready) + work
            ready = free[stage]
        done.append(ready)
    return done


@given(
    st.lists(st.floats(1.0, 1e4), min_size=1, max_size=60),
    st.floats(0.0, 100.0),
    st.integers(2, 16),
)
def test_what_growing_wastes_is_half_of_what_launches_take_or_a_small_share_of_the_work(
    wanted: list[float], launch_ms: float, stages: int
) -> None:
    waves = budgets(wanted, launch_ms, stages)
    assert all(wave <= want for wave, want in zip(waves, wanted, strict=True))
    assert waves[:stages] == wanted[:stages]
    filled = max(waves[:stages])
    # All but the first stage wait (P - 1) times as long as the largest wave takes: that is all they ever wait.
    idle = flow_shop(waves, stages)[-1] - sum(waves) - (stages - 1) * filled
    grown = max(0, len(waves) - stages)
    assert idle <= grown * 0.5 * launch_ms + ((stages - 1) * 0.001 + 1e-6) * sum(waves)


def test_a_second_request_for_a_moment_hardly_delays_the_first() -> None:
    stages, launch_ms = 8, 6.0
    eager = [100.0] * 20 + [600.0]
    careful = budgets([100.0] * 20 + [600.0] * 6, launch_ms, stages)
    assert sum(careful) >= sum(eager)  # at least as much done

    def first_done(waves: list[float], work: float) -> float:
        done = flow_shop([wave + launch_ms for wave in waves], stages)
        return next(at for i, at in enumerate(done) if sum(waves[: i + 1]) >= work - 1e-6)

    assert first_done(careful, 2600.0) < 0.6 * first_done(eager, 2600.0)


def test_shrinking_is_free_and_so_is_growing_back_while_larger_waves_are_on_their_way() -> None:
    assert budgets([100.0, 100.0, 10.0, 100.0], 6.0, 2) == [100.0, 100.0, 10.0, 100.0]
    assert budgets([100.0, 100.0, 10.0, 10.0, 100.0], 6.0, 2) == [100.0, 100.0, 10.0, 10.0, 13.0]


def test_a_lone_stage_has_no_bubbles_to_fear() -> None:
    assert budgets([1.0, 1.0, 1000.0], 6.0, 1) == [1.0, 1.0, 1000.0]


def test_waves_grow_even_if_launches_cost_nothing() -> None:
    found = budgets([1.0] * 8 + [1000.0] * 7000, 0.0, 8)
    assert found[-1] == pytest.approx(1000.0)
    assert found[100] < 2.0


def test_an_empty_pipeline_may_be_filled_with_any_waves() -> None:
    growth = WaveGrowth(2)
    for _ in range(5):
        growth.next_ms(10.0, 6.0, 1.0, 2)
    assert growth.next_ms(500.0, 6.0, 1.0, 2) == pytest.approx(13.0)
    assert growth.next_ms(500.0, 6.0, 1.0, 0) == pytest.approx(500.0)
    growth.next_ms(10.0, 6.0, 1.0, 1)
    growth.next_ms(10.0, 6.0, 1.0, 1)
    growth.forget()
    assert growth.next_ms(500.0, 6.0, 1.0, 1) == pytest.approx(500.0)


def test_waves_keep_their_size_when_their_price_changes() -> None:
    growth = WaveGrowth(2)
    for _ in range(3):
        growth.next_ms(10.0, 6.0, 1.0, 2)
    growth.repriced(4.0)
    assert growth.next_ms(1000.0, 6.0, 1.0, 2) == pytest.approx(43.0)
