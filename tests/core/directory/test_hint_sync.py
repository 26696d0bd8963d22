"""The hint index follows the stages' caches: cursors, gaps, dumps, new incarnations."""

from __future__ import annotations

from wavepp.core.cache.types import CacheChange, ChangeKind
from wavepp.core.directory.events import CacheChanged, CacheDumped
from wavepp.core.directory.hint_sync import HintSync
from wavepp.core.directory.hints import HintIndex
from wavepp.core.ids import PrefixKey, StageIndex

STAGE = StageIndex(0)
KEYS = [PrefixKey(bytes([i]) * 16) for i in range(6)]


def synced(first: int = 0) -> tuple[HintIndex, HintSync]:
    hints = HintIndex(1)
    sync = HintSync(hints, 1)
    assert sync.connected(STAGE, "a", first), "an unknown stage is asked for a dump"
    sync.dumped(CacheDumped(STAGE, "a", b"", b"", True, first))
    return hints, sync


def published(number: int, *keys: PrefixKey, incarnation: str = "a", gap: bool = False) -> CacheChanged:
    changes = tuple(CacheChange(ChangeKind.PUBLISHED, k) for k in keys)
    return CacheChanged(STAGE, incarnation, number, changes, gap)


def test_a_stage_is_in_sync_only_after_the_last_piece_of_its_dump() -> None:
    hints = HintIndex(1)
    sync = HintSync(hints, 1)
    sync.connected(STAGE, "a", 2)
    sync.dumped(CacheDumped(STAGE, "a", KEYS[0], b"", False, 2))
    assert not sync.in_sync(STAGE)
    sync.dumped(CacheDumped(STAGE, "a", KEYS[1], b"", True, 2))
    assert sync.in_sync(STAGE)
    assert hints.stages_holding(KEYS[0]) == hints.stages_holding(KEYS[1]) == 1


def test_changes_in_order_are_applied_and_repeats_do_nothing() -> None:
    hints, sync = synced()
    assert not sync.changed(published(0, KEYS[0], KEYS[1]))
    withdrawn = CacheChanged(STAGE, "a", 2, (CacheChange(ChangeKind.WITHDRAWN, KEYS[0]),), False)
    assert not sync.changed(withdrawn)
    assert not sync.changed(published(0, KEYS[0], KEYS[1])), "an old message that comes again"
    assert hints.stages_holding(KEYS[0]) == 0
    assert hints.stages_holding(KEYS[1]) == 1


def test_a_gap_makes_the_stage_unknown_and_asks_once_for_a_dump() -> None:
    hints, sync = synced()
    assert sync.changed(published(3, KEYS[3]))
    assert not sync.in_sync(STAGE)
    assert not sync.changed(published(4, KEYS[4])), "one dump is on its way; it is not asked for again"
    sync.dumped(CacheDumped(STAGE, "a", KEYS[5], b"", True, 5))
    assert sync.in_sync(STAGE)
    assert hints.stages_holding(KEYS[5]) == 1


def test_what_a_dump_does_not_list_is_forgotten() -> None:
    hints, sync = synced()
    sync.changed(published(0, KEYS[0]))
    sync.changed(published(1, KEYS[1], gap=True))
    sync.dumped(CacheDumped(STAGE, "a", KEYS[2], b"", True, 9))
    assert hints.stages_holding(KEYS[0]) == 0
    assert hints.stages_holding(KEYS[2]) == 1


def test_changes_before_the_end_of_a_dump_are_part_of_it() -> None:
    hints, sync = synced()
    sync.changed(published(7, KEYS[0]))
    sync.changed(published(8, KEYS[1]))
    sync.dumped(CacheDumped(STAGE, "a", KEYS[0] + KEYS[1], b"", True, 9))
    assert not sync.changed(published(9, KEYS[2])), "the cursor goes on where the dump ends"
    assert hints.stages_holding(KEYS[2]) == 1


def test_a_new_incarnation_starts_over_and_the_old_one_is_not_listened_to() -> None:
    hints, sync = synced()
    sync.changed(published(0, KEYS[0]))
    assert sync.connected(STAGE, "b", 0)
    sync.dumped(CacheDumped(STAGE, "a", KEYS[3], b"", True, 1))
    assert not sync.in_sync(STAGE), "a dump of the old incarnation says nothing"
    sync.dumped(CacheDumped(STAGE, "b", b"", b"", True, 0))
    assert sync.in_sync(STAGE)
    assert hints.stages_holding(KEYS[0]) == 0


def test_a_reconnect_at_the_same_cursor_needs_no_dump() -> None:
    _, sync = synced()
    sync.changed(published(0, KEYS[0]))
    sync.disconnected(STAGE)
    assert not sync.connected(STAGE, "a", 1)
    assert sync.in_sync(STAGE)


def test_another_incarnation_at_the_very_same_cursor_is_asked_for_a_dump() -> None:
    _, sync = synced()
    assert not sync.changed(published(0, KEYS[0]))
    sync.disconnected(STAGE)
    assert sync.connected(STAGE, "b", 1), "its one change may be of any key"
    assert not sync.in_sync(STAGE)


def test_a_reconnect_after_missed_changes_asks_for_a_dump() -> None:
    _, sync = synced()
    sync.disconnected(STAGE)
    assert sync.connected(STAGE, "a", 4)
