"""What goes into a stage's cache and what comes out of it: shapes, answers, gauges, changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NamedTuple, NewType

from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import GrantId, PrefixKey

StateSlot = NewType("StateSlot", int)
"""Index of the working recurrent state of one running grant."""

SnapshotSlot = NewType("SnapshotSlot", int)
"""Index of a kept recurrent state."""

Pool = Literal["kv", "state", "snapshot"]
POOLS: Final[tuple[Pool, ...]] = ("kv", "state", "snapshot")

PINS: Final = "pins"
"""Not a pool, but limited like one: how many more blocks leases may pin."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Capacities of one stage's pools: blocks, and slots. Zero slots means that the stage has none."""

    kv_blocks: int
    state_slots: int = 0
    snapshot_slots: int = 0


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What does not change while a stage lives.

    `block_tokens` (B): tokens in a block. `alignment_tokens`: endpoints and snapshots are multiples of it,
    and it is a multiple of B. `recurrent`: the stage holds layers that need a snapshot at the endpoint.
    `pins_max_blocks`: blocks that all leases together may pin, waived for a lease that is alone
    (`pins_limit` computes it). Raises `InvalidInputError` when these do not fit together.
    """

    block_tokens: int
    alignment_tokens: int
    recurrent: bool
    sizes: PoolSizes
    pins_max_blocks: int

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise InvalidInputError(f"block_tokens is {self.block_tokens}: give at least 1")
        if self.alignment_tokens < 1 or self.alignment_tokens % self.block_tokens:
            raise InvalidInputError(
                f"alignment_tokens is {self.alignment_tokens}: give a positive multiple of block_tokens "
                f"({self.block_tokens})"
            )
        if self.sizes.kv_blocks < 1 or self.sizes.state_slots < 0 or self.sizes.snapshot_slots < 0:
            raise InvalidInputError(f"pool sizes {self.sizes}: give at least one kv block and no negative size")
        if not 0 <= self.pins_max_blocks <= self.sizes.kv_blocks:
            raise InvalidInputError(
                f"pins_max_blocks is {self.pins_max_blocks}: give a value in [0, {self.sizes.kv_blocks}]"
            )


def pins_limit(kv_blocks: int, block_tokens: int, stages: int, wave_tokens_max: int) -> int:
    """Blocks that leases may pin so that room for 2 x `stages` waves, or half the cache, stays unpinned."""
    waves_blocks = -(-2 * stages * wave_tokens_max // block_tokens)
    return kv_blocks - min(waves_blocks, kv_blocks // 2)


@dataclass(frozen=True, slots=True)
class KeyWindow:
    """The part of a prompt's keys that a stage needs.

    `keys`: packed keys of the blocks [`first_block`, all full blocks of the prompt). `key_before`: the key of
    block `first_block` - 1, None exactly when `first_block` is 0.
    """

    first_block: int
    keys: bytes
    key_before: PrefixKey | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """The stage pinned `endpoint_tokens` and reserved for the rest.

    `snapshots`: every endpoint above 0 to which `lower` could go on a recurrent stage, descending, from
    `endpoint_tokens` on, at most 64. Empty on a dense stage, where every aligned endpoint below will do.
    Endpoint 0 always will.
    """

    endpoint_tokens: int
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NeedKeys:
    """The key before the window is not held here: ask again with the keys from block 0 on."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no room now. The same call would fit once `room().available[pool]` >= `available_needed`.

    As seen now: what is held may change before that. `pool` is "kv", "state", "snapshot" or "pins".
    """

    pool: str
    available_needed: int
    available: int


@dataclass(frozen=True, slots=True)
class Never:
    """The request would not fit an empty cache: `needed` units of a pool that has `capacity`."""

    pool: str
    needed: int
    capacity: int


@dataclass(frozen=True, slots=True)
class LeaseReceipt:
    """Proof of a grant's lease and escrow on this stage; `release` takes it once."""

    grant: GrantId
    serial: int


@dataclass(frozen=True, slots=True)
class Room:
    """`available` by pool, and "pins"; `number` grows with every change of it."""

    number: int
    available: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Where a pool's units are: free + cached + pinned + owned == capacity, reserved <= free + cached.

    `cached`: published, referenced by nobody, may be evicted. `pinned`: published and referenced. `owned`:
    taken by a running grant and not published. `reserved`: promised to grants out of free and cached.
    """

    capacity: int
    free: int
    cached: int
    pinned: int
    owned: int
    reserved: int

    @property
    def available(self) -> int:
        """What a new reservation may still take."""
        return self.free + self.cached - self.reserved


class ChangeKind(IntEnum):
    """What happened to a key. The numbers are those of the wire, where the names are ATTACHED and DETACHED."""

    PUBLISHED = 1
    WITHDRAWN = 2
    SNAPSHOT_PUBLISHED = 3
    SNAPSHOT_WITHDRAWN = 4


class CacheChange(NamedTuple):
    """One change; a snapshot goes by the key of the block at whose end it was taken."""

    kind: ChangeKind
    key: PrefixKey


@dataclass(frozen=True, slots=True)
class CacheChanges:
    """Changes in order, numbered `first_number`, `first_number` + 1, ...

    `gap`: changes before `first_number` were dropped undrained; only a dump makes the follower right again.
    """

    first_number: int
    changes: tuple[CacheChange, ...]
    gap: bool


@dataclass(frozen=True, slots=True)
class DumpSegment:
    """A part of all that is held; `keys` and `snapshot_keys` are packed, at most 4,096 keys together.

    The dump contains every change numbered below `cursor` and none from there on. Parents come before
    children, keys before snapshot keys. `last` is set on the last segment; there is always one.
    """

    cursor: int
    keys: bytes
    snapshot_keys: bytes
    last: bool
