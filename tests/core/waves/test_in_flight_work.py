"""The requests under way: the same as a list of them says, however long they come and go."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.ids import GrantId
from wavepp.core.waves.cost import StageCost
from wavepp.core.waves.in_flight_work import InFlightWork, Typical

COST = StageCost(launch_ms=6.0, token_ms=0.018, pair_ms=7e-8)


def in_flight(*spans: tuple[int, int], memory: int = 8) -> InFlightWork:
    made = InFlightWork(COST, memory)
    for grant, (start, end) in enumerate(spans):
        made.add(GrantId(grant), start, end)
    return made


class Naive:
    """Everything anew from a list."""

    def __init__(self, memory: int) -> None:
        self.cost = COST
        self.memory = memory
        self.members: dict[int, tuple[int, int]] = {}
        self.seen: list[int] = []

    def look(self) -> Typical:
        works = sorted(self.cost.chunk_ms(start, end - start) for start, end in self.members.values())
        tokens = sum(end - start for start, end in self.members.values())
        self.seen.append(len(works))
        mean = math.fsum(works) / len(works)
        deviation = math.sqrt(math.fsum((work - mean) ** 2 for work in works) / len(works))
        alike = deviation <= 0.15 * mean
        typical = mean if alike else works[max(0, (len(works) - 3) // 2)]
        return Typical(max(self.seen[-self.memory :]), typical, alike, math.fsum(works) / tokens, min(works))


# Few different lengths, so that many works are equal.
spans = st.tuples(st.sampled_from([0, 64, 100_000]), st.sampled_from([1, 64, 70, 5000, 100_000]))
operations = st.one_of(
    st.tuples(st.just("add"), spans),
    st.tuples(st.just("add"), spans),
    st.tuples(st.just("remove"), st.integers(0, 20)),
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("reprice"), st.floats(0.1, 10.0)),
    st.tuples(st.just("clear"), st.none()),
)


@given(st.integers(1, 5), st.lists(operations, max_size=40))
def test_a_population_is_what_a_list_of_its_members_says(memory: int, story: list[tuple[str, object]]) -> None:
    real, naive = InFlightWork(COST, memory), Naive(memory)
    added = 0
    for what, with_ in story:
        match what, with_:
            case "add", (int(start), int(length)):
                real.add(GrantId(added), start, start + length)
                naive.members[added] = (start, start + length)
                added += 1
            case "remove", int(grant):
                real.remove(GrantId(grant))
                naive.members.pop(grant, None)
                if not naive.members:
                    naive.seen.clear()
            case "look", None if naive.members:
                got, expected = real.look(), naive.look()
                assert (got.requests, got.alike) == (expected.requests, expected.alike)
                assert got.work_ms == pytest.approx(expected.work_ms, rel=1e-12)
                assert got.ms_per_token == pytest.approx(expected.ms_per_token, rel=1e-12)
            case "reprice", float(factor):
                naive.cost = StageCost(1.0, COST.token_ms * factor, COST.pair_ms)
                real.reprice(naive.cost)
            case "clear", None:
                real.clear()
                naive.members.clear()
                naive.seen.clear()
        assert len(real) == len(naive.members)


def test_who_has_left_may_leave_again() -> None:
    some = in_flight((0, 100), (0, 100))
    some.remove(GrantId(0))
    some.remove(GrantId(0))
    some.remove(GrantId(7))
    assert len(some) == 1
    assert some.look().work_ms == pytest.approx(COST.chunk_ms(0, 100))


def test_one_that_is_huge_leaves_nothing_behind() -> None:
    equal = in_flight((0, 1), (0, 1))
    unequal = in_flight((0, 1), (0, 2))
    for grant in range(100, 400):
        for some in (equal, unequal):
            some.add(GrantId(grant), 0, 4_000_000 - grant)
            some.remove(GrantId(grant))
    assert equal.look().alike
    assert equal.look().work_ms == pytest.approx(COST.chunk_ms(0, 1), rel=1e-12)
    assert not unequal.look().alike


def test_a_dip_in_their_number_is_bridged_for_as_many_looks_as_are_remembered() -> None:
    some = in_flight((0, 100), (0, 100), (0, 100), memory=3)
    assert some.look().requests == 3
    some.remove(GrantId(0))
    some.remove(GrantId(1))
    assert [some.look().requests for _ in range(4)] == [3, 3, 1, 1]


def test_who_comes_alone_after_all_have_left_is_not_taken_for_one_of_many() -> None:
    some = in_flight((0, 100), (0, 100))
    assert some.look().requests == 2
    some.remove(GrantId(0))
    some.remove(GrantId(1))
    some.add(GrantId(2), 0, 100)
    assert some.look().requests == 1


def test_after_a_reset_the_peak_is_forgotten() -> None:
    some = in_flight((0, 100), (0, 100))
    some.look()
    some.clear()
    some.add(GrantId(9), 0, 100)
    assert some.look().requests == 1


def test_where_requests_differ_the_typical_one_is_among_the_smaller() -> None:
    some = in_flight(*[(0, 1000)] * 5, *[(0, 100_000)] * 5)
    typical = some.look()
    assert not typical.alike
    assert typical.work_ms == pytest.approx(COST.chunk_ms(0, 1000))
