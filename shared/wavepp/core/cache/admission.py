"""How a grant comes to hold a lease and an escrow on one stage, and how it steps down."""

from __future__ import annotations

from wavepp.core.cache.leases import Lease
from wavepp.core.cache.types import PINS, KeyWindow, Missing, NeedKeys, Never, Prepared
from wavepp.core.cache.view import CacheView, Holding
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import BlockId, GrantId, PrefixKey
from wavepp.core.keys import key_at, key_count
from wavepp.core.limits import SNAPSHOT_OFFERS_MAX


class CacheAdmission(CacheView):
    """Decides leases and escrows; takes no block."""

    def prepare(
        self, grant: GrantId, window: KeyWindow, endpoint_tokens: int, total_tokens: int
    ) -> Prepared | NeedKeys | Missing | Never:
        """Pin the longest held prefix up to `endpoint_tokens` and reserve for the rest, all pools or none.

        `endpoint_tokens`: the wanted endpoint; aligned down, and on a recurrent stage down to a snapshot.
        `total_tokens`: prompt and output budget, more than the endpoint. The window's keys start at or
        before the wanted endpoint and reach it. A refusal changes nothing, and neither refusal nor success
        touches the eviction order.
        """
        wanted_blocks, total_blocks = self._check_request(grant, window, endpoint_tokens, total_tokens)
        if total_blocks > self._blocks.capacity:
            return Never("kv", total_blocks, self._blocks.capacity)
        if self.shape.recurrent and not self._states.capacity:
            return Never("state", 1, 0)
        held = self._held_prefix(window, wanted_blocks)
        if held is None:
            return NeedKeys()
        offers = self._offers(held)
        endpoint = offers[0] if offers else 0
        chain = held[: endpoint // self.shape.block_tokens]
        restore_from = chain[-1] if chain and self.shape.recurrent else None
        suffix_blocks = total_blocks - len(chain)

        needed: dict[str, int] = {
            "kv": self._blocks.tail_with_references(chain, 0) + suffix_blocks,
            "state": 1 if self.shape.recurrent else 0,
            "snapshot": 0,
            PINS: self._leases.unpinned_tail(chain),
        }
        if restore_from is not None and not self._snapshots.references(restore_from):
            needed["snapshot"] = 1
        missing = self._first_missing(needed)
        if missing is not None:
            return missing

        self._blocks.pin(chain)
        if restore_from is not None:
            self._snapshots.pin(restore_from)
        self._leases.take(grant, chain, restore_from)
        spare_snapshot = self._measure()["snapshot"] > 0
        self._escrow.reserve(
            grant,
            {
                "kv": suffix_blocks,
                "state": needed["state"],
                "snapshot": 1 if self.shape.recurrent and spare_snapshot else 0,
            },
        )
        self._holdings[grant] = Holding(total_blocks, list(chain), len(chain))
        self._done("prepare", grant, endpoint, total_tokens)
        return Prepared(endpoint, offers if self.shape.recurrent else ())

    def lower(self, grant: GrantId, endpoint_tokens: int) -> Prepared | Missing:
        """Step down to `endpoint_tokens`, which is aligned and at most the present endpoint.

        The reservation for the longer rest is made, and the earlier snapshot pinned, before the later part
        of the prefix is let go; if that cannot be had nothing changed. When the snapshot at
        `endpoint_tokens` was evicted after `prepare` offered it, the answer is Missing("snapshot", n, n):
        waiting will not bring it back, but a new `prepare` will see the snapshots that are left. Raises
        `TransitionError` after `commit`.
        """
        holding = self._get(grant)
        lease = self._leases.get(grant)
        now_tokens = len(lease.blocks) * self.shape.block_tokens
        if holding.committed:
            raise self._wrong_state(grant, "committed", "lower")
        if not 0 <= endpoint_tokens <= now_tokens or endpoint_tokens % self.shape.alignment_tokens:
            raise InvalidInputError(
                f"grant {grant} cannot step down from {now_tokens} to {endpoint_tokens} tokens: "
                f"give a multiple of {self.shape.alignment_tokens} in [0, {now_tokens}]"
            )
        keep = endpoint_tokens // self.shape.block_tokens
        if keep == len(lease.blocks):
            return self._prepared(lease)
        restore_from = lease.blocks[keep - 1] if keep and self.shape.recurrent else None
        needed: dict[str, int] = {"snapshot": 0}
        if restore_from is not None:
            if self._snapshots.slot_at(restore_from) is None:
                available = self._available["snapshot"]
                return Missing("snapshot", available, available)
            if not self._snapshots.references(restore_from):
                needed["snapshot"] += 1
        if lease.restore_from is not None and self._snapshots.references(lease.restore_from) == 1:
            needed["snapshot"] -= 1
        more_blocks = len(lease.blocks) - keep
        needed["kv"] = more_blocks - self._blocks.tail_with_references(lease.blocks[keep:], 1)
        # Its own chance to keep a snapshot later is worth less than the prefix now.
        give_up_slot = needed["snapshot"] > self._available["snapshot"] and self._escrow.held(grant, "snapshot") > 0
        if give_up_slot:
            needed["snapshot"] = 0
        missing = self._first_missing(needed)
        if missing is not None:
            return missing

        if give_up_slot:
            self._escrow.draw(grant, "snapshot", 1)
        self._escrow.enlarge(grant, "kv", more_blocks)
        if restore_from is not None:
            self._snapshots.pin(restore_from)
        if lease.restore_from is not None:
            self._snapshots.unpin(lease.restore_from)
        self._blocks.unpin(self._leases.shorten(grant, keep, restore_from))
        del holding.table[keep:]
        holding.published = keep
        self._done("lower", grant, endpoint_tokens)
        return self._prepared(lease)

    # ---- helpers ---------------------------------------------------------------------------------------

    def _check_request(
        self, grant: GrantId, window: KeyWindow, endpoint_tokens: int, total_tokens: int
    ) -> tuple[int, int]:
        """Wanted and total blocks of a request inside the contract; raises `InvalidInputError` otherwise."""
        block_tokens = self.shape.block_tokens
        wanted_blocks = endpoint_tokens // block_tokens
        if grant in self._holdings:
            raise InvalidInputError(f"grant {grant} is held already: release it first; an id is never used again")
        if not 0 <= endpoint_tokens < total_tokens:
            raise InvalidInputError(
                f"grant {grant} wants to reuse {endpoint_tokens} of {total_tokens} tokens: "
                "leave at least one to compute"
            )
        if not 0 <= window.first_block <= wanted_blocks <= window.first_block + key_count(window.keys):
            raise InvalidInputError(
                f"grant {grant} wants {wanted_blocks} blocks, its keys are those of {window.first_block} to "
                f"{window.first_block + key_count(window.keys)}: send keys that begin before the endpoint "
                "and reach it"
            )
        if (window.key_before is None) != (window.first_block == 0):
            raise InvalidInputError(
                f"grant {grant} sends keys from block {window.first_block} on: send the key before it, if there is one"
            )
        return wanted_blocks, -(-total_tokens // block_tokens)

    def _held_prefix(self, window: KeyWindow, wanted_blocks: int) -> list[BlockId] | None:
        """The longest held chain of at most `wanted_blocks` blocks; None when the key before is not held."""
        first = window.first_block
        tip: BlockId | None = None
        if window.key_before is not None:
            tip = self._find(window.key_before, first - 1)
            if tip is None:
                return None
        # A held key implies the one before it, so the boundary can be searched; most often all is held.
        low, high = first, wanted_blocks
        probe = high
        while low < high:
            found = self._find(key_at(window.keys, probe - 1 - first), probe - 1)
            if found is None:
                high = probe - 1
            else:
                low, tip = probe, found
            probe = (low + high + 1) // 2
        return [] if tip is None else self._blocks.chain(tip)

    def _find(self, key: PrefixKey, depth: int) -> BlockId | None:
        block = self._blocks.find(key)
        if block is not None and self._blocks.depth_of(block) != depth:
            raise InvalidInputError(
                f"key {key.hex()} is sent for block {depth}, but names block {self._blocks.depth_of(block)}: "
                "send the keys of the prompt in order"
            )
        return block

    def _offers(self, chain: list[BlockId]) -> tuple[int, ...]:
        """Endpoints above 0 that `chain` can serve, descending; on a dense stage only the highest."""
        step = self.shape.alignment_tokens // self.shape.block_tokens
        highest = len(chain) // step * step
        block_tokens = self.shape.block_tokens
        if not self.shape.recurrent:
            return (highest * block_tokens,) if highest else ()
        offers: list[int] = []
        for blocks in range(highest, 0, -step):
            if self._snapshots.slot_at(chain[blocks - 1]) is not None:
                offers.append(blocks * block_tokens)
                if len(offers) == SNAPSHOT_OFFERS_MAX:
                    break
        return tuple(offers)

    def _prepared(self, lease: Lease) -> Prepared:
        offers = self._offers(lease.blocks) if self.shape.recurrent else ()
        return Prepared(len(lease.blocks) * self.shape.block_tokens, offers)

    def _first_missing(self, needed: dict[str, int]) -> Missing | None:
        for pool, units in needed.items():
            if units > self._available[pool]:
                return Missing(pool, units, self._available[pool])
        return None
