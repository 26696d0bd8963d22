"""A stage's cache against a naive oracle, over random legal orders of operations on prompts that share prefixes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cache_oracle import Oracle
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wavepp.core.cache.stage_cache import StageCache
from wavepp.core.cache.types import CacheShape, ChangeKind, KeyWindow, LeaseReceipt, PoolSizes, Prepared
from wavepp.core.errors import DoubleReleaseError
from wavepp.core.ids import BlockId, GrantId, PrefixKey
from wavepp.core.keys import Namespace, key_at, key_count, prefix_keys
from wavepp.core.tokens import encode_tokens

B = 2
NAMESPACE = Namespace("model-a", "bf16", B, None, None)
DENSE = (
    CacheShape(B, B, recurrent=False, sizes=PoolSizes(12), pins_max_blocks=6),
    CacheShape(B, 2 * B, recurrent=False, sizes=PoolSizes(9), pins_max_blocks=0),
    CacheShape(B, B, recurrent=False, sizes=PoolSizes(16), pins_max_blocks=16),
)
RECURRENT = (
    CacheShape(B, B, recurrent=True, sizes=PoolSizes(12, 3, 3), pins_max_blocks=8),
    CacheShape(B, 2 * B, recurrent=True, sizes=PoolSizes(16, 2, 2), pins_max_blocks=16),
    CacheShape(B, B, recurrent=True, sizes=PoolSizes(14, 4, 1), pins_max_blocks=7),
    CacheShape(B, B, recurrent=True, sizes=PoolSizes(12, 4, 6), pins_max_blocks=12),
    CacheShape(B, B, recurrent=True, sizes=PoolSizes(9, 2, 0), pins_max_blocks=9),
)


def mostly(most: int, least: int = 0) -> st.SearchStrategy[int]:
    """Half of the time `most`, else anything from `least` on: half steps alone would seldom fill a cache."""
    return st.just(most) | st.integers(least, most)


letters = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=9)


@dataclass
class Driven:
    """A grant of the machine: its keys, what it may reach, and how many of its tokens a job has."""

    keys: list[PrefixKey]
    total_tokens: int
    receipt: LeaseReceipt
    upto_tokens: int


class CacheMachine(RuleBasedStateMachine):
    shapes: tuple[CacheShape, ...]

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[GrantId, Driven] = {}
        self.spent: list[LeaseReceipt] = []
        self.where: dict[PrefixKey, BlockId] = {}
        self.drained_changes = 0
        self.seen = 0
        self.grants_made = 0

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.shape = data.draw(st.sampled_from(self.shapes), label="shape")
        self.cache = StageCache(self.shape)
        self.oracle = Oracle(self.shape)
        self.room = self.cache.room()

    def pick(self, data: st.DataObject, committed: bool | None = None) -> GrantId:
        grants = [g for g in self.live if committed in (None, self.oracle.grants[g].committed)]
        return data.draw(st.sampled_from(grants), label="grant")

    def some(self, committed: bool) -> bool:
        return any(held.committed is committed for held in self.oracle.grants.values())

    @rule(prompt=letters, tail=st.integers(0, B - 1), budget=st.integers(1, 3 * B), data=st.data())
    def prepare(self, prompt: list[int], tail: int, budget: int, data: st.DataObject) -> None:
        prompt_tokens = len(prompt) * B + tail
        total = prompt_tokens + budget
        # The letters of a block, and for what is decoded later as well: several grants fill the same blocks.
        ids = [letter for letter in [*prompt, *[0] * 4] for _ in range(B)][:total]
        packed = prefix_keys(NAMESPACE, encode_tokens(ids))
        keys = [key_at(packed, i) for i in range(key_count(packed))]
        wanted = data.draw(mostly(len(prompt)), label="wanted blocks")
        first = data.draw(st.sampled_from([0, 0, 0, 0, wanted, wanted // 2]), label="first block of the window")
        self.grants_made += 1
        grant = GrantId(self.grants_made)
        window = KeyWindow(first, b"".join(keys[first : len(prompt)]), keys[first - 1] if first else None)
        before = (self.cache.usage(), self.cache.room())
        answer = self.cache.prepare(grant, window, wanted * B, total)
        assert answer == self.oracle.prepare(grant, keys, wanted, first, total)
        if isinstance(answer, Prepared):
            receipt = self.cache.receipt(grant)
            self.live[grant] = Driven(keys, total, receipt, answer.endpoint_tokens)
            assert self.cache.keys_before(window, answer.endpoint_tokens // B) == b"".join(
                keys[answer.endpoint_tokens // B : first]
            )
            # Whole lives in one step, so that caches are full and shared often enough.
            further = data.draw(st.sampled_from(["", "lower", "run", "run and end"]), label="and then")
            if further == "lower":
                self.step_down(grant, data)
            if further.startswith("run"):
                self.finish(grant, data)
            if further == "run and end":
                self.end(grant)
        else:
            assert (self.cache.usage(), self.cache.room()) == before

    @precondition(lambda self: self.some(committed=False))
    @rule(data=st.data())
    def lower(self, data: st.DataObject) -> None:
        self.step_down(self.pick(data, committed=False), data)

    def step_down(self, grant: GrantId, data: st.DataObject) -> None:
        step = self.shape.alignment_tokens // B
        blocks = data.draw(st.sampled_from(range(0, len(self.oracle.grants[grant].lease) + 1, step)))
        before = (self.cache.usage(), self.cache.room(), self.cache.table(grant))
        answer = self.cache.lower(grant, blocks * B)
        assert answer == self.oracle.lower(grant, blocks)
        if isinstance(answer, Prepared):
            self.live[grant].upto_tokens = answer.endpoint_tokens
        else:
            assert (self.cache.usage(), self.cache.room(), self.cache.table(grant)) == before

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        grant = self.pick(data)
        self.cache.commit(grant)
        self.oracle.commit(grant)

    @precondition(lambda self: self.some(committed=True))
    @rule(data=st.data())
    def materialise(self, data: st.DataObject) -> None:
        grant = self.pick(data, committed=True)
        driven = self.live[grant]
        upto = data.draw(mostly(driven.total_tokens), label="upto tokens")
        before = self.cache.table(grant)
        referenced = {block for other in self.live for block in self.cache.table(other)}
        table = self.cache.materialise(grant, upto)
        self.oracle.materialise(grant, -(-upto // B))
        driven.upto_tokens = max(driven.upto_tokens, upto)
        assert table[: len(before)] == before
        assert not set(table[len(before) :]) & referenced

    @precondition(lambda self: self.some(committed=True))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        grant = self.pick(data, committed=True)
        driven, published = self.live[grant], len(self.oracle.grants[grant].published)
        last = data.draw(mostly(driven.upto_tokens // B, published), label="last block")
        first = data.draw(st.integers(0, published), label="first block")
        self.cache.publish(grant, driven.upto_tokens, b"".join(driven.keys[first:last]), first)
        self.oracle.publish(grant, last)

    @precondition(lambda self: self.shape.recurrent and self.some(committed=True))
    @rule(data=st.data())
    def take_slot(self, data: st.DataObject) -> None:
        grant = self.pick(data, committed=True)
        step = self.shape.alignment_tokens // B
        first, last = len(self.oracle.grants[grant].lease) + step, self.live[grant].upto_tokens // B
        ends = list(range(first, last + 1, step))
        if ends:
            at_block = data.draw(st.sampled_from(ends), label="at block")
            slot = self.cache.materialise_snapshot(grant, at_block * B)
            assert (slot is not None) == self.oracle.take_slot(grant, at_block)

    @precondition(lambda self: self.shape.recurrent and self.some(committed=True))
    @rule(data=st.data())
    def publish_snapshot(self, data: st.DataObject) -> None:
        grant = self.pick(data, committed=True)
        at_block = data.draw(st.integers(0, len(self.oracle.grants[grant].published)), label="at block")
        fresh = self.cache.publish_snapshot(grant, at_block * B)
        assert fresh == self.oracle.publish_snapshot(grant, at_block)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def run_to_the_end(self, data: st.DataObject) -> None:
        self.finish(self.pick(data), data)

    def finish(self, grant: GrantId, data: st.DataObject) -> None:
        """All chunks of a grant that are left."""
        driven = self.live[grant]
        self.cache.commit(grant)
        self.oracle.commit(grant)
        self.cache.materialise(grant, driven.total_tokens)
        self.oracle.materialise(grant, -(-driven.total_tokens // B))
        driven.upto_tokens = driven.total_tokens
        step = self.shape.alignment_tokens // B
        first = len(self.oracle.grants[grant].lease) + step
        ends = list(range(first, len(driven.keys) + 1, step)) if self.shape.recurrent else []
        taken = data.draw(st.lists(st.sampled_from(ends), unique=True, max_size=3)) if ends else []
        for at_block in taken:
            slot = self.cache.materialise_snapshot(grant, at_block * B)
            assert (slot is not None) == self.oracle.take_slot(grant, at_block)
        published = len(self.oracle.grants[grant].published)
        self.cache.publish(grant, driven.total_tokens, b"".join(driven.keys[published:]), published)
        self.oracle.publish(grant, len(driven.keys))
        for at_block in taken:
            fresh = self.cache.publish_snapshot(grant, at_block * B)
            assert fresh == self.oracle.publish_snapshot(grant, at_block)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.end(self.pick(data))

    @precondition(lambda self: self.spent)
    @rule(data=st.data())
    def release_again(self, data: st.DataObject) -> None:
        with pytest.raises(DoubleReleaseError):
            self.cache.release(data.draw(st.sampled_from(self.spent)))

    def end(self, grant: GrantId) -> None:
        receipt = self.live.pop(grant).receipt
        self.cache.release(receipt)
        self.oracle.release(grant)
        self.spent.append(receipt)

    # ---- after every step ------------------------------------------------------------------------------

    @invariant()
    def every_rule_holds(self) -> None:
        self.cache.validate()

    @invariant()
    def all_counts_are_the_oracles(self) -> None:
        usage, room = self.cache.usage(), self.cache.room()
        assert usage == self.oracle.usage()
        assert room.available == self.oracle.available()
        assert all(units >= 0 for units in room.available.values())
        # The number may move more than once in a step (and for nothing, when a step undoes itself).
        assert room.number >= self.room.number
        assert room.number > self.room.number or room.available == self.room.available
        self.room = room

    @invariant()
    def tables_lead_to_the_blocks_of_their_keys(self) -> None:
        assert set(self.cache.grants()) == set(self.live)
        for kind, key in self.oracle.events[self.seen :]:
            if kind is ChangeKind.WITHDRAWN:
                self.where.pop(key, None)
        self.seen = len(self.oracle.events)
        owned: list[BlockId] = []
        for grant, driven in self.live.items():
            table, held = self.cache.table(grant), self.oracle.grants[grant]
            assert len(table) == len(held.published) + held.owned
            assert self.cache.pinned_keys(grant, 0, len(held.published)) == b"".join(held.published)
            assert (self.cache.state_slot(grant) is not None) == (held.state == "taken")
            assert self.cache.endpoint_tokens(grant) == len(held.lease) * B
            restores = self.shape.recurrent and bool(held.lease)
            assert (self.cache.restore_slot(grant) is not None) == restores
            for key, block in zip(driven.keys, table[: len(held.published)], strict=False):
                assert self.where.setdefault(key, block) == block
            owned += table[len(held.published) :]
        used = [*self.where.values(), *owned]
        assert len(set(used)) == len(used)

    @invariant()
    def the_directory_is_told_everything_in_order(self) -> None:
        if len(self.oracle.events) % 3:
            return
        drained = self.cache.drain_changes()
        assert (drained.first_number, drained.gap) == (self.drained_changes, False)
        assert list(drained.changes) == self.oracle.events[self.drained_changes :]
        self.drained_changes += len(drained.changes)
        segments = list(self.cache.dump())
        assert {segment.cursor for segment in segments} == {len(self.oracle.events)}
        assert b"".join(segment.keys for segment in segments) == b"".join(self.oracle.parents)
        assert b"".join(segment.snapshot_keys for segment in segments) == b"".join(self.oracle.snapshots)

    def teardown(self) -> None:
        for grant in list(self.live):
            self.end(grant)
        if hasattr(self, "cache"):
            self.cache.validate()
            for usage in self.cache.usage().values():
                assert usage.free + usage.cached == usage.capacity == usage.available


class DenseMachine(CacheMachine):
    shapes = DENSE


class RecurrentMachine(CacheMachine):
    shapes = RECURRENT


LIMITS = settings(max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestDenseStage = DenseMachine.TestCase
TestDenseStage.settings = LIMITS
TestRecurrentStage = RecurrentMachine.TestCase
TestRecurrentStage.settings = LIMITS
