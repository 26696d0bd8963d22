"""Virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.errors import InvariantError
from wavepp.sim.clients import ClosedLoop, replay
from wavepp.sim.clock import VirtualClock


def never() -> bool:
    return False


@given(st.lists(st.integers(0, 5)))
def test_what_happens_does_so_in_order_of_time_and_then_of_scheduling(times: list[int]) -> None:
    clock, happened = VirtualClock(), list[tuple[float, int]]()
    for number, time_ms in enumerate(times):
        clock.at(float(time_ms), lambda number=number: happened.append((clock.now_ms, number)))  # type: ignore[misc]
    clock.run(never)
    assert happened == sorted((float(time_ms), number) for number, time_ms in enumerate(times))


def test_what_is_scheduled_for_now_happens_after_what_was_scheduled_for_now_before() -> None:
    clock, happened = VirtualClock(), list[str]()
    clock.at(1.0, lambda: clock.after(0.0, lambda: happened.append("third")))
    clock.at(1.0, lambda: happened.append("second"))
    clock.at(0.0, lambda: happened.append("first"))
    clock.run(never)
    assert happened == ["first", "second", "third"]


def test_nothing_happens_in_the_past() -> None:
    clock = VirtualClock()
    clock.at(5.0, lambda: None)
    clock.run(never)
    with pytest.raises(InvariantError):
        clock.at(4.0, lambda: None)
    with pytest.raises(InvariantError):
        clock.after(-1.0, lambda: None)


def test_a_run_stops_when_its_condition_holds_and_goes_on_from_there() -> None:
    clock, happened = VirtualClock(), list[float]()
    for time_ms in (1.0, 2.0, 3.0):
        clock.at(time_ms, lambda: happened.append(clock.now_ms))
    clock.run(lambda: len(happened) == 2)
    assert (happened, clock.now_ms) == ([1.0, 2.0], 2.0)
    clock.run(never)
    assert happened == [1.0, 2.0, 3.0]


def test_a_run_without_an_end_is_an_error() -> None:
    clock = VirtualClock()

    def again() -> None:
        clock.after(1.0, again)

    again()
    with pytest.raises(InvariantError):
        clock.run(never, events_max=100)


# ---- clients -----------------------------------------------------------------------------------------------


def test_a_closed_loop_asks_again_once_for_every_answer() -> None:
    clock, asked = VirtualClock(), list[tuple[float, int]]()
    loop = ClosedLoop(clock, iter(range(100)), 3, lambda ask: asked.append((clock.now_ms, ask)))
    clock.at(7.0, loop.answered)
    clock.run(never)
    assert asked == [(0.0, 0), (0.0, 1), (0.0, 2), (7.0, 3)]


def test_a_trace_is_replayed_at_its_times_and_faster_if_wanted() -> None:
    clock, asked = VirtualClock(), list[tuple[float, str]]()
    replay(clock, [(10.0, "a"), (30.0, "b")], 2.0, lambda ask: asked.append((clock.now_ms, ask)))
    clock.run(never)
    assert asked == [(5.0, "a"), (15.0, "b")]
