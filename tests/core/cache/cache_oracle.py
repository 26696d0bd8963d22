"""What a stage's cache must do, said as naively as possible: lists and sets of keys, everything counted anew.

It knows no blocks, no counters and no heap. An operation is tried on a copy; where a pool's availability
would fall below zero, it was not possible, and the answer says by how much.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from wavepp.core.cache.types import CacheShape, ChangeKind, Missing, NeedKeys, Never, PoolUsage, Prepared
from wavepp.core.ids import GrantId, PrefixKey

Key = PrefixKey


@dataclass
class Held:
    """A grant: the keys of its whole prompt and output, and how far it is."""

    keys: list[Key]
    total_blocks: int
    lease: list[Key]
    published: list[Key]
    committed: bool = False
    owned: int = 0
    state: str = "none"
    slot_reserved: bool = False
    slots_taken: set[int] = field(default_factory=set)


@dataclass
class Oracle:
    shape: CacheShape
    grants: dict[GrantId, Held] = field(default_factory=dict)
    parents: dict[Key, Key | None] = field(default_factory=dict)
    """Every published key, in the order in which they were published."""
    last_use: dict[Key, int] = field(default_factory=dict)
    snapshots: list[Key] = field(default_factory=list)
    """In the order of their last use."""
    events: list[tuple[ChangeKind, Key]] = field(default_factory=list)
    clock: int = 0

    # ---- counting --------------------------------------------------------------------------------------

    def referenced(self) -> set[Key]:
        return {key for held in self.grants.values() for key in held.published}

    def leased(self) -> set[Key]:
        return {key for held in self.grants.values() for key in held.lease}

    def pinned_snapshots(self) -> set[Key]:
        return {held.lease[-1] for held in self.grants.values() if held.lease and self.shape.recurrent}

    def usage(self) -> dict[str, PoolUsage]:
        sizes, grants = self.shape.sizes, list(self.grants.values())
        owned = sum(held.owned for held in grants)
        pinned = len(self.referenced())
        states = sum(held.state == "taken" for held in grants)
        slots = sum(len(held.slots_taken) for held in grants)
        pinned_snapshots = len(self.pinned_snapshots())
        return {
            "kv": PoolUsage(
                capacity=sizes.kv_blocks,
                free=sizes.kv_blocks - len(self.parents) - owned,
                cached=len(self.parents) - pinned,
                pinned=pinned,
                owned=owned,
                reserved=sum(held.total_blocks - len(held.published) - held.owned for held in grants),
            ),
            "state": PoolUsage(
                capacity=sizes.state_slots,
                free=sizes.state_slots - states,
                cached=0,
                pinned=0,
                owned=states,
                reserved=sum(held.state == "reserved" for held in grants),
            ),
            "snapshot": PoolUsage(
                capacity=sizes.snapshot_slots,
                free=sizes.snapshot_slots - len(self.snapshots) - slots,
                cached=len(self.snapshots) - pinned_snapshots,
                pinned=pinned_snapshots,
                owned=slots,
                reserved=sum(held.slot_reserved for held in grants),
            ),
        }

    def available(self) -> dict[str, int]:
        room = {pool: use.free + use.cached - use.reserved for pool, use in self.usage().items()}
        pinned = len(self.leased())
        room["pins"] = max(0, self.shape.pins_max_blocks - pinned) if pinned else self.shape.sizes.kv_blocks
        return room

    def missing(self, before: Oracle) -> Missing | None:
        """What this state, tried from `before`, has too little of."""
        now, then = self.available(), before.available()
        for pool in ("kv", "state", "snapshot"):
            if now[pool] < 0:
                return Missing(pool, then[pool] - now[pool], then[pool])
        more_pins = len(self.leased()) - len(before.leased())
        if more_pins > then["pins"]:
            return Missing("pins", more_pins, then["pins"])
        return None

    def offers(self, held_keys: list[Key]) -> list[int]:
        step = self.shape.alignment_tokens // self.shape.block_tokens
        ends = list(range(step, len(held_keys) + 1, step))
        if self.shape.recurrent:
            ends = [n for n in ends if held_keys[n - 1] in self.snapshots]
        return [n * self.shape.block_tokens for n in reversed(ends)]

    def prepared(self, grant: GrantId) -> Prepared:
        lease = self.grants[grant].lease
        offers = tuple(self.offers(lease)) if self.shape.recurrent else ()
        return Prepared(len(lease) * self.shape.block_tokens, offers)

    def copy(self) -> Oracle:
        """What an operation is tried on: its grants may be changed, the rest may not."""
        grants = {grant: replace(held) for grant, held in self.grants.items()}
        return replace(self, grants=grants)

    def become(self, other: Oracle) -> None:
        self.__dict__.update(other.__dict__)

    # ---- operations ------------------------------------------------------------------------------------

    def prepare(
        self, grant: GrantId, keys: list[Key], wanted_blocks: int, first_block: int, total_tokens: int
    ) -> Prepared | NeedKeys | Missing | Never:
        total_blocks = -(-total_tokens // self.shape.block_tokens)
        if total_blocks > self.shape.sizes.kv_blocks:
            return Never("kv", total_blocks, self.shape.sizes.kv_blocks)
        if first_block and keys[first_block - 1] not in self.parents:
            return NeedKeys()
        held = [key for key in keys[:wanted_blocks] if key in self.parents]
        blocks = max(self.offers(held), default=0) // self.shape.block_tokens
        tried = self.copy()
        mine = Held(keys, total_blocks, held[:blocks], held[:blocks])
        mine.state = "reserved" if self.shape.recurrent else "none"
        tried.grants[grant] = mine
        missing = tried.missing(before=self)
        if missing is not None:
            return missing
        mine.slot_reserved = self.shape.recurrent and tried.available()["snapshot"] > 0
        self.become(tried)
        return self.prepared(grant)

    def lower(self, grant: GrantId, blocks: int) -> Prepared | Missing:
        mine = self.grants[grant]
        if blocks == len(mine.lease):
            return self.prepared(grant)
        room = self.available()["snapshot"]
        if self.shape.recurrent and blocks and mine.lease[blocks - 1] not in self.snapshots:
            return Missing("snapshot", room, room)
        tried = self.copy()
        mine = tried.grants[grant]
        mine.lease, mine.published = mine.lease[:blocks], mine.published[:blocks]
        if tried.available()["snapshot"] < 0:
            mine.slot_reserved = False
        missing = tried.missing(before=self)
        if missing is not None:
            return missing
        self.become(tried)
        return self.prepared(grant)

    def use_snapshot(self, key: Key) -> None:
        self.snapshots.remove(key)
        self.snapshots.append(key)

    def commit(self, grant: GrantId) -> None:
        self.grants[grant].committed = True

    def materialise(self, grant: GrantId, blocks: int) -> None:
        mine = self.grants[grant]
        if self.shape.recurrent:
            mine.state = "taken"
        while len(mine.published) + mine.owned < blocks:
            if not self.usage()["kv"].free:
                self.evict()
            mine.owned += 1

    def evict(self) -> None:
        """The oldest of the leaves that nobody references."""
        with_children = set(self.parents.values())
        leaves = [key for key in self.parents if key not in self.referenced() and key not in with_children]
        [oldest] = [k for k in leaves if self.last_use[k] == min(self.last_use[other] for other in leaves)]
        if oldest in self.snapshots:
            self.snapshots.remove(oldest)
            self.events.append((ChangeKind.SNAPSHOT_WITHDRAWN, oldest))
        del self.parents[oldest], self.last_use[oldest]
        self.events.append((ChangeKind.WITHDRAWN, oldest))

    def publish(self, grant: GrantId, last_block: int) -> None:
        mine = self.grants[grant]
        for i in range(len(mine.published), last_block):
            key = mine.keys[i]
            mine.owned -= 1
            mine.published.append(key)
            if key not in self.parents:
                self.parents[key] = mine.keys[i - 1] if i else None
                self.events.append((ChangeKind.PUBLISHED, key))

    def take_slot(self, grant: GrantId, at_block: int) -> bool:
        mine = self.grants[grant]
        if at_block in mine.slots_taken:
            return True
        if not mine.slot_reserved and self.available()["snapshot"] <= 0:
            return False
        mine.slot_reserved = False
        if not self.usage()["snapshot"].free:
            oldest = next(key for key in self.snapshots if key not in self.pinned_snapshots())
            self.snapshots.remove(oldest)
            self.events.append((ChangeKind.SNAPSHOT_WITHDRAWN, oldest))
        mine.slots_taken.add(at_block)
        return True

    def publish_snapshot(self, grant: GrantId, at_block: int) -> bool:
        mine = self.grants[grant]
        if at_block not in mine.slots_taken:
            return False
        mine.slots_taken.remove(at_block)
        key = mine.keys[at_block - 1]
        if key in self.snapshots:
            self.use_snapshot(key)
            return False
        self.snapshots.append(key)
        self.events.append((ChangeKind.SNAPSHOT_PUBLISHED, key))
        return True

    def release(self, grant: GrantId) -> None:
        mine = self.grants.pop(grant)
        if mine.committed:
            self.clock += 1
            for key in mine.published:
                self.last_use[key] = self.clock
            if mine.lease and self.shape.recurrent:
                self.use_snapshot(mine.lease[-1])
