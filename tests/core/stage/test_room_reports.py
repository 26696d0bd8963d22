"""When a stage tells what room it has."""

from __future__ import annotations

from wavepp.core.cache.types import Missing, Room
from wavepp.core.stage.room_reports import RoomReports


def room(number: int, kv: int) -> Room:
    return Room(number, {"kv": kv, "pins": 9})


def test_room_is_told_when_it_changes_after_a_refusal_and_until_there_is_enough() -> None:
    reports = RoomReports()
    assert reports.after_event(room(1, 3)) is None
    assert reports.after_event(room(2, 2)) is None, "nobody waits"
    reports.refused(Missing("kv", 5, 2))
    assert reports.after_event(room(3, 2)) is None, "the refusal goes out with this number"
    assert reports.after_event(room(3, 2)) is None, "no news"
    assert reports.after_event(room(4, 4)) == room(4, 4)
    assert reports.after_event(room(5, 5)) == room(5, 5)
    assert reports.after_event(room(6, 6)) is None, "there was enough"


def test_the_largest_need_of_a_pool_counts_and_no_need_outlives_the_epoch() -> None:
    reports = RoomReports()
    reports.refused(Missing("kv", 5, 2))
    reports.refused(Missing("kv", 3, 2))
    reports.after_event(room(1, 2))
    assert reports.after_event(room(2, 4)) is not None
    assert reports.after_event(room(3, 4)) is not None, "five are needed"
    reports.new_epoch()
    assert reports.after_event(room(4, 2)) is None
