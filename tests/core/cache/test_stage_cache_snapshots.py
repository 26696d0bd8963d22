"""A stage's cache where layers are recurrent: snapshots and state slots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cache_bench import DENSE, HYBRID, B, Bench, evict, key_of, keys_of

from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.cache.types import ChangeKind, Missing, PoolSizes, Prepared
from wavepp.core.errors import InvalidInputError
from wavepp.core.keys import key_at


@pytest.fixture
def dense() -> Bench:
    return Bench(StageCache(DENSE))


@pytest.fixture
def hybrid() -> Bench:
    return Bench(StageCache(HYBRID))


def test_the_endpoint_falls_to_a_snapshot_and_the_lower_ones_are_offered(hybrid: Bench) -> None:
    hybrid.cached("abcdef", snapshots=(1, 3, 5))
    grant, answer = hybrid.prepare("abcdefg", endpoint_blocks=5)
    assert answer == Prepared(5 * B, (5 * B, 3 * B, B))
    hybrid.release(grant)
    grant, answer = hybrid.prepare("abcdefg", endpoint_blocks=4)
    assert answer == Prepared(3 * B, (3 * B, B))
    assert hybrid.cache.restore_slot(grant) is not None
    usage = hybrid.cache.usage()
    assert (usage["snapshot"].pinned, usage["kv"].pinned, usage["kv"].cached) == (1, 3, 3)


def test_without_a_snapshot_nothing_is_reused(hybrid: Bench) -> None:
    hybrid.cached("abc")
    grant, answer = hybrid.prepare("abcd")
    assert answer == Prepared(0, ())
    assert hybrid.cache.restore_slot(grant) is None


def test_at_most_64_endpoints_are_offered() -> None:
    bench = Bench(StageCache(replace(HYBRID, sizes=PoolSizes(80, 3, 80), pins_max_blocks=80)))
    prompt = "abcdefghij" * 7
    grant = bench.prepared(prompt)
    bench.run(grant, prompt, snapshots=tuple(range(1, 71)))
    bench.release(grant)
    _, answer = bench.prepare(prompt)
    assert answer == Prepared(70 * B, tuple(n * B for n in range(70, 6, -1)))


def test_stepping_down_moves_the_pin_to_the_earlier_snapshot(hybrid: Bench) -> None:
    hybrid.cached("abcdef", snapshots=(1, 3, 5))
    grant = hybrid.prepared("abcdefg", endpoint_blocks=5)
    high = hybrid.cache.restore_slot(grant)
    assert hybrid.cache.lower(grant, 3 * B) == Prepared(3 * B, (3 * B, B))
    hybrid.cache.validate()
    assert hybrid.cache.restore_slot(grant) not in (None, high)
    assert hybrid.cache.lower(grant, 0) == Prepared(0, ())
    hybrid.cache.validate()
    assert hybrid.cache.usage()["snapshot"].pinned == 0


def test_an_offered_snapshot_that_is_gone_is_told_and_a_new_prepare_sees_the_rest() -> None:
    bench = Bench(StageCache(replace(HYBRID, sizes=PoolSizes(14, 3, 3), pins_max_blocks=14)))
    bench.cached("abcdef", snapshots=(1, 3, 5))
    grant = bench.prepared("abcdef", endpoint_blocks=5)
    other = bench.prepared("xyz")
    bench.cache.commit(other)
    bench.cache.materialise(other, 3 * B)
    assert bench.cache.materialise_snapshot(other, B) is not None
    before = bench.cache.usage()
    assert bench.cache.lower(grant, B) == Missing("snapshot", 0, 0)
    assert bench.cache.usage() == before
    bench.release(grant)
    assert bench.prepare("abcdef", endpoint_blocks=5)[1] == Prepared(5 * B, (5 * B, 3 * B))


def test_a_step_down_gives_up_its_own_reserved_slot_before_it_fails() -> None:
    bench = Bench(StageCache(replace(HYBRID, sizes=PoolSizes(14, 3, 2), pins_max_blocks=14)))
    bench.cached("abcd", snapshots=(1, 3))
    grant = bench.prepared("abcd", endpoint_blocks=3)
    shares = bench.prepared("abcd", endpoint_blocks=3)
    assert bench.room("snapshot") == 0
    assert bench.cache.lower(grant, B) == Prepared(B, (B,))
    bench.cache.validate()
    assert bench.cache.usage()["snapshot"].reserved == 0
    assert bench.cache.lower(shares, B) == Prepared(B, (B,))
    bench.cache.validate()


def test_a_snapshot_is_found_only_after_it_was_written(hybrid: Bench) -> None:
    writer = hybrid.prepared("abc")
    hybrid.cache.commit(writer)
    hybrid.cache.materialise(writer, 3 * B)
    slot = hybrid.cache.materialise_snapshot(writer, 2 * B)
    assert slot is not None
    assert hybrid.cache.materialise_snapshot(writer, 2 * B) == slot
    with pytest.raises(InvalidInputError, match="publish the blocks first"):
        hybrid.cache.publish_snapshot(writer, 2 * B)
    hybrid.cache.publish(writer, 2 * B, keys_of("ab"), 0)
    reader, answer = hybrid.prepare("abx", extra_tokens=0, endpoint_blocks=2)
    assert answer == Prepared(0, ())
    hybrid.release(reader)
    assert hybrid.cache.publish_snapshot(writer, 2 * B)
    reader, answer = hybrid.prepare("abx", extra_tokens=0, endpoint_blocks=2)
    assert answer == Prepared(2 * B, (2 * B,))
    assert hybrid.cache.restore_slot(reader) == slot
    assert not hybrid.cache.publish_snapshot(writer, 2 * B)


def test_a_second_snapshot_of_the_same_prefix_is_freed(hybrid: Bench) -> None:
    one, two = hybrid.prepared("a"), hybrid.prepared("a")
    hybrid.run(one, "a", snapshots=(1,))
    hybrid.run(two, "a", snapshots=(1,))
    usage = hybrid.cache.usage()["snapshot"]
    assert (usage.cached, usage.owned, usage.free) == (1, 0, 2)


@pytest.mark.parametrize("at_tokens", [0, B - 1, 2 * B, 4 * B])
def test_a_snapshot_is_only_taken_on_a_boundary_that_the_grant_computes(hybrid: Bench, at_tokens: int) -> None:
    hybrid.cached("abc", snapshots=(2,))
    grant = hybrid.prepared("abcd")
    hybrid.cache.commit(grant)
    hybrid.cache.materialise(grant, 3 * B)
    with pytest.raises(InvalidInputError, match="snapshot"):
        hybrid.cache.materialise_snapshot(grant, at_tokens)
    assert hybrid.cache.materialise_snapshot(grant, 3 * B) is not None


def test_a_dense_stage_takes_no_snapshot(dense: Bench) -> None:
    grant = dense.prepared("ab")
    dense.cache.commit(grant)
    dense.cache.materialise(grant, B)
    with pytest.raises(InvalidInputError, match="recurrent"):
        dense.cache.materialise_snapshot(grant, B)


def test_the_oldest_snapshot_makes_room_for_a_new_one(hybrid: Bench) -> None:
    for prompt in ("a", "b", "c"):
        hybrid.cached(prompt, snapshots=(1,))
    used = hybrid.prepared("ax", extra_tokens=0, endpoint_blocks=1)
    hybrid.cache.commit(used)
    hybrid.release(used)
    hybrid.cached("d", snapshots=(1,))
    kept = b"".join(segment.snapshot_keys for segment in hybrid.cache.dump())
    assert {key_at(kept, i) for i in range(3)} == {key_of("a"), key_of("c"), key_of("d")}


def test_writing_a_snapshot_that_is_there_counts_as_its_use(hybrid: Bench) -> None:
    one, two = hybrid.prepared("a"), hybrid.prepared("a")
    hybrid.run(one, "a", snapshots=(1,))
    hybrid.cached("b", snapshots=(1,))
    hybrid.run(two, "a", snapshots=(1,))
    for prompt in ("c", "d"):
        hybrid.cached(prompt, snapshots=(1,))
    kept = b"".join(segment.snapshot_keys for segment in hybrid.cache.dump())
    assert kept == key_of("a") + key_of("c") + key_of("d")


def test_a_lack_of_snapshot_slots_keeps_nobody_waiting() -> None:
    bench = Bench(StageCache(replace(HYBRID, sizes=PoolSizes(10, 3, 1))))
    bench.cached("ab", snapshots=(1,))
    grant = bench.prepared("abc", extra_tokens=0, endpoint_blocks=2)
    assert bench.cache.endpoint_tokens(grant) == B
    bench.cache.commit(grant)
    bench.cache.materialise(grant, 3 * B)
    assert bench.cache.materialise_snapshot(grant, 2 * B) is None
    assert not bench.cache.publish_snapshot(grant, 2 * B)


def test_a_snapshot_slot_that_is_promised_to_another_cannot_be_pinned_away(hybrid: Bench) -> None:
    bench = Bench(StageCache(replace(HYBRID, sizes=PoolSizes(10, 3, 1))))
    bench.cached("a", snapshots=(1,))
    other = bench.prepared("xy", extra_tokens=0, endpoint_blocks=1)
    assert bench.prepare("ab", extra_tokens=0, endpoint_blocks=1)[1] == Missing("snapshot", 1, 0)
    bench.release(other)
    assert bench.prepare("ab", extra_tokens=0, endpoint_blocks=1)[1] == Prepared(B, (B,))


def test_a_snapshot_goes_with_its_block(hybrid: Bench) -> None:
    hybrid.cached("abc", snapshots=(3,))
    hybrid.cache.drain_changes()
    evict(hybrid, 1)
    drained = hybrid.cache.drain_changes()
    assert drained.changes == (
        (ChangeKind.SNAPSHOT_WITHDRAWN, key_of("abc")),
        (ChangeKind.WITHDRAWN, key_of("abc")),
    )
    usage = hybrid.cache.usage()["snapshot"]
    assert (usage.free, usage.cached) == (3, 0)


def test_every_running_grant_has_a_state_slot_of_its_own(hybrid: Bench) -> None:
    grants = [hybrid.prepared(prompt, extra_tokens=0, endpoint_blocks=0) for prompt in "abc"]
    assert hybrid.prepare("d", extra_tokens=0, endpoint_blocks=0)[1] == Missing("state", 1, 0)
    for grant in grants:
        assert hybrid.cache.state_slot(grant) is None
        hybrid.cache.commit(grant)
        hybrid.cache.materialise(grant, B)
    assert {hybrid.cache.state_slot(grant) for grant in grants} == {0, 1, 2}
    hybrid.release(grants[1])
    assert hybrid.room("state") == 1
    assert isinstance(hybrid.prepare("d", extra_tokens=0, endpoint_blocks=0)[1], Prepared)
