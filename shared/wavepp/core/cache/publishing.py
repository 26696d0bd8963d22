"""How blocks and snapshots come to be found by others, and no longer; the change log gets every such event."""

from __future__ import annotations

from wavepp.core.cache.blocks import NO_PARENT
from wavepp.core.cache.parts import CacheParts, Holding
from wavepp.core.cache.types import ChangeKind, SnapshotSlot
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import BlockId, GrantId, PrefixKey


def take_block(parts: CacheParts) -> BlockId:
    """One block to own. What had to be evicted for it is withdrawn, its snapshot first."""
    block, evicted_key = parts.blocks.take()
    if evicted_key is not None:
        if parts.snapshots.withdraw(block):
            parts.changes.add(ChangeKind.SNAPSHOT_WITHDRAWN, evicted_key)
        parts.changes.add(ChangeKind.WITHDRAWN, evicted_key)
    return block


def publish_block(parts: CacheParts, grant: GrantId, holding: Holding, i: int, key: PrefixKey) -> None:
    """Publish block `i` of a grant, or put the block that is kept under `key` into its table; no effect again.

    Raises `InvalidInputError` when `key` contradicts what is published.
    """
    own = holding.table[i]
    parent = holding.table[i - 1] if i else NO_PARENT
    kept = parts.blocks.find(key)
    if i < holding.published:
        if kept != own:
            raise InvalidInputError(f"block {i} of grant {grant} is published, but not as {key.hex()}")
        return
    if kept is None:
        parts.blocks.publish(own, key, parent)
        parts.changes.add(ChangeKind.PUBLISHED, key)
    elif parts.blocks.parent_of(kept) == parent:
        parts.blocks.pin([kept])
        parts.blocks.give_back(own)
        holding.table[i] = kept
    else:
        raise InvalidInputError(
            f"key {key.hex()} of block {i} of grant {grant} is held after another prefix: keys are "
            "chained, send those that the prompt has"
        )
    holding.published = i + 1


def take_snapshot(parts: CacheParts) -> SnapshotSlot:
    """One snapshot slot to own. The snapshot that had to be evicted for it is withdrawn."""
    slot, evicted = parts.snapshots.take()
    if evicted is not None:
        parts.changes.add(ChangeKind.SNAPSHOT_WITHDRAWN, parts.blocks.key_of(evicted))
    return slot


def publish_snapshot(parts: CacheParts, block: BlockId, slot: SnapshotSlot) -> bool:
    """Hang an owned slot on a published block; False when one hangs there already (the slot is freed then)."""
    fresh = parts.snapshots.slot_at(block) is None
    if fresh:
        parts.snapshots.publish(block, slot)
        parts.changes.add(ChangeKind.SNAPSHOT_PUBLISHED, parts.blocks.key_of(block))
    else:
        parts.snapshots.give_back(slot)
        parts.snapshots.touch(block)
    return fresh
