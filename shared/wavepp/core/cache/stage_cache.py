"""One stage's cache: blocks, leases, escrow and snapshots behind one door, owned by one thread.

The rule that everything here keeps, for every pool at every moment:

    available = free + evictable - reserved >= 0

so what was reserved can always be materialised. A grant's way through: `prepare` (pins the reused prefix,
reserves for the rest), perhaps `lower`, `commit` with its first chunk, then for every chunk `materialise`
when its job is handed over and `publish` when it is done, and at last `release`, from any of these states.

On a recurrent stage a grant also has one state slot, and its lease pins the snapshot at its endpoint. For
the snapshots that it will take, one slot is reserved if there is one: a snapshot only saves work later, so
a lack of slots makes a stage keep fewer and never makes a request wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from wavepp.core.cache.admission import PreparePlan, plan_lower, plan_prepare
from wavepp.core.cache.changes import dump_segments
from wavepp.core.cache.eviction import EvictionPolicy, LeastRecentlyUsed
from wavepp.core.cache.invariants import check_invariants
from wavepp.core.cache.parts import CacheParts, Holding
from wavepp.core.cache.prefix import keys_before
from wavepp.core.cache.publishing import publish_block, publish_snapshot, take_block, take_snapshot
from wavepp.core.cache.types import (
    CacheChanges,
    CacheShape,
    DumpSegment,
    KeyWindow,
    LeaseReceipt,
    Missing,
    NeedKeys,
    Never,
    PoolUsage,
    Prepared,
    Room,
    SnapshotSlot,
    StateSlot,
)
from wavepp.core.errors import InvalidInputError, InvariantError, TransitionError
from wavepp.core.ids import BlockId, GrantId
from wavepp.core.keys import key_at, key_count
from wavepp.core.limits import CACHE_CHANGES_MAX

_STORY_OPERATIONS: Final = 32


class StageCache:
    """See the module's text. Every method leaves every rule of `validate` true, also when it raises.

    A grant that is not held raises `InvalidInputError`, and so do arguments outside the contract; but for
    `publish`, a method that raises has changed nothing.
    """

    def __init__(self, shape: CacheShape, policy: EvictionPolicy | None = None) -> None:
        self.shape = shape
        self.parts = CacheParts(shape, policy or LeastRecentlyUsed())
        """To look at: they change by the operations below only."""
        self._stamp = 0
        self._room = Room(0, self.parts.available())
        self._story: deque[tuple[object, ...]] = deque(maxlen=_STORY_OPERATIONS)

    # ---- what is held ----------------------------------------------------------------------------------

    def grants(self) -> tuple[GrantId, ...]:
        """Every grant that holds something here, in the order in which they were prepared."""
        return tuple(self.parts.holdings)

    def table(self, grant: GrantId) -> tuple[BlockId, ...]:
        """The block table of a grant: block i covers tokens [i x B, (i + 1) x B)."""
        return tuple(self.parts.holding(grant).table)

    def endpoint_tokens(self, grant: GrantId) -> int:
        """How many tokens of a grant are reused."""
        return len(self.parts.leases.get(grant).blocks) * self.shape.block_tokens

    def pinned_keys(self, grant: GrantId, first_block: int, last_block: int) -> bytes:
        """Packed keys of the blocks [`first_block`, `last_block`) of a grant, which are published."""
        holding = self.parts.holding(grant)
        if not 0 <= first_block <= last_block <= holding.published:
            raise InvalidInputError(
                f"grant {grant} has published {holding.published} blocks: keys of [{first_block}, "
                f"{last_block}) are not all known here"
            )
        return b"".join(map(self.parts.blocks.key_of, holding.table[first_block:last_block]))

    def keys_before(self, window: KeyWindow, from_block: int) -> bytes:
        """Packed keys of the blocks [`from_block`, `window.first_block`), which the window leaves out.

        For a grant whose endpoint came to lie before its window, straight after `prepare`: it will compute
        those blocks again and needs their keys. Raises `InvalidInputError` when the window's start is not
        held (any more).
        """
        return keys_before(self.parts.blocks, window, from_block)

    def state_slot(self, grant: GrantId) -> StateSlot | None:
        """The working state of a grant; None on a dense stage and before the first `materialise`."""
        return self.parts.holding(grant).state_slot

    def restore_slot(self, grant: GrantId) -> SnapshotSlot | None:
        """The snapshot from which a grant's first chunk starts; None on a dense stage and at endpoint 0."""
        restore_from = self.parts.leases.get(grant).restore_from
        return None if restore_from is None else self.parts.snapshots.slot_at(restore_from)

    def receipt(self, grant: GrantId) -> LeaseReceipt:
        """What `release` takes."""
        return self.parts.leases.get(grant).receipt

    def room(self) -> Room:
        """What a new reservation may still take, by pool, and how many more blocks leases may pin."""
        return self._room

    def usage(self) -> dict[str, PoolUsage]:
        """Where the units of each pool are."""
        return self.parts.usage()

    # ---- for the directory -----------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        """The number that the next change will get."""
        return self.parts.changes.cursor

    def drain_changes(self, at_most: int = CACHE_CHANGES_MAX) -> CacheChanges:
        """Take the oldest changes that were not drained, at most `at_most`; `gap` says that some were
        dropped.
        """
        return self.parts.changes.drain(at_most)

    def dump(self) -> Iterator[DumpSegment]:
        """All that is held at the time of the call, in segments; the cache may change while they are read."""
        snapshot_keys = [self.parts.blocks.key_of(block) for block in self.parts.snapshots.blocks()]
        return dump_segments(self.parts.changes.cursor, self.parts.blocks.keys(), snapshot_keys)

    # ---- admission -------------------------------------------------------------------------------------

    def prepare(
        self, grant: GrantId, window: KeyWindow, endpoint_tokens: int, total_tokens: int
    ) -> Prepared | NeedKeys | Missing | Never:
        """Pin the longest held prefix up to `endpoint_tokens` and reserve for the rest, all pools or none.

        `endpoint_tokens`: the wanted endpoint; aligned down, and on a recurrent stage down to a snapshot.
        `total_tokens`: prompt and output budget, more than the endpoint. The window's keys start at or
        before the wanted endpoint and reach it. A refusal changes nothing, and neither refusal nor success
        touches the eviction order.
        """
        plan = plan_prepare(self.parts, self._room.available, grant, window, endpoint_tokens, total_tokens)
        if not isinstance(plan, PreparePlan):
            return plan
        plan.carry_out(self.parts, grant)
        self._done("prepare", grant, plan.answer.endpoint_tokens, total_tokens)
        return plan.answer

    def lower(self, grant: GrantId, endpoint_tokens: int) -> Prepared | Missing:
        """Step down to `endpoint_tokens`, which is aligned and at most the present endpoint.

        The reservation for the longer rest is made, and the earlier snapshot pinned, before the later part
        of the prefix is let go; if that cannot be had nothing changed. When the snapshot at
        `endpoint_tokens` was evicted after `prepare` offered it, the answer is Missing("snapshot", n, n):
        waiting will not bring it back, but a new `prepare` will see the snapshots that are left. Raises
        `TransitionError` after `commit`.
        """
        if self.parts.holding(grant).committed:
            raise self._wrong_state(grant, "committed", "lower")
        plan = plan_lower(self.parts, self._room.available, grant, endpoint_tokens)
        if isinstance(plan, Missing):
            return plan
        plan.carry_out(self.parts, grant)
        self._done("lower", grant, endpoint_tokens)
        return plan.answer

    # ---- execution -------------------------------------------------------------------------------------

    def commit(self, grant: GrantId) -> None:
        """The grant's first chunk has come: from now on its release counts as a use. Again: no effect.

        The eviction order moves at the release: before that nothing of it can be evicted.
        """
        self.parts.holding(grant).committed = True
        self._done("commit", grant)

    def materialise(self, grant: GrantId, upto_tokens: int) -> tuple[BlockId, ...]:
        """Own the blocks that cover [0, `upto_tokens`), and the state slot; returns the whole block table.

        Free blocks are taken first, then evicted ones. What is covered already stays as it is. Raises
        `InvalidInputError` beyond what was prepared, `TransitionError` before `commit`.
        """
        holding = self._committed(grant, "materialise")
        upto_blocks = -(-upto_tokens // self.shape.block_tokens)
        if not 0 <= upto_blocks <= holding.total_blocks:
            raise InvalidInputError(
                f"grant {grant} prepared {holding.total_blocks} blocks of {self.shape.block_tokens} tokens, it "
                f"cannot have {upto_tokens} tokens: prepare it for its whole prompt and output budget"
            )
        if self.shape.recurrent and holding.state_slot is None:
            self.parts.escrow.draw(grant, "state", 1)
            holding.state_slot = self.parts.states.take()
        more = upto_blocks - len(holding.table)
        if more > 0:
            self.parts.escrow.draw(grant, "kv", more)
            for _ in range(more):
                holding.table.append(take_block(self.parts))
        self._done("materialise", grant, upto_tokens)
        return tuple(holding.table)

    def publish(self, grant: GrantId, upto_tokens: int, keys: bytes, first_block: int) -> None:
        """Publish full blocks of a grant under `keys`, from `first_block` on; [0, `upto_tokens`) is computed.

        A key that is held already: the grant takes a reference on the kept block, frees its own, and its
        table names the kept one from now on. Blocks that are published already are passed over when they go
        by the same key. Raises `InvalidInputError` when the keys leave a gap after the published blocks or go
        beyond what is computed; and when a key contradicts what is published, having published those before.
        """
        holding = self._committed(grant, "publish")
        last_block = first_block + key_count(keys)
        computed = min(len(holding.table), upto_tokens // self.shape.block_tokens)
        if not 0 <= first_block <= holding.published or last_block > computed:
            raise InvalidInputError(
                f"grant {grant} cannot publish blocks [{first_block}, {last_block}): {holding.published} are "
                f"published, {computed} full ones are computed; publish in order, without a gap"
            )
        try:
            for i in range(last_block - first_block):
                publish_block(self.parts, grant, holding, first_block + i, key_at(keys, i))
        finally:
            self._done("publish", grant, first_block, last_block)

    def materialise_snapshot(self, grant: GrantId, at_tokens: int) -> SnapshotSlot | None:
        """A slot into which a job will write the state after `at_tokens`; None when there is no room for one.

        Takes the reserved slot first, then any that is free or evictable and not promised. The same slot
        again for the same `at_tokens`. Nobody can find it before `publish_snapshot`.
        """
        holding = self._committed(grant, "materialise_snapshot")
        alignment, endpoint = self.shape.alignment_tokens, self.endpoint_tokens(grant)
        covered = len(holding.table) * self.shape.block_tokens
        if not endpoint < at_tokens <= covered or at_tokens % alignment or not self.shape.recurrent:
            raise InvalidInputError(
                f"grant {grant} cannot keep a snapshot after {at_tokens} tokens: give a multiple of {alignment} "
                f"in ({endpoint}, {covered}], on a stage with recurrent layers"
            )
        if at_tokens in holding.taken_snapshots:
            return holding.taken_snapshots[at_tokens]
        if self.parts.escrow.held(grant, "snapshot"):
            self.parts.escrow.draw(grant, "snapshot", 1)
        elif self._room.available["snapshot"] <= 0:
            return None
        slot = holding.taken_snapshots[at_tokens] = take_snapshot(self.parts)
        self._done("materialise_snapshot", grant, at_tokens)
        return slot

    def publish_snapshot(self, grant: GrantId, at_tokens: int) -> bool:
        """The state after `at_tokens` is written and its block published: let others find it.

        False when no slot was taken for it, or when a snapshot hangs there already (its slot is freed then).
        """
        holding = self._committed(grant, "publish_snapshot")
        blocks = at_tokens // self.shape.block_tokens
        if at_tokens not in holding.taken_snapshots:
            return False
        if blocks > holding.published:
            raise InvalidInputError(
                f"grant {grant} has published {holding.published} blocks, a snapshot after {at_tokens} tokens "
                f"needs {blocks}: publish the blocks first"
            )
        fresh = publish_snapshot(self.parts, holding.table[blocks - 1], holding.taken_snapshots.pop(at_tokens))
        self._done("publish_snapshot", grant, at_tokens)
        return fresh

    # ---- the end ---------------------------------------------------------------------------------------

    def release(self, receipt: LeaseReceipt) -> None:
        """End a grant: first its escrow and what it owns, then its lease and references.

        What it published stays cached. Counts as a use if the grant was committed. Raises
        `DoubleReleaseError` when the receipt was used before.
        """
        lease = self.parts.leases.check(receipt)
        holding = self.parts.holdings.pop(receipt.grant)
        self.parts.escrow.cancel(receipt.grant)
        for block in holding.table[holding.published :]:
            self.parts.blocks.give_back(block)
        for slot in holding.taken_snapshots.values():
            self.parts.snapshots.give_back(slot)
        if holding.state_slot is not None:
            self.parts.states.give_back(holding.state_slot)
        published = holding.table[: holding.published]
        if holding.committed:
            self._stamp += 1
            # The whole chain at once: a parent is never older than its child.
            self.parts.blocks.touch(published, self._stamp)
        if lease.restore_from is not None:
            if holding.committed:
                self.parts.snapshots.touch(lease.restore_from)
            self.parts.snapshots.unpin(lease.restore_from)
        self.parts.leases.drop(receipt.grant)
        self.parts.blocks.unpin(published)
        self._done("release", receipt.grant)

    # ---- the rules -------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every rule against everything that is held. Raises `InvariantError` with the last operations.

        Takes time in proportion to the capacity: for tests and simulations.
        """
        try:
            check_invariants(self.parts, self._room.available)
        except InvariantError as error:
            raise InvariantError(f"{error}; operations, the last one last: {'; '.join(self._story_lines())}") from error

    # ---- helpers ---------------------------------------------------------------------------------------

    def _committed(self, grant: GrantId, event: str) -> Holding:
        holding = self.parts.holding(grant)
        if not holding.committed:
            raise self._wrong_state(grant, "prepared", event)
        return holding

    def _wrong_state(self, grant: GrantId, state: str, event: str) -> TransitionError:
        return TransitionError(f"grant {grant}", state, event, self._story_lines())

    def _story_lines(self) -> tuple[str, ...]:
        return tuple(" ".join(map(str, operation)) for operation in self._story)

    def _done(self, *operation: object) -> None:
        """An operation is over: remember it for the story, and number the room if it changed."""
        self._story.append(operation)
        available = self.parts.available()
        if available != self._room.available:
            self._room = Room(self._room.number + 1, available)
