"""A stage's cache: how grants are admitted, step down and end. The property test covers all orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from cache_bench import DENSE, HYBRID, B, Bench, key_of, keys_of

from wavepp.core.cache.parts import CacheParts
from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.cache.types import KeyWindow, LeaseReceipt, Missing, NeedKeys, Never, PoolSizes, Prepared, pins_limit
from wavepp.core.errors import DoubleReleaseError, InvalidInputError, InvariantError
from wavepp.core.ids import BlockId, GrantId


@pytest.fixture
def dense() -> Bench:
    return Bench(StageCache(DENSE))


@pytest.fixture
def hybrid() -> Bench:
    return Bench(StageCache(HYBRID))


# ---- prepare -------------------------------------------------------------------------------------------


def test_a_cold_prompt_reuses_nothing_and_reserves_for_all_its_tokens(dense: Bench) -> None:
    _, answer = dense.prepare("abc", extra_tokens=B + 1)
    assert answer == Prepared(0, ())
    usage = dense.cache.usage()["kv"]
    assert (usage.free, usage.reserved, usage.available) == (10, 5, 5)


def test_a_prefix_that_was_computed_is_pinned_and_only_the_rest_reserved(dense: Bench) -> None:
    dense.cached("abc")
    grant, answer = dense.prepare("abcde", extra_tokens=1)
    assert answer == Prepared(3 * B, ())
    usage = dense.cache.usage()["kv"]
    assert (usage.pinned, usage.reserved, usage.cached, usage.owned) == (3, 3, 0, 0)
    assert len(dense.cache.table(grant)) == 3


def test_a_different_block_ends_the_prefix(dense: Bench) -> None:
    dense.cached("abc")
    assert dense.prepare("abXc")[1] == Prepared(2 * B, ())
    assert dense.prepare("Xbc")[1] == Prepared(0, ())


def test_the_endpoint_is_never_above_the_wanted_one(dense: Bench) -> None:
    dense.cached("abc")
    assert dense.prepare("abc", endpoint_blocks=2)[1] == Prepared(2 * B, ())


def test_the_endpoint_is_aligned_down() -> None:
    bench = Bench(StageCache(replace(DENSE, alignment_tokens=2 * B)))
    bench.cached("abc")
    assert bench.prepare("abcd", endpoint_blocks=4)[1] == Prepared(2 * B, ())


def test_the_key_before_the_window_stands_for_the_whole_prefix(dense: Bench) -> None:
    dense.cached("abcd")
    grant, answer = dense.prepare("abcde", endpoint_blocks=3, first_block=3)
    assert answer == Prepared(3 * B, ())
    assert dense.cache.pinned_keys(grant, 0, 3) == keys_of("abc")


def test_the_prefix_goes_on_inside_the_window(dense: Bench) -> None:
    dense.cached("abcd")
    assert dense.prepare("abcdXf", endpoint_blocks=6, first_block=2)[1] == Prepared(4 * B, ())


def test_an_unknown_key_before_the_window_asks_for_all_keys_and_changes_nothing(dense: Bench) -> None:
    dense.cached("ab")
    before = (dense.cache.usage(), dense.cache.room())
    answer = dense.prepare("abcde", endpoint_blocks=4, first_block=3)[1]
    assert answer == NeedKeys()
    assert (dense.cache.usage(), dense.cache.room()) == before
    assert dense.cache.grants() == ()
    assert dense.prepare("abcde", endpoint_blocks=4)[1] == Prepared(2 * B, ())


def test_keys_that_the_window_left_out_can_be_had_when_the_endpoint_fell_before_it(hybrid: Bench) -> None:
    hybrid.cached("abcde", snapshots=(2,))
    window = KeyWindow(4, keys_of("abcde")[16 * 4 :], key_of("abcd"))
    assert hybrid.cache.prepare(GrantId(99), window, 4 * B, 5 * B) == Prepared(2 * B, (2 * B,))
    assert hybrid.cache.keys_before(window, 2) == keys_of("abcd")[16 * 2 :]
    assert hybrid.cache.keys_before(window, 4) == b""
    with pytest.raises(InvalidInputError):
        hybrid.cache.keys_before(KeyWindow(4, b"", key_of("XXXX")), 2)


def test_what_cannot_fit_an_empty_cache_is_refused_for_good(dense: Bench) -> None:
    dense.cached("abc")
    assert dense.prepare("abcdefghij", extra_tokens=1)[1] == Never("kv", 11, 10)
    assert dense.prepare("abcdefghij", endpoint_blocks=9, extra_tokens=0)[1] == Prepared(3 * B, ())
    no_states = Bench(StageCache(replace(HYBRID, sizes=PoolSizes(10, 0, 3))))
    assert no_states.prepare("a")[1] == Never("state", 1, 0)


def test_missing_room_is_named_and_suffices_once_it_is_there(dense: Bench) -> None:
    dense.cached("ab")
    first = dense.prepared("vwxyz")
    _, answer = dense.prepare("abcde")
    assert answer == Missing("kv", available_needed=6, available=4)
    dense.release(first)
    assert dense.room() >= 6
    assert dense.prepare("abcde")[1] == Prepared(2 * B, ())


def test_pinned_blocks_of_another_cost_no_room(dense: Bench) -> None:
    dense.cached("abcd")
    dense.prepared("abcd")
    assert dense.room() == 5
    assert dense.prepare("abcdefgh")[1] == Prepared(4 * B, ())
    assert dense.room() == 0


def test_a_reservation_is_safe_from_everybody_else(dense: Bench) -> None:
    first = dense.prepared("abcdefg", extra_tokens=0, endpoint_blocks=6)
    assert dense.prepare("vwxy", extra_tokens=0, endpoint_blocks=3)[1] == Missing("kv", 4, 3)
    second = dense.prepared("xyz", extra_tokens=0, endpoint_blocks=2)
    dense.run(second, "xyz")
    dense.run(first, "abcdefg")
    assert dense.cache.usage()["kv"].pinned == 10


def test_refusals_leave_no_trace(dense: Bench) -> None:
    dense.cached("abcd")
    blocker = dense.prepared("vwxy")
    before = (dense.cache.usage(), dense.cache.room())
    for _ in range(1000):
        _, answer = dense.prepare("abcdefgh")
        assert isinstance(answer, Missing)
    assert (dense.cache.usage(), dense.cache.room()) == before
    dense.release(blocker)
    assert dense.cache.usage()["kv"].cached == 4


@pytest.mark.parametrize(
    ("window", "endpoint", "total"),
    [
        (KeyWindow(0, keys_of("ab"), None), 3 * B, 5 * B),
        (KeyWindow(2, keys_of("ab"), key_of("ab")), B, 5 * B),
        (KeyWindow(1, keys_of("ab"), None), B, 5 * B),
        (KeyWindow(0, keys_of("ab"), key_of("ab")), B, 5 * B),
        (KeyWindow(0, keys_of("ab"), None), 2 * B, 2 * B),
        (KeyWindow(0, keys_of("ab"), None), -B, 2 * B),
        (KeyWindow(0, keys_of("ab")[:-1], None), B, 2 * B),
        (KeyWindow(-1, keys_of("ab"), key_of("a")), 0, 2 * B),
    ],
)
def test_a_request_outside_the_contract_is_refused(dense: Bench, window: KeyWindow, endpoint: int, total: int) -> None:
    with pytest.raises(InvalidInputError):
        dense.cache.prepare(GrantId(1), window, endpoint, total)
    assert dense.cache.grants() == ()


def test_a_key_at_the_wrong_place_is_refused(dense: Bench) -> None:
    dense.cached("abcd")
    with pytest.raises(InvalidInputError, match="in order"):
        dense.cache.prepare(GrantId(50), KeyWindow(2, keys_of("ab"), key_of("abc")), 2 * B, 9 * B)


def test_a_grant_cannot_be_prepared_twice(dense: Bench) -> None:
    grant = dense.prepared("ab")
    with pytest.raises(InvalidInputError, match="held already"):
        dense.cache.prepare(grant, KeyWindow(0, b"", None), 0, 1)


# ---- the limit on pins ---------------------------------------------------------------------------------


def test_leases_may_not_pin_more_than_the_limit_unless_alone() -> None:
    bench = Bench(StageCache(replace(DENSE, sizes=PoolSizes(20), pins_max_blocks=4)))
    bench.cached("abcdef")
    bench.cached("xyz")
    assert bench.room("pins") == 20
    alone = bench.prepared("abcdef")
    assert bench.room("pins") == 0
    assert bench.prepare("xyz")[1] == Missing("pins", 3, 0)
    shares = bench.prepared("abcdeg")
    assert bench.cache.endpoint_tokens(shares) == 5 * B
    cold = bench.prepared("q")
    bench.release(alone)
    bench.release(shares)
    assert bench.room("pins") == 20
    assert bench.prepare("xyz")[1] == Prepared(3 * B, ())
    assert bench.room("pins") == 1
    bench.release(cold)


def test_the_pins_limit_leaves_room_for_two_rounds_of_waves_or_half_the_cache() -> None:
    assert pins_limit(kv_blocks=1000, block_tokens=64, stages=4, wave_tokens_max=512) == 1000 - 64
    assert pins_limit(kv_blocks=1000, block_tokens=64, stages=4, wave_tokens_max=500) == 1000 - 63
    assert pins_limit(kv_blocks=100, block_tokens=64, stages=8, wave_tokens_max=16384) == 50


# ---- lower ---------------------------------------------------------------------------------------------


def test_stepping_down_turns_pins_into_a_reservation(dense: Bench) -> None:
    dense.cached("abcd")
    grant = dense.prepared("abcdef")
    room = dense.room()
    assert dense.cache.lower(grant, B) == Prepared(B, ())
    dense.cache.validate()
    usage = dense.cache.usage()["kv"]
    assert (usage.pinned, usage.cached, usage.reserved) == (1, 3, 6)
    assert dense.room() == room
    assert dense.cache.lower(grant, B) == Prepared(B, ())
    assert dense.cache.lower(grant, 0) == Prepared(0, ())
    dense.run(grant, "abcdef")
    assert dense.held("abcdef") == 6


def test_a_step_down_without_room_says_so_and_changes_nothing(dense: Bench) -> None:
    dense.cached("abcd")
    other = dense.prepared("abcd")
    grant = dense.prepared("abcdefg", extra_tokens=0, endpoint_blocks=6)
    dense.prepared("x", extra_tokens=0, endpoint_blocks=0)
    assert dense.room() == 1
    before = (dense.cache.usage(), dense.cache.room(), dense.cache.table(grant))
    assert dense.cache.lower(grant, 2 * B) == Missing("kv", 2, 1)
    assert (dense.cache.usage(), dense.cache.room(), dense.cache.table(grant)) == before
    dense.cache.validate()
    assert dense.cache.lower(grant, 3 * B) == Prepared(3 * B, ())
    dense.release(other)
    assert dense.room() >= 2 - 1
    assert dense.cache.lower(grant, 2 * B) == Prepared(2 * B, ())


@pytest.mark.parametrize("endpoint", [-B, B + 1, 4 * B])
def test_a_step_down_to_where_the_grant_is_not_is_refused(dense: Bench, endpoint: int) -> None:
    dense.cached("abc")
    grant = dense.prepared("abc")
    with pytest.raises(InvalidInputError, match="step down"):
        dense.cache.lower(grant, endpoint)


# ---- the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("progress", ["prepared", "committed", "owned", "published"])
def test_releasing_at_any_point_gives_everything_back(hybrid: Bench, progress: str) -> None:
    hybrid.cached("abc", snapshots=(2,))
    grant = hybrid.prepared("abcd")
    if progress != "prepared":
        hybrid.cache.commit(grant)
    if progress in ("owned", "published"):
        hybrid.cache.materialise(grant, 4 * B)
        assert hybrid.cache.materialise_snapshot(grant, 4 * B) is not None
    if progress == "published":
        hybrid.cache.publish(grant, 4 * B, keys_of("abcd")[32:], 2)
        hybrid.cache.publish_snapshot(grant, 4 * B)
    hybrid.release(grant)
    for usage in hybrid.cache.usage().values():
        assert usage.free + usage.cached == usage.capacity == usage.available
    assert hybrid.held("abcd") == (4 if progress == "published" else 3)
    assert hybrid.cache.grants() == ()


def test_a_second_release_is_an_error(dense: Bench) -> None:
    grant = dense.prepared("ab")
    receipt = dense.cache.receipt(grant)
    dense.cache.release(receipt)
    before = dense.cache.usage()
    with pytest.raises(DoubleReleaseError, match="before"):
        dense.cache.release(receipt)
    assert dense.cache.usage() == before
    dense.cache.prepare(grant, KeyWindow(0, b"", None), 0, B)
    with pytest.raises(DoubleReleaseError):
        dense.cache.release(receipt)
    with pytest.raises(DoubleReleaseError):
        dense.cache.release(LeaseReceipt(GrantId(77), 1))
    assert dense.cache.grants() == (grant,)


def test_a_grant_that_is_not_held_is_refused_everywhere(dense: Bench) -> None:
    nobody = GrantId(5)
    for call in (
        lambda: dense.cache.commit(nobody),
        lambda: dense.cache.lower(nobody, 0),
        lambda: dense.cache.materialise(nobody, 0),
        lambda: dense.cache.publish(nobody, 0, b"", 0),
        lambda: dense.cache.receipt(nobody),
        lambda: dense.cache.table(nobody),
        lambda: dense.cache.endpoint_tokens(nobody),
    ):
        with pytest.raises(InvalidInputError, match="holds nothing"):
            call()


# ---- shapes and rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"block_tokens": 0},
        {"alignment_tokens": B + 1},
        {"alignment_tokens": 0},
        {"sizes": PoolSizes(0)},
        {"sizes": PoolSizes(10, -1, 0)},
        {"sizes": PoolSizes(10, 0, -1)},
        {"pins_max_blocks": 11},
        {"pins_max_blocks": -1},
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        replace(DENSE, **change)  # type: ignore[arg-type]


def block_of(parts: CacheParts, name: str) -> BlockId:
    block = parts.blocks.find(key_of(name))
    assert block is not None
    return block


def leave_the_queue(parts: CacheParts) -> None:
    """An evictable leaf that is queued no more: its parent, which is pinned, is unpinned after it."""
    parent, leaf = block_of(parts, "ab"), block_of(parts, "abc")
    parts.blocks.pin([parent, leaf])
    parts.blocks.unpin([leaf, parent])


@pytest.mark.parametrize(
    "damage",
    [
        lambda parts: parts.blocks.take(),
        lambda parts: parts.blocks.pin(parts.blocks.chain(block_of(parts, "ab"))),
        lambda parts: parts.blocks.unpin(parts.blocks.chain(block_of(parts, "a"))),
        lambda parts: parts.escrow.enlarge(GrantId(2), "kv", 1),
        lambda parts: parts.escrow.enlarge(GrantId(2), "state", 1),
        lambda parts: parts.snapshots.take(),
        lambda parts: parts.snapshots.unpin(parts.leases.get(GrantId(2)).restore_from),
        lambda parts: parts.states.take(),
        lambda parts: parts.leases.shorten(GrantId(2), 0, None),
        lambda parts: parts.leases.drop(GrantId(2)),
        lambda parts: parts.holdings[GrantId(2)].table.pop(),
        lambda parts: parts.holdings.pop(GrantId(2)),
        leave_the_queue,
        lambda parts: parts.blocks.touch([block_of(parts, "abc")], 99),
    ],
)
def test_validation_sees_damage_and_tells_the_story(hybrid: Bench, damage: Callable[[CacheParts], object]) -> None:
    hybrid.cached("abc", snapshots=(2,))
    hybrid.prepared("abx", extra_tokens=0, endpoint_blocks=2)
    damage(hybrid.cache.parts)
    with pytest.raises(InvariantError, match=r"prepare 1 .*release 1; prepare 2"):
        hybrid.cache.validate()
