"""The pool of KV blocks of one stage, and the tree of those that are published under prefix keys.

A block is free, owned (a running grant writes it; it has no key) or published (it has a key, a link to its
parent, and a count of references). A *chain* is a list of published blocks, root first, each the parent of
the next. References are taken and dropped by chains that start at a root, so a referenced block's parent is
referenced too; what nobody references is closed under descendants and can always be evicted, leaves first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from wavepp.core.cache.eviction import EvictionPolicy, EvictionQueue
from wavepp.core.errors import InvariantError
from wavepp.core.ids import BlockId, PrefixKey

NO_PARENT: Final = BlockId(-1)


class BlockPool:
    """All blocks of a stage. Knows nothing of grants, leases and reservations."""

    __slots__ = (
        "_by_key",
        "_capacity",
        "_children",
        "_depth",
        "_evictable",
        "_free",
        "_keys",
        "_leaves",
        "_parents",
        "_references",
        "_touched",
    )

    def __init__(self, capacity: int, policy: EvictionPolicy) -> None:
        self._capacity = capacity
        self._free = [BlockId(i) for i in range(capacity - 1, -1, -1)]
        self._by_key: dict[PrefixKey, BlockId] = {}
        self._evictable = 0
        self._leaves = EvictionQueue(policy)
        self._keys: list[PrefixKey | None] = [None] * capacity
        self._parents = [NO_PARENT] * capacity
        self._children = [0] * capacity
        self._references = [0] * capacity
        self._touched = [0] * capacity
        self._depth = [0] * capacity

    @property
    def capacity(self) -> int:
        """All blocks."""
        return self._capacity

    @property
    def free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def evictable(self) -> int:
        """Published blocks that nobody references."""
        return self._evictable

    @property
    def pinned(self) -> int:
        """Published blocks that somebody references."""
        return len(self._by_key) - self._evictable

    @property
    def owned(self) -> int:
        """Blocks that were taken and are not published."""
        return self._capacity - len(self._free) - len(self._by_key)

    def find(self, key: PrefixKey) -> BlockId | None:
        """The block published under `key`, without touching the order."""
        return self._by_key.get(key)

    def key_of(self, block: BlockId) -> PrefixKey:
        """The key of a published block."""
        key = self._keys[block]
        if key is None:
            raise InvariantError(f"block {block} is asked for its key, but is not published")
        return key

    def parent_of(self, block: BlockId) -> BlockId:
        """The parent of a published block, `NO_PARENT` for a first block."""
        return self._parents[block]

    def depth_of(self, block: BlockId) -> int:
        """How many blocks come before a published block."""
        return self._depth[block]

    def keys(self) -> list[PrefixKey]:
        """Every published key; parents before children, as a parent is published first and evicted last."""
        return list(self._by_key)

    def chain(self, block: BlockId) -> list[BlockId]:
        """The chain from the root down to `block`."""
        parents = self._parents
        chain: list[BlockId] = []
        append = chain.append
        while block != NO_PARENT:
            append(block)
            block = parents[block]
        chain.reverse()
        return chain

    def tail_with_references(self, chain: Sequence[BlockId], at_most: int) -> int:
        """How many blocks at the end of `chain` have at most `at_most` references.

        References never grow towards the leaves, so these are all such blocks of the chain.
        """
        references = self._references
        count = 0
        for block in reversed(chain):
            if references[block] > at_most:
                break
            count += 1
        return count

    def pin(self, chain: Sequence[BlockId]) -> None:
        """Take a reference on each block of `chain`, which starts at a root or below a pinned block."""
        if not chain:
            return
        references = self._references
        newly = 0
        for block in chain:
            count = references[block]
            if not count:
                newly += 1
            references[block] = count + 1
        self._evictable -= newly
        # Every other block of the chain has a child, and so was in no queue.
        self._leaves.discard(chain[-1])

    def unpin(self, chain: Sequence[BlockId]) -> None:
        """Drop a reference on each block of `chain`, which reaches to the end of what the holder pins."""
        if not chain:
            return
        references = self._references
        unreferenced = 0
        for block in chain:
            count = references[block] - 1
            references[block] = count
            if not count:
                unreferenced += 1
        self._evictable += unreferenced
        self._queue_if_leaf(chain[-1])

    def touch(self, chain: Iterable[BlockId], stamp: int) -> None:
        """Note a use of pinned blocks (which are in no queue, so no entry of it goes stale)."""
        touched = self._touched
        for block in chain:
            touched[block] = stamp

    def take(self) -> tuple[BlockId, PrefixKey | None]:
        """One block to own: a free one, else the policy's choice of the evictable leaves, with the key it
        had.
        """
        if self._free:
            return self._free.pop(), None
        block = self._leaves.pop()
        return block, self._withdraw(block)

    def give_back(self, block: BlockId) -> None:
        """Free an owned block."""
        self._free.append(block)

    def publish(self, block: BlockId, key: PrefixKey, parent: BlockId) -> None:
        """Publish an owned block under a key that is not held; its owner keeps one reference.

        It has no place in the eviction order yet: the owner touches it before it drops that reference.
        """
        self._by_key[key] = block
        self._keys[block] = key
        self._parents[block] = parent
        self._references[block] = 1
        self._children[block] = 0
        if parent == NO_PARENT:
            self._depth[block] = 0
        else:
            self._depth[block] = self._depth[parent] + 1
            self._children[parent] += 1

    def _withdraw(self, block: BlockId) -> PrefixKey:
        key = self.key_of(block)
        del self._by_key[key]
        self._keys[block] = None
        self._evictable -= 1
        parent = self._parents[block]
        self._parents[block] = NO_PARENT
        if parent != NO_PARENT:
            self._children[parent] -= 1
            self._queue_if_leaf(parent)
        return key

    def _queue_if_leaf(self, block: BlockId) -> None:
        if not self._references[block] and not self._children[block]:
            self._leaves.push(block, self._touched[block], self._depth[block])

    def validate(self, references: Mapping[BlockId, int], owned: Sequence[BlockId]) -> None:
        """Check every rule of this file against what the grants hold. Raises `InvariantError`."""
        published = set(self._by_key.values())
        parts = [*self._free, *owned, *published]
        if sorted(parts) != list(range(self._capacity)):
            strays = {b: n for b, n in Counter(parts).items() if n != 1}
            lost = set(range(self._capacity)) - set(parts)
            raise InvariantError(f"blocks counted not once: {strays}, lost: {sorted(lost)}")
        children = Counter(self._parents[block] for block in published)
        unreferenced = set()
        for key, block in self._by_key.items():
            parent = self._parents[block]
            if self._keys[block] != key:
                raise InvariantError(f"block {block} is published under {key.hex()}, but has another key")
            if self._references[block] != references.get(block, 0):
                raise InvariantError(
                    f"block {block} counts {self._references[block]} references, grants hold {references.get(block, 0)}"
                )
            if self._children[block] != children[block]:
                raise InvariantError(f"block {block} counts {self._children[block]} children of {children[block]}")
            if not self._references[block]:
                unreferenced.add(block)
            if parent == NO_PARENT:
                depth = 0
            elif parent not in published:
                raise InvariantError(f"the parent {parent} of published block {block} is not published")
            else:
                depth = self._depth[parent] + 1
                if self._references[block] > self._references[parent]:
                    raise InvariantError(f"block {block} has more references than its parent {parent}")
                if not self._references[block] and self._touched[parent] < self._touched[block]:
                    raise InvariantError(f"parent {parent} is older than its child {block} in the eviction order")
            if self._depth[block] != depth:
                raise InvariantError(f"block {block} counts depth {self._depth[block]}, it is {depth}")
        if len(unreferenced) != self._evictable:
            raise InvariantError(f"{self._evictable} blocks count as evictable, {len(unreferenced)} are")
        leaves = {block for block in unreferenced if not children[block]}
        if self._leaves.blocks() != leaves:
            raise InvariantError(f"queued to be evicted: {self._leaves.blocks()}, evictable leaves: {leaves}")
