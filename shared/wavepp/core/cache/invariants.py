"""The rules that hold across the parts of a stage's cache; each part knows its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from wavepp.core.cache.blocks import NO_PARENT
from wavepp.core.cache.leases import Lease
from wavepp.core.cache.parts import CacheParts, Holding
from wavepp.core.errors import InvariantError
from wavepp.core.ids import GrantId


def check_invariants(parts: CacheParts, available: Mapping[str, int]) -> None:
    """Check every rule against everything that is held; `available` is the room that the cache tells of.

    Raises `InvariantError`. Takes time in proportion to the capacity.
    """
    parts.leases.validate(parts.holdings.keys())
    leases = {grant: parts.leases.get(grant) for grant in parts.holdings}
    _check_parts(parts, leases)
    for pool, usage in parts.usage().items():
        if usage.available < 0:
            raise InvariantError(f"pool {pool} has promised more than it has: {usage}")
        if usage.free + usage.cached + usage.pinned + usage.owned != usage.capacity:
            raise InvariantError(f"pool {pool} does not add up: {usage}")
    if available != parts.available():
        raise InvariantError(f"room says {available}, there is {parts.available()}")
    for grant, holding in parts.holdings.items():
        _check_table(parts, grant, holding, leases[grant])
        _check_holding(parts, grant, holding, leases[grant])


def _check_parts(parts: CacheParts, leases: Mapping[GrantId, Lease]) -> None:
    """Every part keeps its own rules, and holds what the grants hold of it."""
    holdings = parts.holdings.values()
    parts.blocks.validate(
        Counter(block for holding in holdings for block in holding.table[: holding.published]),
        [block for holding in holdings for block in holding.table[holding.published :]],
    )
    parts.snapshots.validate(
        Counter(lease.restore_from for lease in leases.values() if lease.restore_from is not None),
        [slot for holding in holdings for slot in holding.taken_snapshots.values()],
        set(map(parts.blocks.find, parts.blocks.keys())).__contains__,
    )
    parts.states.validate([holding.state_slot for holding in holdings if holding.state_slot is not None])
    parts.escrow.validate(parts.holdings.keys())


def _check_table(parts: CacheParts, grant: GrantId, holding: Holding, lease: Lease) -> None:
    """A table begins with the lease, and what is published of it is a chain."""
    table, leased = holding.table, lease.blocks
    if table[: len(leased)] != leased or len(leased) > holding.published:
        raise InvariantError(f"the table of grant {grant} does not begin with its lease")
    parent = NO_PARENT
    for block in table[: holding.published]:
        if parts.blocks.parent_of(block) != parent:
            raise InvariantError(f"block {block} in the table of grant {grant} does not follow block {parent}")
        parent = block


def _check_holding(parts: CacheParts, grant: GrantId, holding: Holding, lease: Lease) -> None:
    """What a grant holds and what is reserved for it make up what it was granted."""
    table, leased, recurrent = holding.table, lease.blocks, parts.shape.recurrent
    reserved = parts.escrow.held(grant, "kv")
    if reserved != holding.total_blocks - len(table):
        raise InvariantError(
            f"grant {grant} has {len(table)} of {holding.total_blocks} blocks, and reserved {reserved}"
        )
    states = parts.escrow.held(grant, "state") + (holding.state_slot is not None)
    if states != int(recurrent):
        raise InvariantError(f"grant {grant} has {states} state slots, taken and reserved")
    if lease.restore_from != (leased[-1] if leased and recurrent else None):
        raise InvariantError(f"grant {grant} starts from the snapshot on {lease.restore_from}, not at its endpoint")
    if not holding.committed and (len(table) != len(leased) or holding.taken_snapshots):
        raise InvariantError(f"grant {grant} took blocks or slots before its first chunk")
