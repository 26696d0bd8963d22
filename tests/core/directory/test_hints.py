"""The hint index: what it proposes, against brute force, and that it stays bounded and cheap."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavepp.core.cache.types import CacheChange, ChangeKind
from wavepp.core.directory.hints import HintIndex
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import PrefixKey, StageIndex

B = 64
S0, S1, S2 = StageIndex(0), StageIndex(1), StageIndex(2)


def key(i: int) -> PrefixKey:
    return PrefixKey(i.to_bytes(16, "big"))


def packed(*indices: int) -> bytes:
    return b"".join(key(i) for i in indices)


def known_index(stages: int, recurrent: int = 0, keys_max: int = 1000) -> HintIndex:
    index = HintIndex(stages, recurrent, keys_max)
    for stage in range(stages):
        index.set_known(StageIndex(stage))
    return index


def test_an_unknown_stage_counts_as_holding_everything() -> None:
    index = HintIndex(2, recurrent_stages=0b10)
    hint = index.probe(packed(0, 1, 2), B, B, 2 * B)
    assert hint.endpoint_tokens == 2 * B
    assert hint.longest_all_tokens == 3 * B
    assert hint.limiting_stage is None


def test_an_unknown_stage_does_not_count_for_what_is_known_to_be_held() -> None:
    index = known_index(2)
    index.load_dump(S0, packed(0, 1))
    index.load_dump(S1, packed(0, 1, 2))
    index.set_unknown(S1)
    hint = index.probe(packed(0, 1, 2), B, B, 2 * B)
    assert (hint.longest_all_tokens, hint.longest_any_tokens) == (2 * B, 2 * B)


def test_the_stage_that_holds_least_limits_the_endpoint() -> None:
    index = known_index(3)
    index.mark_held(packed(0, 1))
    index.load_dump(S0, packed(2, 3))
    index.load_dump(S2, packed(2, 3, 4))
    hint = index.probe(packed(0, 1, 2, 3, 4, 5), B, B, 5 * B)
    assert hint.endpoint_tokens == 2 * B
    assert hint.longest_all_tokens == hint.after_snapshots_tokens == 2 * B
    assert hint.longest_any_tokens == 5 * B
    assert hint.limiting_stage == 1


def test_the_endpoint_is_aligned_and_leaves_a_token_to_compute() -> None:
    index = known_index(1)
    index.mark_held(packed(*range(8)))
    hint = index.probe(packed(*range(7)), B, 4 * B, 7 * B)
    assert (hint.endpoint_tokens, hint.after_snapshots_tokens, hint.longest_all_tokens) == (4 * B, 7 * B, 7 * B)
    assert index.probe(packed(*range(8)), B, 4 * B, 8 * B - 1).endpoint_tokens == 4 * B
    assert index.probe(packed(*range(8)), B, B, 8 * B - 1).endpoint_tokens == 7 * B


def test_no_stage_limits_when_only_the_last_token_must_be_computed() -> None:
    index = known_index(2)
    index.mark_held(packed(0))
    index.load_dump(S0, packed(1))
    hint = index.probe(packed(0, 1), B, B, B)
    assert (hint.endpoint_tokens, hint.longest_any_tokens, hint.limiting_stage) == (B, 2 * B, None)


def test_recurrent_stages_go_back_to_a_snapshot_that_all_of_them_have() -> None:
    index = known_index(3, recurrent=0b101)
    index.mark_held(packed(*range(10)))
    index.load_dump(S0, b"", packed(1, 5, 7))
    index.load_dump(S2, b"", packed(1, 5, 8))
    hint = index.probe(packed(*range(10)), B, B, 9 * B)
    assert hint.endpoint_tokens == hint.after_snapshots_tokens == 6 * B
    assert hint.longest_all_tokens == 10 * B
    assert hint.limiting_stage == 0
    assert index.stages_with_snapshot(key(5)) == 0b101


def test_a_snapshot_off_the_alignment_is_of_no_use() -> None:
    index = known_index(1, recurrent=1)
    index.mark_held(packed(*range(8)), packed(1, 2, 4))
    assert index.probe(packed(*range(8)), B, 2 * B, 8 * B).endpoint_tokens == 2 * B


def test_a_stage_without_recurrent_layers_counts_as_holding_every_snapshot() -> None:
    index = known_index(2, recurrent=0b10)
    index.mark_held(packed(0, 1))
    index.load_dump(S1, b"", packed(1))
    assert index.probe(packed(0, 1), B, B, 2 * B).endpoint_tokens == 2 * B


def test_changes_are_applied_in_order_and_an_empty_mask_leaves_the_index() -> None:
    index = known_index(2, recurrent=0b11)
    index.apply(S0, [CacheChange(ChangeKind.PUBLISHED, key(0)), CacheChange(ChangeKind.SNAPSHOT_PUBLISHED, key(0))])
    index.apply(S1, [CacheChange(ChangeKind.PUBLISHED, key(0))])
    assert index.stages_holding(key(0)) == 0b11
    index.apply(
        S0,
        [
            CacheChange(ChangeKind.WITHDRAWN, key(0)),
            CacheChange(ChangeKind.PUBLISHED, key(0)),
            CacheChange(ChangeKind.SNAPSHOT_WITHDRAWN, key(0)),
            CacheChange(ChangeKind.WITHDRAWN, key(0)),
        ],
    )
    assert index.stages_holding(key(0)) == 0b10
    assert index.sizes() == (1, 0)
    index.apply(S1, [CacheChange(ChangeKind.WITHDRAWN, key(0)), CacheChange(ChangeKind.WITHDRAWN, key(7))])
    assert index.sizes() == (0, 0)
    index.validate()


def test_an_unknown_kind_of_change_is_refused() -> None:
    bad: Any = 9
    with pytest.raises(InvalidInputError, match="kind 9"):
        known_index(1).apply(S0, [(bad, key(0))])


def test_a_stage_that_offered_less_is_not_hinted_again() -> None:
    index = known_index(2)
    keys = packed(*range(6))
    index.mark_held(keys)
    index.clear_above(S1, keys, 2)
    hint = index.probe(keys, B, B, 5 * B)
    assert (hint.endpoint_tokens, hint.longest_any_tokens, hint.limiting_stage) == (2 * B, 6 * B, 1)
    index.clear_above(S0, keys, 2)
    assert index.sizes() == (2, 0)


def test_missing_snapshots_can_be_forgotten_without_the_blocks() -> None:
    index = known_index(1, recurrent=1)
    keys = packed(*range(6))
    index.mark_held(keys, packed(1, 4))
    index.clear_above(S0, keys, 2, snapshots_only=True)
    hint = index.probe(keys, B, B, 5 * B)
    assert (hint.longest_all_tokens, hint.endpoint_tokens) == (6 * B, 2 * B)


def test_a_dump_replaces_what_was_known() -> None:
    index = known_index(2, recurrent=0b11)
    index.mark_held(packed(0, 1, 2), packed(2))
    index.set_unknown(S0)
    index.clear(S0)
    index.load_dump(S0, packed(0))
    index.load_dump(S0, packed(1), packed(0))
    index.set_known(S0)
    assert [index.stages_holding(key(i)) for i in range(3)] == [0b11, 0b11, 0b10]
    assert index.stages_with_snapshot(key(2)) == 0b10
    index.validate()


def test_marking_keys_as_held_adds_none_beyond_the_bound() -> None:
    index = known_index(2, keys_max=3)
    index.load_dump(S0, packed(0))
    index.mark_held(packed(5, 6, 7, 8, 0))
    assert index.sizes() == (3, 0)
    assert index.stages_holding(key(0)) == 0b11


def test_a_probe_looks_at_few_of_the_keys() -> None:
    looked_up = 0

    class CountedKeys(bytes):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looked_up
            looked_up += 1
            return super().__getitem__(index)

    index = known_index(2, keys_max=5000)
    keys = packed(*range(4096))
    index.mark_held(keys[: 16 * 3001])
    index.load_dump(S0, keys)
    hint = index.probe(CountedKeys(keys), B, B, 4095 * B)
    assert (hint.longest_all_tokens, hint.longest_any_tokens) == (3001 * B, 4096 * B)
    assert looked_up <= 30


@pytest.mark.parametrize(
    ("keys", "block", "alignment", "endpoint"),
    [(b"x", 64, 64, 0), (b"", 64, 96, 0), (b"", 0, 64, 0), (b"", 64, 64, -1)],
)
def test_a_senseless_probe_is_refused(keys: bytes, block: int, alignment: int, endpoint: int) -> None:
    with pytest.raises(InvalidInputError):
        known_index(1).probe(keys, block, alignment, endpoint)


def test_stages_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        known_index(2).set_unknown(S2)
    with pytest.raises(InvalidInputError):
        HintIndex(2, recurrent_stages=0b100)


@given(
    # The search looks at blocks 1 and 66 of a long prompt first: all ways through it, and the edges between.
    held=st.lists(st.integers(0, 20) | st.sampled_from((64, 65, 66, 67, 129, 199, 200)), min_size=1, max_size=4),
    snapshots=st.lists(st.frozensets(st.integers(0, 19)), min_size=4, max_size=4),
    recurrent=st.integers(0, 15),
    unknown=st.integers(0, 15),
    blocks=st.integers(0, 20) | st.sampled_from((64, 65, 66, 130, 200)),
    blocks_aligned=st.integers(1, 4),
    spare=st.integers(0, 80),
)
def test_a_probe_finds_what_brute_force_finds(
    held: list[int],
    snapshots: list[frozenset[int]],
    recurrent: int,
    unknown: int,
    blocks: int,
    blocks_aligned: int,
    spare: int,
) -> None:
    """Stage s holds blocks [0, held[s]) and snapshots at the ends of snapshots[s], of a prompt of `blocks`."""
    stages = range(len(held))
    recurrent &= (1 << len(held)) - 1
    index = HintIndex(len(held), recurrent)
    for stage in stages:
        index.load_dump(StageIndex(stage), packed(*range(held[stage])), packed(*snapshots[stage]))
        if not unknown >> stage & 1:
            index.set_known(StageIndex(stage))
    endpoint_max = max(0, blocks * B - spare)
    hint = index.probe(packed(*range(blocks)), B, blocks_aligned * B, endpoint_max)

    known = [stage for stage in stages if not unknown >> stage & 1]
    longest = [min(blocks, held[stage]) for stage in known]
    longest_all = min(longest, default=blocks)
    assert hint.longest_all_tokens == longest_all * B
    assert hint.longest_any_tokens == max([*longest, longest_all]) * B

    def servable(endpoint: int, without: int | None = None) -> bool:
        for stage in known:
            if stage == without:
                continue
            if endpoint > held[stage] * B:
                return False
            if recurrent >> stage & 1 and endpoint and endpoint // B - 1 not in snapshots[stage]:
                return False
        return True

    candidates = range(0, min(blocks * B, endpoint_max) + 1, blocks_aligned * B)
    assert hint.endpoint_tokens == max(e for e in candidates if servable(e))
    assert hint.endpoint_tokens <= hint.after_snapshots_tokens <= hint.longest_all_tokens
    if hint.limiting_stage is not None:
        assert hint.limiting_stage in known
    elif not recurrent:
        some_could = max(e for e in candidates if e <= hint.longest_any_tokens)
        assert some_could == hint.endpoint_tokens
