"""Which prefix of a prompt is held, and from where on it it can be reused."""

from __future__ import annotations

from wavepp.core.cache.blocks import BlockPool
from wavepp.core.cache.snapshots import SnapshotPool
from wavepp.core.cache.types import CacheShape, KeyWindow
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import BlockId, PrefixKey
from wavepp.core.keys import key_at
from wavepp.core.limits import SNAPSHOT_OFFERS_MAX


def held_prefix(blocks: BlockPool, window: KeyWindow, wanted_blocks: int) -> list[BlockId] | None:
    """The longest held chain of at most `wanted_blocks` blocks; None when the key before is not held.

    Raises `InvalidInputError` when a key of the window names a block that lies elsewhere in a prompt.
    """
    first = window.first_block
    tip: BlockId | None = None
    if window.key_before is not None:
        tip = _find(blocks, window.key_before, first - 1)
        if tip is None:
            return None
    # A held key implies the one before it, so the boundary can be searched; most often all is held.
    low, high = first, wanted_blocks
    probe = high
    while low < high:
        found = _find(blocks, key_at(window.keys, probe - 1 - first), probe - 1)
        if found is None:
            high = probe - 1
        else:
            low, tip = probe, found
        probe = (low + high + 1) // 2
    return [] if tip is None else blocks.chain(tip)


def _find(blocks: BlockPool, key: PrefixKey, depth: int) -> BlockId | None:
    block = blocks.find(key)
    if block is not None and blocks.depth_of(block) != depth:
        raise InvalidInputError(
            f"key {key.hex()} is sent for block {depth}, but names block {blocks.depth_of(block)}: "
            "send the keys of the prompt in order"
        )
    return block


def offered_endpoints(shape: CacheShape, snapshots: SnapshotPool, chain: list[BlockId]) -> tuple[int, ...]:
    """Endpoints above 0 that `chain` can serve, descending; on a dense stage only the highest."""
    step = shape.alignment_tokens // shape.block_tokens
    highest = len(chain) // step * step
    if not shape.recurrent:
        return (highest * shape.block_tokens,) if highest else ()
    found: list[int] = []
    for blocks in range(highest, 0, -step):
        if snapshots.slot_at(chain[blocks - 1]) is not None:
            found.append(blocks * shape.block_tokens)
            if len(found) == SNAPSHOT_OFFERS_MAX:
                break
    return tuple(found)


def keys_before(blocks: BlockPool, window: KeyWindow, from_block: int) -> bytes:
    """Packed keys of the blocks [`from_block`, `window.first_block`), which the window leaves out.

    Raises `InvalidInputError` when the window's start is not held (any more).
    """
    if from_block >= window.first_block or window.key_before is None:
        return b""
    tip = blocks.find(window.key_before)
    if tip is None or blocks.depth_of(tip) != window.first_block - 1 or from_block < 0:
        raise InvalidInputError(
            f"keys of blocks [{from_block}, {window.first_block}) are not known here: ask for all of them"
        )
    return b"".join(map(blocks.key_of, blocks.chain(tip)[from_block:]))
