"""Escrow: how much of each pool is promised to which grant and not taken yet. Counts only, no blocks."""

from __future__ import annotations

from collections.abc import Mapping, Set

from wavepp.core.cache.types import POOLS, Pool
from wavepp.core.errors import InvariantError
from wavepp.core.ids import GrantId


class EscrowBook:
    """All reservations of a stage. Whether there is room is decided before it is asked."""

    __slots__ = ("_held", "_totals")

    def __init__(self) -> None:
        self._totals: dict[Pool, int] = dict.fromkeys(POOLS, 0)
        self._held: dict[GrantId, dict[Pool, int]] = {}

    def total(self, pool: Pool) -> int:
        """What is reserved in `pool` by all grants."""
        return self._totals[pool]

    def held(self, grant: GrantId, pool: Pool) -> int:
        """What `grant` has reserved in `pool` and not taken."""
        return self._held[grant][pool]

    def reserve(self, grant: GrantId, wanted: Mapping[Pool, int]) -> None:
        """Reserve in all pools for a new grant."""
        self._held[grant] = {pool: wanted.get(pool, 0) for pool in POOLS}
        for pool, units in self._held[grant].items():
            self._totals[pool] += units

    def enlarge(self, grant: GrantId, pool: Pool, units: int) -> None:
        """Reserve `units` more for a grant."""
        self._held[grant][pool] += units
        self._totals[pool] += units

    def draw(self, grant: GrantId, pool: Pool, units: int) -> None:
        """`units` of a reservation are being taken. Raises `InvariantError` when the grant reserved fewer."""
        left = self._held[grant][pool] - units
        if left < 0:
            raise InvariantError(f"grant {grant} draws {units} from {pool}, {left + units} are reserved for it")
        self._held[grant][pool] = left
        self._totals[pool] -= units

    def cancel(self, grant: GrantId) -> None:
        """Give back all that a grant has not taken."""
        for pool, units in self._held.pop(grant).items():
            self._totals[pool] -= units

    def validate(self, grants: Set[GrantId]) -> None:
        """Check the totals against what `grants` hold. Raises `InvariantError`."""
        if self._held.keys() != grants:
            raise InvariantError(f"escrow is held by {list(self._held)}, the grants are {grants}")
        for pool in POOLS:
            units = [held[pool] for held in self._held.values()]
            if sum(units) != self._totals[pool] or min(units, default=0) < 0:
                raise InvariantError(f"{self._totals[pool]} of {pool} count as reserved, grants hold {units}")
