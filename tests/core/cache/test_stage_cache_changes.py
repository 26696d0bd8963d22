"""A stage's cache as the directory sees it: changes, dumps, room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cache_bench import DENSE, HYBRID, B, Bench, evict, key_of, keys_of

from wavepp.core.cache.changes import UNDRAINED_CHANGES_MAX, ChangeLog, dump_segments
from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.cache.types import ChangeKind
from wavepp.core.errors import InvalidInputError
from wavepp.core.keys import key_at


@pytest.fixture
def dense() -> Bench:
    return Bench(StageCache(DENSE))


@pytest.fixture
def hybrid() -> Bench:
    return Bench(StageCache(HYBRID))


def test_changes_come_in_order_and_are_numbered_without_a_gap(dense: Bench) -> None:
    dense.cached("ab")
    first = dense.cache.drain_changes(at_most=1)
    assert (first.first_number, first.gap) == (0, False)
    assert first.changes == ((ChangeKind.PUBLISHED, key_of("a")),)
    dense.cached("abc")
    second = dense.cache.drain_changes()
    assert second.first_number == 1
    assert second.changes == ((ChangeKind.PUBLISHED, key_of("ab")), (ChangeKind.PUBLISHED, key_of("abc")))
    assert dense.cache.cursor == 3
    evict(dense, 2)
    assert [change.key for change in dense.cache.drain_changes().changes] == [key_of("abc"), key_of("ab")]
    assert dense.cache.drain_changes().changes == ()
    with pytest.raises(InvalidInputError):
        dense.cache.drain_changes(at_most=0)


def test_too_many_waiting_changes_are_dropped_and_the_gap_is_told_once() -> None:
    log = ChangeLog()
    for _ in range(UNDRAINED_CHANGES_MAX):
        log.add(ChangeKind.PUBLISHED, key_of("a"))
    assert not log.drain(1).gap
    log.add(ChangeKind.PUBLISHED, key_of("a"))
    log.add(ChangeKind.WITHDRAWN, key_of("a"))
    log.add(ChangeKind.PUBLISHED, key_of("b"))
    drained = log.drain()
    assert (drained.first_number, drained.gap) == (UNDRAINED_CHANGES_MAX + 2, True)
    assert drained.changes == ((ChangeKind.PUBLISHED, key_of("b")),)
    assert log.drain() == replace(drained, first_number=UNDRAINED_CHANGES_MAX + 3, changes=(), gap=False)


def test_a_dump_is_what_was_held_when_it_was_asked_for(hybrid: Bench) -> None:
    hybrid.cached("abc", snapshots=(2,))
    cursor = hybrid.cache.cursor
    dump = hybrid.cache.dump()
    evict(hybrid, 3)
    [segment] = list(dump)
    assert (segment.cursor, segment.last) == (cursor, True)
    assert (segment.keys, segment.snapshot_keys) == (keys_of("abc"), key_of("ab"))
    [empty] = list(hybrid.cache.dump())
    assert (empty.keys, empty.snapshot_keys, empty.last) == (b"", b"", True)


@pytest.mark.parametrize("segment_keys", [1, 2, 3, 4, 5, 6, 100])
def test_a_dump_comes_in_segments_that_make_up_the_whole(segment_keys: int) -> None:
    keys = [key_at(keys_of("abcd"), i) for i in range(4)]
    segments = list(dump_segments(9, keys, keys[:2], segment_keys))
    assert b"".join(segment.keys for segment in segments) == keys_of("abcd")
    assert b"".join(segment.snapshot_keys for segment in segments) == keys_of("ab")
    assert all(len(segment.keys + segment.snapshot_keys) <= 16 * segment_keys for segment in segments)
    assert [segment.last for segment in segments] == [False] * (len(segments) - 1) + [True]
    assert len(segments) == -(-6 // segment_keys)


def test_room_is_numbered_by_its_changes(dense: Bench) -> None:
    number = dense.cache.room().number
    grant = dense.prepared("ab")
    assert dense.cache.room().number == number + 1
    dense.cache.commit(grant)
    dense.cache.materialise(grant, 2 * B)
    assert dense.cache.room().number == number + 1
    dense.release(grant)
    assert dense.cache.room().number == number + 2


def test_pinned_keys_are_those_of_published_blocks_only(dense: Bench) -> None:
    dense.cached("abc")
    grant = dense.prepared("abcd")
    assert dense.cache.pinned_keys(grant, 1, 3) == keys_of("abc")[16:]
    assert dense.cache.pinned_keys(grant, 3, 3) == b""
    with pytest.raises(InvalidInputError, match="not all known"):
        dense.cache.pinned_keys(grant, 2, 4)
