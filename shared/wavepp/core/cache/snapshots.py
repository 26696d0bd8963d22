"""Slots for recurrent states on a stage that has recurrent layers.

A *state slot* is the working state of a running grant. A *snapshot slot* is a state kept at a chunk's end:
owned while a job writes it, published on the block that ends there once that job is done, and evicted least
recently used first, or with its block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wavepp.core.cache.types import SnapshotSlot, StateSlot
from wavepp.core.errors import InvariantError
from wavepp.core.ids import BlockId


class StatePool:
    """The state slots: free, or owned by a running grant."""

    __slots__ = ("_capacity", "_free")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = [StateSlot(i) for i in range(capacity - 1, -1, -1)]

    @property
    def capacity(self) -> int:
        """All slots."""
        return self._capacity

    @property
    def free(self) -> int:
        """Slots that no grant has."""
        return len(self._free)

    def take(self) -> StateSlot:
        """One free slot; whoever takes it reserved it before. Raises `InvariantError` when there is none."""
        if not self._free:
            raise InvariantError("a state slot was promised, but none is free")
        return self._free.pop()

    def give_back(self, slot: StateSlot) -> None:
        """Free a slot."""
        self._free.append(slot)

    def validate(self, owned: Sequence[StateSlot]) -> None:
        """Check that every slot is free or owned, once. Raises `InvariantError`."""
        if sorted([*self._free, *owned]) != list(range(self._capacity)):
            raise InvariantError(f"of {self._capacity} state slots {self._free} are free, {owned} owned")


@dataclass(slots=True)
class _Snapshot:
    slot: SnapshotSlot
    references: int = 0


class SnapshotPool:
    """The snapshot slots, and on which block each published one hangs."""

    __slots__ = ("_capacity", "_evictable", "_free", "_published")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = [SnapshotSlot(i) for i in range(capacity - 1, -1, -1)]
        self._published: dict[BlockId, _Snapshot] = {}
        """In the order of their last use, the oldest first."""
        self._evictable = 0

    @property
    def capacity(self) -> int:
        """All slots."""
        return self._capacity

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def evictable(self) -> int:
        """Published snapshots that no lease pins."""
        return self._evictable

    @property
    def pinned(self) -> int:
        """Published snapshots that some lease pins."""
        return len(self._published) - self._evictable

    @property
    def owned(self) -> int:
        """Slots that were taken and are not published."""
        return self._capacity - len(self._free) - len(self._published)

    def blocks(self) -> list[BlockId]:
        """The blocks on which a snapshot hangs."""
        return list(self._published)

    def slot_at(self, block: BlockId) -> SnapshotSlot | None:
        """The snapshot that hangs on `block`, without touching the order."""
        snapshot = self._published.get(block)
        return None if snapshot is None else snapshot.slot

    def references(self, block: BlockId) -> int:
        """How many leases pin the snapshot on `block`."""
        return self._published[block].references

    def pin(self, block: BlockId) -> None:
        """A lease takes a reference."""
        snapshot = self._published[block]
        if not snapshot.references:
            self._evictable -= 1
        snapshot.references += 1

    def unpin(self, block: BlockId) -> None:
        """A lease drops its reference."""
        snapshot = self._published[block]
        snapshot.references -= 1
        if not snapshot.references:
            self._evictable += 1

    def touch(self, block: BlockId) -> None:
        """Note a use."""
        self._published[block] = self._published.pop(block)

    def take(self) -> tuple[SnapshotSlot, BlockId | None]:
        """One slot to own: a free one, else the oldest that no lease pins, with the block on which it hung.

        Raises `InvariantError` when there is none.
        """
        if self._free:
            return self._free.pop(), None
        # Pinned ones are passed over: as many as there are running grants, at the most.
        for block, snapshot in self._published.items():
            if not snapshot.references:
                del self._published[block]
                self._evictable -= 1
                return snapshot.slot, block
        raise InvariantError("a snapshot slot was promised, but none is free or evictable")

    def publish(self, block: BlockId, slot: SnapshotSlot) -> None:
        """An owned slot's state is complete: hang it on `block`, which has none."""
        self._published[block] = _Snapshot(slot)
        self._evictable += 1

    def give_back(self, slot: SnapshotSlot) -> None:
        """Free an owned slot."""
        self._free.append(slot)

    def withdraw(self, block: BlockId) -> bool:
        """`block` is being evicted: free the slot of the snapshot on it. False when it has none."""
        snapshot = self._published.pop(block, None)
        if snapshot is None:
            return False
        if snapshot.references:
            raise InvariantError(f"block {block} is being evicted, but its snapshot is pinned")
        self._evictable -= 1
        self._free.append(snapshot.slot)
        return True

    def validate(
        self,
        references: Mapping[BlockId, int],
        owned: Sequence[SnapshotSlot],
        is_published: Callable[[BlockId], bool],
    ) -> None:
        """Check every rule of this class against what the grants hold. Raises `InvariantError`."""
        published = [snapshot.slot for snapshot in self._published.values()]
        if sorted([*self._free, *owned, *published]) != list(range(self._capacity)):
            raise InvariantError(
                f"of {self._capacity} snapshot slots {self._free} are free, {owned} owned, {published} published"
            )
        for block, snapshot in self._published.items():
            if not is_published(block):
                raise InvariantError(f"a snapshot hangs on block {block}, which is not published")
            if snapshot.references != references.get(block, 0):
                raise InvariantError(
                    f"the snapshot on block {block} counts {snapshot.references} references, "
                    f"leases hold {references.get(block, 0)}"
                )
        if set(references) - set(self._published):
            raise InvariantError(f"leases pin snapshots on {set(references) - set(self._published)}, which have none")
        evictable = sum(not snapshot.references for snapshot in self._published.values())
        if evictable != self._evictable:
            raise InvariantError(f"{self._evictable} snapshots count as evictable, {evictable} are")
