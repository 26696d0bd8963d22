"""Waves of a certain predicted time: the promises of the packing over whole runs, and its rules by example."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from wavepp.core.ids import GrantId
from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.prefill_queue import PrefillQueue
from wavepp.core.waves.target import Cutting, WaveSize
from wavepp.core.waves.time_packing import TimeBudget
from wavepp.core.waves.types import Chunk, PlannerConfig

PARTS, ANYWHERE, MIXED = Cutting.EQUAL_PARTS, Cutting.ANYWHERE, Cutting.MIXED
A = 64
FLAT = StageCost(launch_ms=0.0, token_ms=1.0, pair_ms=0.0)
"""A token costs 1 ms wherever it is, so targets are tokens."""


def config(m: int = 16 * A, **changes: Any) -> PlannerConfig:
    return PlannerConfig(4, m, A, A, A, **changes)


def packed(
    *requests: tuple[int, int],
    target: float,
    cutting: Cutting,
    config: PlannerConfig,
    cost: StageCost = FLAT,
    slots: int = 99,
) -> list[list[tuple[int, int, int]]]:
    """The waves (request, start, length) until nothing waits."""
    queue = PrefillQueue(config)
    for grant, (start, end) in enumerate(requests):
        queue.add(GrantId(grant), start, end)
    waves = []
    while queue:
        chunks = queue.take(TimeBudget(WaveSize(target, cutting), cost), slots)
        waves.append([(chunk.grant, chunk.start, chunk.length) for chunk in chunks])
    return waves


def lengths(waves: list[list[tuple[int, int, int]]]) -> list[list[int]]:
    return [[length for _, _, length in wave] for wave in waves]


# ---- by example --------------------------------------------------------------------------------------------


def test_a_long_request_is_cut_into_equal_parts_rather_than_into_full_ones_and_a_rest() -> None:
    waves = packed((0, 10 * A), target=4 * A, cutting=PARTS, config=config())
    assert lengths(waves) == [[5 * A], [5 * A]]


def test_sliced_it_fills_every_wave_and_the_next_request_takes_what_is_left() -> None:
    waves = packed((0, 6 * A), (0, 6 * A), target=4 * A, cutting=ANYWHERE, config=config())
    assert lengths(waves) == [[4 * A], [2 * A, 2 * A], [4 * A]]


def test_parts_of_equal_time_become_shorter_as_the_prefix_grows() -> None:
    cost = StageCost(0.0, 1.0, 0.01)
    waves = packed(
        (0, 100 * A),
        target=cost.chunk_ms(0, 100 * A) / 5,
        cutting=PARTS,
        config=config(99 * A),
        cost=cost,
    )
    (times,) = [[cost.chunk_ms(start, length) for ((_, start, length),) in waves]]
    assert len(times) == 5
    assert max(times) < 1.15 * min(times)
    assert sorted((length for ((_, _, length),) in waves), reverse=True) == [length for ((_, _, length),) in waves]


@pytest.mark.parametrize(("second", "together"), [(2 * A, True), (4 * A, True), (5 * A, False)])
def test_whole_requests_share_a_wave_where_the_sum_comes_nearest_to_the_target(second: int, together: bool) -> None:
    waves = packed((0, 4 * A), (0, second), target=6 * A, cutting=PARTS, config=config())
    assert len(waves[0]) == (2 if together else 1)


def test_where_requests_are_alike_one_that_waits_is_not_overtaken_by_one_that_would_fit() -> None:
    waves = packed((0, 4 * A), (0, 5 * A), (0, A), target=5 * A, cutting=PARTS, config=config())
    assert [[grant for grant, _, _ in wave] for wave in waves] == [[0], [1], [2]]


def test_where_requests_differ_one_that_fits_whole_may_overtake_one_that_would_get_a_small_fragment() -> None:
    waves = packed((0, 4 * A), (0, 50 * A), (0, A), target=5 * A, cutting=MIXED, config=config())
    assert [grant for grant, _, _ in waves[0]] == [0, 2]
    strict = config(fill_ahead_max=0)
    waves = packed((0, 4 * A), (0, 50 * A), (0, A), target=5 * A, cutting=MIXED, config=strict)
    assert [grant for grant, _, _ in waves[0]] == [0]


def test_where_requests_differ_a_fragment_of_half_a_wave_is_taken() -> None:
    waves = packed((0, 2 * A), (0, 50 * A), target=4 * A, cutting=MIXED, config=config())
    assert lengths(waves)[0] == [2 * A, 2 * A]


def test_some_much_smaller_requests_share_the_waves_of_a_huge_one() -> None:
    waves = packed((0, 100 * A), (0, 20 * A), (0, A), (0, A), target=8 * A, cutting=ANYWHERE, config=config())
    assert waves[0] == [(0, 0, 6 * A), (2, 0, A), (3, 0, A)]
    assert {grant for wave in waves[1:10] for grant, _, _ in wave} == {0}


def test_a_huge_one_keeps_half_of_every_wave() -> None:
    waves = packed((0, 200 * A), *[(0, A)] * 60, target=8 * A, cutting=ANYWHERE, config=config())
    assert [wave[0][2] for wave in waves[:14]] == [4 * A] * 14


def test_a_target_below_the_alignment_still_makes_progress() -> None:
    assert lengths(packed((10, 200), target=1e-6, cutting=ANYWHERE, config=config())) == [[54], [64], [64], [8]]


def test_no_wave_has_more_than_m_tokens_however_large_the_target() -> None:
    assert lengths(packed((10, 400), target=1e9, cutting=PARTS, config=config(2 * A))) == [
        [118],
        [128],
        [128],
        [16],
    ]


def test_m_of_a_single_block() -> None:
    assert lengths(packed((0, 150), (0, 64), target=1e9, cutting=ANYWHERE, config=config(A))) == [
        [64],
        [64],
        [22],
        [64],
    ]


def test_the_place_of_a_snapshot_is_a_cut() -> None:
    waves = packed((0, 3 * A + 10), target=100 * A, cutting=PARTS, config=config(snapshot_interval_tokens=A))
    assert lengths(waves) == [[3 * A], [10]]


def test_on_a_fixed_grid_chunks_run_to_the_grid_whatever_the_target() -> None:
    fixed = config(4 * A, fixed_grid=True)
    assert lengths(packed((A, 10 * A), target=A, cutting=ANYWHERE, config=fixed)) == [[3 * A], [4 * A], [2 * A]]
    assert lengths(packed((0, A), (0, A), (0, A), target=2 * A, cutting=ANYWHERE, config=fixed)) == [
        [A, A],
        [A],
    ]


# ---- over whole runs ---------------------------------------------------------------------------------------


@st.composite
def costs(draw: st.DrawFn) -> StageCost:
    return StageCost(1.0, draw(st.sampled_from([0.001, 1.0])), draw(st.sampled_from([0.0, 1e-6, 1e-3])))


sizes = st.one_of(st.integers(1, 4 * A), st.integers(1, 60 * A))
requests = st.lists(
    st.tuples(st.one_of(st.integers(0, 30).map(lambda block: block * A), st.integers(0, 30 * A)), sizes),
    min_size=1,
    max_size=12,
)


def allowed_order(waiting: list[tuple[int, int, int, int]], budget: TimeBudget) -> list[int]:
    """The grants of (grant, reused, position, end) in the order in which they may be served."""
    cost = budget.cost
    grant, reused, position, end = waiting[0]
    order = [one[0] for one in waiting]
    if cost.chunk_ms(position, end - position) <= 2.0 * budget.size.work_ms:
        return order
    small = [
        other
        for other, start, _, stop in waiting[1:65]
        if 16.0 * cost.chunk_ms(start, stop - start) <= cost.chunk_ms(reused, end - reused)
    ]
    return [grant, *small, *(other for other in order if other != grant and other not in small)]


def check_wave(chunks: list[Chunk], budget: TimeBudget, m: int, slots: int, ends: dict[int, int]) -> None:
    assert len({chunk.grant for chunk in chunks}) == len(chunks) <= slots
    assert sum(chunk.length for chunk in chunks) <= m
    for chunk in chunks:
        stop = chunk.start + chunk.length
        assert chunk.length >= 1
        assert stop == ends[chunk.grant] or (stop % A == 0 and stop < ends[chunk.grant])
    if len(chunks) == 1 and chunks[0].length <= A:
        return
    target, cost = budget.size.work_ms, budget.cost
    snap = 0.5 if budget.size.cutting is PARTS else 0.12
    # A cut is rounded up to the alignment by less than 0.7 of it.
    rounding = max(cost.chunk_ms(chunk.start + chunk.length, A) for chunk in chunks) * 0.7
    assert sum(cost.chunk_ms(chunk.start, chunk.length) for chunk in chunks) <= target * (1.0 + snap) + rounding


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_waits_and_whatever_the_targets_the_packing_keeps_its_promises(data: st.DataObject) -> None:
    cost = data.draw(costs())
    m = A * data.draw(st.sampled_from([1, 2, 3, 16, 100]))
    slots = data.draw(st.sampled_from([1, 2, 100]))
    queue, made = PrefillQueue(config(m)), data.draw(requests)
    waiting = [(grant, start, start, start + length) for grant, (start, length) in enumerate(made)]
    ends = {grant: end for grant, _, _, end in waiting}
    for grant, start, _, end in waiting:
        queue.add(GrantId(grant), start, end)
    work = sum(cost.chunk_ms(start, end - start) for _, start, _, end in waiting)
    waves = 0
    while waiting:
        share = data.draw(st.sampled_from([1e-3, 0.05, 0.1, 0.3, 1.0, 5.0])) if waves < 5 else 0.2
        cutting = data.draw(st.sampled_from(Cutting)) if waves < 5 else ANYWHERE
        budget = TimeBudget(WaveSize(work * share, cutting), cost)
        order = allowed_order(waiting, budget)
        chunks = queue.take(budget, slots)
        queue.validate()
        check_wave(chunks, budget, m, slots, ends)
        served = [chunk.grant for chunk in chunks]
        if cutting is MIXED:
            assert served == [grant for grant in order if grant in served]
        else:
            assert served == order[: len(chunks)], "no one is passed over"
        taken = {chunk.grant: chunk for chunk in chunks}
        assert waiting[0][0] in taken, "the first always advances"
        for grant, _, position, _ in waiting:
            assert grant not in taken or taken[grant].start == position
        moved = [
            (grant, start, position + (taken[grant].length if grant in taken else 0), end)
            for grant, start, position, end in waiting
        ]
        waiting = [one for one in moved if one[2] < one[3]]
        waves += 1
    event(f"waves: {min(waves, 20)}")
    assert not queue
    assert queue.tokens == 0


@given(st.data())
def test_on_a_fixed_grid_no_cut_depends_on_the_target_or_on_the_others(data: st.DataObject) -> None:
    m = A * data.draw(st.sampled_from([1, 4, 10]))
    target = data.draw(st.floats(1e-3, 1e5))
    waves = packed(
        *data.draw(requests.map(_spans)),
        target=target,
        cutting=data.draw(st.sampled_from(Cutting)),
        config=config(m, fixed_grid=True),
    )
    chunks = [chunk for wave in waves for chunk in wave]
    for grant, start, length in chunks:
        last = not any(other == grant and later > start for other, later, _ in chunks)
        assert (start + length) % m == 0 or last
        assert start // m == (start + length - 1) // m
    assert all(sum(length for _, _, length in wave) <= m for wave in waves)


def _spans(made: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(start, start + length) for start, length in made]
