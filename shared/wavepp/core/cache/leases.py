"""Leases: which grant pins which reused prefix, and the limit on what leases pin together.

A lease's blocks start at a root, as every chain of references does, so in any chain the blocks that some
lease pins come before those that none does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from wavepp.core.cache.types import LeaseReceipt
from wavepp.core.errors import DoubleReleaseError, InvalidInputError, InvariantError
from wavepp.core.ids import BlockId, GrantId


@dataclass(slots=True)
class Lease:
    """The reused prefix of one grant, root first; `restore_from` is the block whose snapshot it pins."""

    receipt: LeaseReceipt
    blocks: list[BlockId]
    restore_from: BlockId | None


class LeaseBook:
    """All leases of a stage."""

    __slots__ = ("_capacity", "_counts", "_leases", "_pinned", "_pins_max", "_serial")

    def __init__(self, capacity: int, pins_max: int) -> None:
        self._capacity = capacity
        self._pins_max = pins_max
        self._leases: dict[GrantId, Lease] = {}
        self._counts = [0] * capacity
        self._pinned = 0
        self._serial = 0

    @property
    def room(self) -> int:
        """How many more blocks leases may pin. No limit (the capacity) while none pins anything.

        The limit keeps pins from starving reservations; a lease that is alone starves nobody, and could
        otherwise wait for ever.
        """
        if not self._pinned:
            return self._capacity
        return max(0, self._pins_max - self._pinned)

    def unpinned_tail(self, chain: Sequence[BlockId]) -> int:
        """How many blocks of `chain` no lease pins yet."""
        counts = self._counts
        unpinned = 0
        for block in reversed(chain):
            if counts[block]:
                break
            unpinned += 1
        return unpinned

    def take(self, grant: GrantId, blocks: list[BlockId], restore_from: BlockId | None) -> None:
        """Note a lease on `blocks`, which may be none."""
        self._serial += 1
        self._leases[grant] = Lease(LeaseReceipt(grant, self._serial), blocks, restore_from)
        self._count_in(blocks)

    def get(self, grant: GrantId) -> Lease:
        """The lease of `grant`. Raises `InvalidInputError` when it has none."""
        lease = self._leases.get(grant)
        if lease is None:
            raise InvalidInputError(f"grant {grant} holds nothing here: prepare it first, or it has ended")
        return lease

    def shorten(self, grant: GrantId, keep: int, restore_from: BlockId | None) -> list[BlockId]:
        """Keep the first `keep` blocks of a lease; returns the others, in order."""
        lease = self.get(grant)
        dropped = lease.blocks[keep:]
        del lease.blocks[keep:]
        lease.restore_from = restore_from
        self._count_out(dropped)
        return dropped

    def check(self, receipt: LeaseReceipt) -> Lease:
        """The lease that `receipt` is for. Raises `DoubleReleaseError` when it is not held (any more)."""
        lease = self._leases.get(receipt.grant)
        if lease is None or lease.receipt != receipt:
            raise DoubleReleaseError(
                f"receipt {receipt.serial} of grant {receipt.grant} was released before or is not from here: "
                "release the receipt of a held grant, once"
            )
        return lease

    def drop(self, grant: GrantId) -> None:
        """End a lease."""
        self._count_out(self._leases.pop(grant).blocks)

    def _count_in(self, blocks: Sequence[BlockId]) -> None:
        counts = self._counts
        newly = 0
        for block in blocks:
            count = counts[block]
            if not count:
                newly += 1
            counts[block] = count + 1
        self._pinned += newly

    def _count_out(self, blocks: Sequence[BlockId]) -> None:
        counts = self._counts
        gone = 0
        for block in blocks:
            count = counts[block] - 1
            counts[block] = count
            if not count:
                gone += 1
        self._pinned -= gone

    def validate(self, grants: Set[GrantId]) -> None:
        """Check the counts against the leases of `grants`. Raises `InvariantError`."""
        if self._leases.keys() != grants:
            raise InvariantError(f"leases are held by {list(self._leases)}, the grants are {grants}")
        counts = Counter(block for lease in self._leases.values() for block in lease.blocks)
        if len(counts) != self._pinned:
            raise InvariantError(f"leases count {self._pinned} pinned blocks, they pin {len(counts)}")
        for block, count in enumerate(self._counts):
            if count != counts[BlockId(block)]:
                raise InvariantError(f"block {block} counts {count} leases, {counts[BlockId(block)]} pin it")
