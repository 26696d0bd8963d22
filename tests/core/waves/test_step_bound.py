"""When a step counts as hung."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.waves.step_bound import FACTOR, STEPS_KEPT, StepBound

STEPS = st.lists(st.tuples(st.integers(0, 10_000), st.floats(0.01, 1e6)), min_size=1, max_size=300)


def test_before_any_step_only_the_bound_for_what_is_not_learned_counts() -> None:
    assert StepBound(10.0, 300.0).limit_ms(5) == 300.0


def test_a_learned_bound_is_a_multiple_of_the_slowest_step_of_late() -> None:
    bound = StepBound(10.0, 300.0)
    bound.observe(512, 40.0)
    bound.observe(512, 30.0)
    assert bound.limit_ms(512) == bound.limit_ms(1) == FACTOR * 40.0
    for _ in range(STEPS_KEPT):
        bound.observe(512, 1.0)
    assert bound.limit_ms(512) == FACTOR


def test_a_step_larger_than_all_gets_more_time_but_not_for_ever() -> None:
    bound = StepBound(10.0, 300.0)
    bound.observe(1, 1.0)
    assert bound.limit_ms(2) == 2 * FACTOR
    assert bound.limit_ms(10_000) == 300.0


@given(STEPS, st.integers(0, 20_000))
def test_no_step_that_is_like_one_of_late_counts_as_hung(steps: list[tuple[int, float]], tokens: int) -> None:
    bound = StepBound(10.0, 300.0)
    for size, duration_ms in steps:
        bound.observe(size, duration_ms)
    kept = steps[-STEPS_KEPT:]
    assert bound.limit_ms(tokens) >= max(10.0, FACTOR * max(d for _, d in kept))


@given(STEPS, st.integers(0, 20_000))
def test_a_bound_that_was_told_what_another_has_learned_is_like_it(steps: list[tuple[int, float]], tokens: int) -> None:
    bound, told = StepBound(10.0, 300.0), StepBound(10.0, 300.0)
    assert bound.learned == (0, 0.0)
    for size, duration_ms in steps:
        bound.observe(size, duration_ms)
    told.observe(*bound.learned)
    assert told.limit_ms(tokens) == bound.limit_ms(tokens)
