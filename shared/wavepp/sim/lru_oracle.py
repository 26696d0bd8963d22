"""What one cache with exact LRU would reuse when requests come one at a time, in the order of arrival.

Independent of the real cache's code on purpose: it is what that is measured against. It knows no pipeline, no time and
no room for what is under way, so a real mesh can fall behind it; and one whose requests end in another order than they
came can, a little, surpass it.
"""

from __future__ import annotations

from collections import OrderedDict

from wavepp.core.errors import InvalidInputError
from wavepp.core.limits import KEY_BYTES


class LruOracle:
    """Holds `capacity` blocks."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvalidInputError(f"a cache of {capacity} blocks: give at least 1")
        self._capacity = capacity
        self._held: OrderedDict[bytes, None] = OrderedDict()
        """The least recently used first."""

    def ask(self, keys: bytes, reusable: int) -> int:
        """A request with these packed keys comes: how many of its first `reusable` blocks are held. All are used."""
        blocks = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
        held = self._held
        reused = 0
        for block in blocks[:reusable]:
            if block not in held:
                break
            reused += 1
        # What the request holds already must not make room for the rest of it.
        for block in blocks:
            if block in held:
                held.move_to_end(block)
        # The last block counts as the oldest: no block is kept without those before it.
        for block in reversed(blocks):
            if block in held:
                held.move_to_end(block)
                continue
            if len(held) >= self._capacity:
                held.popitem(last=False)
            held[block] = None
        return reused


def reusable_blocks(prompt_tokens: int, block_tokens: int) -> int:
    """At least one token of a prompt must be computed."""
    return (prompt_tokens - 1) // block_tokens
