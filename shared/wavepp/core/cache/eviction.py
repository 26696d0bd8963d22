"""Which evictable leaf goes first.

Only leaves are queued, so what is evicted never leaves a child without its parent. The order among leaves
is a small policy object's.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from wavepp.core.errors import InvariantError
from wavepp.core.ids import BlockId

_COMPACT_SLACK: Final = 64


class EvictionPolicy(Protocol):
    """Orders the leaves of the published tree."""

    def rank(self, touched: int, depth: int) -> int:
        """The leaf with the lowest rank is evicted first; among equals, the one that became a leaf first.

        `touched` grows with every release of a grant that used the block; `depth` counts blocks before it.
        Asked once, when a block becomes an evictable leaf.
        """
        ...


class LeastRecentlyUsed:
    """The block that was not used for the longest time goes first."""

    def rank(self, touched: int, depth: int) -> int:
        """The time of the last use."""
        return touched


class EvictionQueue:
    """The evictable leaves: a heap with lazy deletion.

    A block that leaves the queue stays in the heap as a dead entry, which its serial shows; when more than half
    is dead the heap is rebuilt, so it stays below twice the number of leaves (plus a constant).
    """

    __slots__ = ("_heap", "_live", "_policy", "_serial")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[int, int, BlockId]] = []
        self._live: dict[BlockId, int] = {}
        self._serial = 0

    @property
    def heap_entries(self) -> int:
        """Entries of the heap, dead ones included."""
        return len(self._heap)

    def blocks(self) -> set[BlockId]:
        """The queued blocks."""
        return set(self._live)

    def push(self, block: BlockId, touched: int, depth: int) -> None:
        """Queue `block`, which has become an evictable leaf."""
        self._serial += 1
        self._live[block] = self._serial
        heappush(self._heap, (self._policy.rank(touched, depth), self._serial, block))
        if len(self._heap) > 2 * len(self._live) + _COMPACT_SLACK:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def discard(self, block: BlockId) -> None:
        """`block`, if it is queued, is no leaf any more or got a reference."""
        self._live.pop(block, None)

    def pop(self) -> BlockId:
        """Take the leaf to evict. Raises `InvariantError` when there is none."""
        while self._heap:
            _, serial, block = heappop(self._heap)
            if self._live.get(block) == serial:
                del self._live[block]
                return block
        raise InvariantError("an eviction was promised, but no published block is an evictable leaf")
