"""What one stage's cache is made of, and where the units of its pools are."""

from __future__ import annotations

from dataclasses import dataclass, field

from wavepp.core.cache.blocks import BlockPool
from wavepp.core.cache.changes import ChangeLog
from wavepp.core.cache.escrow import EscrowBook
from wavepp.core.cache.eviction import EvictionPolicy
from wavepp.core.cache.leases import LeaseBook
from wavepp.core.cache.snapshots import SnapshotPool, StatePool
from wavepp.core.cache.types import PINS, CacheShape, PoolUsage, SnapshotSlot, StateSlot
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import BlockId, GrantId


@dataclass(slots=True)
class Holding:
    """What a grant holds besides its lease and escrow.

    `table`: its blocks from token 0 on, first the lease's, then those it published, then those it owns.
    `published`: how many blocks of the table are published, each with a reference of this grant.
    `taken_snapshots`: slots that a job writes, by the number of tokens before the state.
    """

    total_blocks: int
    table: list[BlockId]
    published: int
    committed: bool = False
    state_slot: StateSlot | None = None
    taken_snapshots: dict[int, SnapshotSlot] = field(default_factory=dict)


class CacheParts:
    """The pools, the books and what each grant holds. Only the operations of `StageCache` change them."""

    __slots__ = ("blocks", "changes", "escrow", "holdings", "leases", "shape", "snapshots", "states")

    def __init__(self, shape: CacheShape, policy: EvictionPolicy) -> None:
        self.shape = shape
        self.blocks = BlockPool(shape.sizes.kv_blocks, policy)
        self.states = StatePool(shape.sizes.state_slots)
        self.snapshots = SnapshotPool(shape.sizes.snapshot_slots)
        self.leases = LeaseBook(shape.sizes.kv_blocks, shape.pins_max_blocks)
        self.escrow = EscrowBook()
        self.changes = ChangeLog()
        self.holdings: dict[GrantId, Holding] = {}
        """In the order in which they were prepared."""

    def holding(self, grant: GrantId) -> Holding:
        """What `grant` holds. Raises `InvalidInputError` when it is not held."""
        holding = self.holdings.get(grant)
        if holding is None:
            raise InvalidInputError(f"grant {grant} holds nothing here: prepare it first, or it has ended")
        return holding

    def available(self) -> dict[str, int]:
        """What a new reservation may still take, by pool, and how many more blocks leases may pin."""
        reserved = self.escrow.total
        return {
            "kv": self.blocks.free + self.blocks.evictable - reserved("kv"),
            "state": self.states.free - reserved("state"),
            "snapshot": self.snapshots.free + self.snapshots.evictable - reserved("snapshot"),
            PINS: self.leases.room,
        }

    def usage(self) -> dict[str, PoolUsage]:
        """Where the units of each pool are."""
        states, reserved = self.states, self.escrow.total
        return {
            "kv": _usage(self.blocks, reserved("kv")),
            "state": PoolUsage(states.capacity, states.free, 0, 0, states.capacity - states.free, reserved("state")),
            "snapshot": _usage(self.snapshots, reserved("snapshot")),
        }


def _usage(pool: BlockPool | SnapshotPool, reserved: int) -> PoolUsage:
    return PoolUsage(pool.capacity, pool.free, pool.evictable, pool.pinned, pool.owned, reserved)
