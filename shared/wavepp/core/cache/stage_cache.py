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

from wavepp.core.cache.admission import CacheAdmission
from wavepp.core.cache.blocks import NO_PARENT
from wavepp.core.cache.changes import ChangeKind
from wavepp.core.cache.types import (
    LeaseReceipt,
    SnapshotSlot,
)
from wavepp.core.cache.view import Holding
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import BlockId, GrantId, PrefixKey
from wavepp.core.keys import key_at, key_count


class StageCache(CacheAdmission):
    """See the module's text. Every method leaves every rule of `validate` true, also when it raises.

    A grant that is not held raises `InvalidInputError`, and so do arguments outside the contract; but for
    `publish`, a method that raises has changed nothing.
    """

    # ---- execution -------------------------------------------------------------------------------------

    def commit(self, grant: GrantId) -> None:
        """The grant's first chunk has come: from now on its release counts as a use. Again: no effect.

        The eviction order moves at the release: before that nothing of it can be evicted.
        """
        self._get(grant).committed = True
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
            self._escrow.draw(grant, "state", 1)
            holding.state_slot = self._states.take()
        more = upto_blocks - len(holding.table)
        if more > 0:
            self._escrow.draw(grant, "kv", more)
            for _ in range(more):
                holding.table.append(self._take_block())
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
                self._publish_block(grant, holding, first_block + i, key_at(keys, i))
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
        if self._escrow.held(grant, "snapshot"):
            self._escrow.draw(grant, "snapshot", 1)
        elif self._available["snapshot"] <= 0:
            return None
        slot, evicted = self._snapshots.take()
        if evicted is not None:
            self._changes.add(ChangeKind.SNAPSHOT_WITHDRAWN, self._blocks.key_of(evicted))
        holding.taken_snapshots[at_tokens] = slot
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
        slot = holding.taken_snapshots.pop(at_tokens)
        block = holding.table[blocks - 1]
        fresh = self._snapshots.slot_at(block) is None
        if fresh:
            self._snapshots.publish(block, slot)
            self._changes.add(ChangeKind.SNAPSHOT_PUBLISHED, self._blocks.key_of(block))
        else:
            self._snapshots.give_back(slot)
            self._snapshots.touch(block)
        self._done("publish_snapshot", grant, at_tokens)
        return fresh

    # ---- the end ---------------------------------------------------------------------------------------

    def release(self, receipt: LeaseReceipt) -> None:
        """End a grant: first its escrow and what it owns, then its lease and references.

        What it published stays cached. Counts as a use if the grant was committed. Raises
        `DoubleReleaseError` when the receipt was used before.
        """
        lease = self._leases.check(receipt)
        holding = self._holdings.pop(receipt.grant)
        self._escrow.cancel(receipt.grant)
        for block in holding.table[holding.published :]:
            self._blocks.give_back(block)
        for slot in holding.taken_snapshots.values():
            self._snapshots.give_back(slot)
        if holding.state_slot is not None:
            self._states.give_back(holding.state_slot)
        published = holding.table[: holding.published]
        if holding.committed:
            self._stamp += 1
            # The whole chain at once: a parent is never older than its child.
            self._blocks.touch(published, self._stamp)
        if lease.restore_from is not None:
            if holding.committed:
                self._snapshots.touch(lease.restore_from)
            self._snapshots.unpin(lease.restore_from)
        self._leases.drop(receipt.grant)
        self._blocks.unpin(published)
        self._done("release", receipt.grant)

    # ---- helpers ---------------------------------------------------------------------------------------

    def _take_block(self) -> BlockId:
        block, evicted_key = self._blocks.take()
        if evicted_key is not None:
            if self._snapshots.withdraw(block):
                self._changes.add(ChangeKind.SNAPSHOT_WITHDRAWN, evicted_key)
            self._changes.add(ChangeKind.WITHDRAWN, evicted_key)
        return block

    def _publish_block(self, grant: GrantId, holding: Holding, i: int, key: PrefixKey) -> None:
        own = holding.table[i]
        parent = holding.table[i - 1] if i else NO_PARENT
        kept = self._blocks.find(key)
        if i < holding.published:
            if kept != own:
                raise InvalidInputError(f"block {i} of grant {grant} is published, but not as {key.hex()}")
            return
        if kept is None:
            self._blocks.publish(own, key, parent)
            self._changes.add(ChangeKind.PUBLISHED, key)
        elif self._blocks.parent_of(kept) == parent:
            self._blocks.pin([kept])
            self._blocks.give_back(own)
            holding.table[i] = kept
        else:
            raise InvalidInputError(
                f"key {key.hex()} of block {i} of grant {grant} is held after another prefix: keys are "
                "chained, send those that the prompt has"
            )
        holding.published = i + 1
