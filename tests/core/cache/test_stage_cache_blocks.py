"""A stage's cache: which block a job gets, which one is shared, which one goes."""

from __future__ import annotations

import pytest
from cache_bench import DENSE, B, Bench, evict, key_of, keys_of

from wavepp.core.cache.eviction import EvictionQueue, LeastRecentlyUsed
from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.errors import InvalidInputError, InvariantError, TransitionError
from wavepp.core.ids import BlockId, GrantId


@pytest.fixture
def dense() -> Bench:
    return Bench(StageCache(DENSE))


# ---- the eviction order --------------------------------------------------------------------------------


def test_the_least_recently_used_prompt_goes_first_and_leaves_before_parents(dense: Bench) -> None:
    dense.cached("abc")
    dense.cached("xyz")
    evict(dense, 4)
    assert (dense.held("abc"), dense.held("xyz")) == (0, 2)
    assert dense.held("xy") == 2


def test_a_shared_parent_outlives_its_children(dense: Bench) -> None:
    dense.cached("ab")
    dense.cached("acd")
    evict(dense, 1)
    assert (dense.held("ab"), dense.held("acd")) == (1, 3)


def test_a_lookup_or_an_aborted_lease_does_not_touch_the_order(dense: Bench) -> None:
    dense.cached("abc")
    dense.cached("xyz")
    aborted = dense.prepared("abc")
    dense.release(aborted)
    evict(dense, 3)
    assert (dense.held("abc"), dense.held("xyz")) == (0, 3)


def test_a_committed_lease_counts_as_a_use(dense: Bench) -> None:
    dense.cached("abc")
    dense.cached("xyz")
    used = dense.prepared("abc")
    dense.cache.commit(used)
    dense.release(used)
    evict(dense, 3)
    assert (dense.held("abc"), dense.held("xyz")) == (3, 0)


def test_the_order_is_the_policys() -> None:
    class ShallowFirst:
        def rank(self, touched: int, depth: int) -> int:
            return depth

    bench = Bench(StageCache(DENSE, ShallowFirst()))
    bench.cached("abc")
    bench.cached("x")
    evict(bench, 1)
    assert (bench.held("abc"), bench.held("x")) == (3, 0)


def test_free_blocks_are_taken_before_cached_ones(dense: Bench) -> None:
    dense.cached("abc")
    evict(dense, 0)
    assert dense.held("abc") == 3


def test_the_eviction_queue_stays_small_when_a_leaf_comes_and_goes() -> None:
    queue = EvictionQueue(LeastRecentlyUsed())
    for block in range(10):
        queue.push(BlockId(block), 0, 0)
    for stamp in range(1, 10_000):
        queue.discard(BlockId(3))
        queue.push(BlockId(3), stamp, 0)
    assert queue.heap_entries < 200
    assert [queue.pop() for _ in range(10)] == [0, 1, 2, 4, 5, 6, 7, 8, 9, 3]
    with pytest.raises(InvariantError):
        queue.pop()


# ---- execution -----------------------------------------------------------------------------------------


def test_blocks_are_owned_chunk_by_chunk_and_covering_again_changes_nothing(dense: Bench) -> None:
    grant = dense.prepared("abcd")
    dense.cache.commit(grant)
    first = dense.cache.materialise(grant, B + 1)
    assert len(first) == 2
    assert dense.cache.usage()["kv"].owned == 2
    number = dense.cache.room().number
    assert dense.cache.materialise(grant, B) == first
    assert dense.cache.room().number == number
    whole = dense.cache.materialise(grant, 4 * B + 1)
    assert whole[:2] == first
    assert len(set(whole)) == 5
    assert dense.cache.usage()["kv"].reserved == 0
    with pytest.raises(InvalidInputError, match="5 blocks"):
        dense.cache.materialise(grant, 5 * B + 1)


def test_no_block_that_a_grant_references_is_taken(dense: Bench) -> None:
    dense.cached("abcde")
    reader = dense.prepared("abc", extra_tokens=0, endpoint_blocks=2)
    table = dense.cache.table(reader)
    evict(dense, 2)
    assert dense.cache.table(reader) == table
    assert not set(table) & set(dense.cache.table(GrantId(1000)))
    assert dense.cache.pinned_keys(reader, 0, 2) == keys_of("ab")


def test_two_grants_that_compute_the_same_block_share_the_first_one(dense: Bench) -> None:
    one, two = dense.prepared("ab"), dense.prepared("abc")
    dense.run(one, "ab")
    dense.cache.commit(two)
    own = dense.cache.materialise(two, 3 * B)
    free = dense.cache.usage()["kv"].free
    dense.cache.publish(two, 3 * B, keys_of("abc"), 0)
    dense.cache.validate()
    shared = dense.cache.table(two)
    assert shared[:2] == dense.cache.table(one)[:2] != own[:2]
    assert shared[2] == own[2]
    assert dense.cache.usage()["kv"].free == free + 2
    dense.release(one)
    assert dense.cache.usage()["kv"].pinned == 3
    dense.release(two)
    assert dense.held("abc") == 3


def test_a_kept_block_that_nobody_used_is_pinned_by_the_grant_that_meets_it(dense: Bench) -> None:
    grant = dense.prepared("ab")
    dense.cached("ab")
    dense.run(grant, "ab")
    assert dense.cache.usage()["kv"].pinned == 2
    assert dense.held("ab") == 2


def test_blocks_are_published_in_order_only_once_and_only_when_computed(dense: Bench) -> None:
    grant = dense.prepared("abcd")
    dense.cache.commit(grant)
    dense.cache.materialise(grant, 3 * B)
    keys = keys_of("abcd")
    with pytest.raises(InvalidInputError, match="without a gap"):
        dense.cache.publish(grant, 3 * B, keys[16:32], 1)
    with pytest.raises(InvalidInputError, match="without a gap"):
        dense.cache.publish(grant, 2 * B - 1, keys[:32], 0)
    with pytest.raises(InvalidInputError, match="without a gap"):
        dense.cache.publish(grant, 4 * B, keys, 0)
    dense.cache.publish(grant, 2 * B, keys[:32], 0)
    dense.cache.publish(grant, 3 * B, keys[:48], 0)
    assert dense.held("abcd") == 3
    with pytest.raises(InvalidInputError, match="not as"):
        dense.cache.publish(grant, 3 * B, keys_of("x"), 0)
    dense.cache.validate()


def test_a_key_that_is_held_after_another_prefix_is_refused(dense: Bench) -> None:
    dense.cached("ab")
    grant = dense.prepared("xy")
    dense.cache.commit(grant)
    dense.cache.materialise(grant, 2 * B)
    with pytest.raises(InvalidInputError, match="another prefix"):
        dense.cache.publish(grant, 2 * B, key_of("x") + key_of("ab"), 0)
    dense.cache.validate()
    dense.release(grant)
    assert dense.held("xy") == 1


def test_a_step_before_the_first_chunk_is_impossible_and_says_what_happened(dense: Bench) -> None:
    grant = dense.prepared("ab")
    for step in (
        lambda: dense.cache.materialise(grant, B),
        lambda: dense.cache.publish(grant, 0, b"", 0),
        lambda: dense.cache.materialise_snapshot(grant, B),
        lambda: dense.cache.publish_snapshot(grant, B),
    ):
        with pytest.raises(TransitionError, match=f"prepare {grant}"):
            step()
    dense.cache.commit(grant)
    with pytest.raises(TransitionError, match="committed"):
        dense.cache.lower(grant, 0)
