"""The parts of one stage's cache, and everything that can be asked of them without changing what is held."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from wavepp.core.cache.blocks import NO_PARENT, BlockPool
from wavepp.core.cache.changes import CacheChanges, ChangeLog, DumpPiece, dump_pieces
from wavepp.core.cache.escrow import EscrowBook
from wavepp.core.cache.eviction import EvictionPolicy, LeastRecentlyUsed
from wavepp.core.cache.leases import LeaseBook
from wavepp.core.cache.snapshots import SnapshotPool, StatePool
from wavepp.core.cache.types import (
    PINS,
    POOLS,
    CacheShape,
    KeyWindow,
    LeaseReceipt,
    PoolUsage,
    Room,
    SnapshotSlot,
    StateSlot,
)
from wavepp.core.errors import InvalidInputError, InvariantError, TransitionError
from wavepp.core.ids import BlockId, GrantId
from wavepp.core.limits import CACHE_CHANGES_MAX

_STORY_OPERATIONS = 32


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


class CacheView:
    """What is held, and how much room is left. `StageCache` adds the operations."""

    def __init__(self, shape: CacheShape, policy: EvictionPolicy | None = None) -> None:
        self.shape = shape
        self._blocks = BlockPool(shape.sizes.kv_blocks, policy or LeastRecentlyUsed())
        self._states = StatePool(shape.sizes.state_slots)
        self._snapshots = SnapshotPool(shape.sizes.snapshot_slots)
        self._leases = LeaseBook(shape.sizes.kv_blocks, shape.pins_max_blocks)
        self._escrow = EscrowBook()
        self._holdings: dict[GrantId, Holding] = {}
        self._changes = ChangeLog()
        self._stamp = 0
        self._room_number = 0
        self._available = self._measure()
        self._story: deque[tuple[object, ...]] = deque(maxlen=_STORY_OPERATIONS)

    # ---- grants ----------------------------------------------------------------------------------------

    def grants(self) -> tuple[GrantId, ...]:
        """Every grant that holds something here, in the order in which they were prepared."""
        return tuple(self._holdings)

    def holds(self, grant: GrantId) -> bool:
        """Whether `grant` is held."""
        return grant in self._holdings

    def table(self, grant: GrantId) -> tuple[BlockId, ...]:
        """The block table of a grant: block i covers tokens [i x B, (i + 1) x B)."""
        return tuple(self._get(grant).table)

    def endpoint_tokens(self, grant: GrantId) -> int:
        """How many tokens of a grant are reused."""
        return len(self._leases.get(grant).blocks) * self.shape.block_tokens

    def pinned_keys(self, grant: GrantId, first_block: int, last_block: int) -> bytes:
        """Packed keys of the blocks [`first_block`, `last_block`) of a grant, which are published."""
        holding = self._get(grant)
        if not 0 <= first_block <= last_block <= holding.published:
            raise InvalidInputError(
                f"grant {grant} has published {holding.published} blocks: keys of [{first_block}, "
                f"{last_block}) are not all known here"
            )
        return b"".join(map(self._blocks.key_of, holding.table[first_block:last_block]))

    def keys_before(self, window: KeyWindow, from_block: int) -> bytes:
        """Packed keys of the blocks [`from_block`, `window.first_block`), which the window leaves out.

        For a grant whose endpoint came to lie before its window, straight after `prepare`: it will compute
        those blocks again and needs their keys. Raises `InvalidInputError` when the window's start is not
        held (any more).
        """
        if from_block >= window.first_block or window.key_before is None:
            return b""
        tip = self._blocks.find(window.key_before)
        if tip is None or self._blocks.depth_of(tip) != window.first_block - 1 or from_block < 0:
            raise InvalidInputError(
                f"keys of blocks [{from_block}, {window.first_block}) are not known here: ask for all of them"
            )
        return b"".join(map(self._blocks.key_of, self._blocks.chain(tip)[from_block:]))

    def state_slot(self, grant: GrantId) -> StateSlot | None:
        """The working state of a grant; None on a dense stage and before the first `materialise`."""
        return self._get(grant).state_slot

    def restore_slot(self, grant: GrantId) -> SnapshotSlot | None:
        """The snapshot from which a grant's first chunk starts; None on a dense stage and at endpoint 0."""
        restore_from = self._leases.get(grant).restore_from
        return None if restore_from is None else self._snapshots.slot_at(restore_from)

    def receipt(self, grant: GrantId) -> LeaseReceipt:
        """What `release` takes."""
        return self._leases.get(grant).receipt

    # ---- room and gauges -------------------------------------------------------------------------------

    def room(self) -> Room:
        """What a new reservation may still take, by pool, and how many more blocks leases may pin."""
        return Room(self._room_number, dict(self._available))

    def usage(self) -> dict[str, PoolUsage]:
        """Where the units of each pool are."""
        blocks, states, snapshots = self._blocks, self._states, self._snapshots
        reserved = {pool: self._escrow.total(pool) for pool in POOLS}
        return {
            "kv": PoolUsage(
                blocks.capacity, blocks.free, blocks.evictable, blocks.pinned, blocks.owned, reserved["kv"]
            ),
            "state": PoolUsage(states.capacity, states.free, 0, 0, states.capacity - states.free, reserved["state"]),
            "snapshot": PoolUsage(
                snapshots.capacity,
                snapshots.free,
                snapshots.evictable,
                snapshots.pinned,
                snapshots.owned,
                reserved["snapshot"],
            ),
        }

    # ---- for the directory -----------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        """The number that the next change will get."""
        return self._changes.cursor

    def drain_changes(self, at_most: int = CACHE_CHANGES_MAX) -> CacheChanges:
        """Take the oldest changes that were not drained, at most `at_most`; `gap` says that some were
        dropped.
        """
        return self._changes.drain(at_most)

    def dump(self) -> Iterator[DumpPiece]:
        """All that is held at the time of the call, in pieces; the cache may change while they are read."""
        snapshot_keys = [self._blocks.key_of(block) for block in self._snapshots.blocks()]
        return dump_pieces(self._changes.cursor, self._blocks.keys(), snapshot_keys)

    # ---- for the operations ----------------------------------------------------------------------------

    def _get(self, grant: GrantId) -> Holding:
        holding = self._holdings.get(grant)
        if holding is None:
            raise InvalidInputError(f"grant {grant} holds nothing here: prepare it first, or it has ended")
        return holding

    def _committed(self, grant: GrantId, event: str) -> Holding:
        holding = self._get(grant)
        if not holding.committed:
            raise self._wrong_state(grant, "prepared", event)
        return holding

    def _wrong_state(self, grant: GrantId, state: str, event: str) -> TransitionError:
        return TransitionError(f"grant {grant}", state, event, self._told())

    def _told(self) -> tuple[str, ...]:
        return tuple(" ".join(map(str, operation)) for operation in self._story)

    def _measure(self) -> dict[str, int]:
        return {
            "kv": self._blocks.free + self._blocks.evictable - self._escrow.total("kv"),
            "state": self._states.free - self._escrow.total("state"),
            "snapshot": self._snapshots.free + self._snapshots.evictable - self._escrow.total("snapshot"),
            PINS: self._leases.room,
        }

    def _done(self, *operation: object) -> None:
        """An operation is over: remember it for the story, and number the room if it changed."""
        self._story.append(operation)
        available = self._measure()
        if available != self._available:
            self._available = available
            self._room_number += 1

    # ---- the rules -------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check every rule against everything that is held. Raises `InvariantError` with the last operations.

        Takes time in proportion to the capacity: for tests and simulations.
        """
        try:
            self._validate()
        except InvariantError as error:
            raise InvariantError(f"{error}; operations, the last one last: {'; '.join(self._told())}") from error

    def _validate(self) -> None:
        holdings = self._holdings
        published = Counter(b for s in holdings.values() for b in s.table[: s.published])
        owned = [b for s in holdings.values() for b in s.table[s.published :]]
        leases = {grant: self._leases.get(grant) for grant in holdings}
        restores = Counter(lease.restore_from for lease in leases.values() if lease.restore_from is not None)
        self._blocks.validate(published, owned)
        self._snapshots.validate(
            restores,
            [slot for s in holdings.values() for slot in s.taken_snapshots.values()],
            set(map(self._blocks.find, self._blocks.keys())).__contains__,
        )
        self._states.validate([s.state_slot for s in holdings.values() if s.state_slot is not None])
        self._leases.validate(set(holdings))
        self._escrow.validate(set(holdings))
        for pool, usage in self.usage().items():
            if usage.available < 0:
                raise InvariantError(f"pool {pool} has promised more than it has: {usage}")
            if usage.free + usage.cached + usage.pinned + usage.owned != usage.capacity:
                raise InvariantError(f"pool {pool} does not add up: {usage}")
        if self._available != self._measure():
            raise InvariantError(f"room says {self._available}, there is {self._measure()}")
        for grant, holding in holdings.items():
            self._validate_holding(grant, holding, leases[grant].blocks, leases[grant].restore_from)

    def _validate_holding(
        self, grant: GrantId, holding: Holding, leased: list[BlockId], restore_from: BlockId | None
    ) -> None:
        table = holding.table
        if table[: len(leased)] != leased or len(leased) > holding.published:
            raise InvariantError(f"the table of grant {grant} does not begin with its lease")
        parent = NO_PARENT
        for block in table[: holding.published]:
            if self._blocks.parent_of(block) != parent:
                raise InvariantError(f"block {block} in the table of grant {grant} does not follow block {parent}")
            parent = block
        if self._escrow.held(grant, "kv") != holding.total_blocks - len(table):
            raise InvariantError(
                f"grant {grant} has {len(table)} of {holding.total_blocks} blocks, and reserved "
                f"{self._escrow.held(grant, 'kv')}"
            )
        states = self._escrow.held(grant, "state") + (holding.state_slot is not None)
        if states != int(self.shape.recurrent):
            raise InvariantError(f"grant {grant} has {states} state slots, taken and reserved")
        if restore_from != (leased[-1] if leased and self.shape.recurrent else None):
            raise InvariantError(f"grant {grant} starts from the snapshot on {restore_from}, not at its endpoint")
        if not holding.committed and (len(table) != len(leased) or holding.taken_snapshots):
            raise InvariantError(f"grant {grant} took blocks or slots before its first chunk")
