"""What a grant would pin and reserve on one stage, or why it may not. A plan changes nothing until `carry_out`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wavepp.core.cache.parts import CacheParts, Holding
from wavepp.core.cache.prefix import held_prefix, offered_endpoints
from wavepp.core.cache.types import PINS, KeyWindow, Missing, NeedKeys, Never, Pool, Prepared
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import BlockId, GrantId
from wavepp.core.keys import key_count


@dataclass(frozen=True, slots=True)
class PreparePlan:
    """A grant fits: it pins `chain` and the snapshot on block `restore_from`, and reserves `escrow`."""

    answer: Prepared
    total_blocks: int
    chain: list[BlockId]
    restore_from: BlockId | None
    escrow: Mapping[Pool, int]

    def carry_out(self, parts: CacheParts, grant: GrantId) -> None:
        """Enter the grant."""
        parts.blocks.pin(self.chain)
        if self.restore_from is not None:
            parts.snapshots.pin(self.restore_from)
        parts.leases.take(grant, self.chain, self.restore_from)
        parts.escrow.reserve(grant, self.escrow)
        parts.holdings[grant] = Holding(self.total_blocks, list(self.chain), len(self.chain))


@dataclass(frozen=True, slots=True)
class LowerPlan:
    """A grant may step down: it keeps the first `keep` blocks of its lease and the snapshot on `restore_from`.

    `more_blocks`: to reserve for what it lets go. `give_up_slot`: its reserved snapshot slot pays for the pin.
    """

    answer: Prepared
    keep: int
    restore_from: BlockId | None
    more_blocks: int
    give_up_slot: bool

    def carry_out(self, parts: CacheParts, grant: GrantId) -> None:
        """Take for the earlier endpoint, then let the later part go."""
        holding, before = parts.holding(grant), parts.leases.get(grant).restore_from
        if self.give_up_slot:
            parts.escrow.draw(grant, "snapshot", 1)
        parts.escrow.enlarge(grant, "kv", self.more_blocks)
        if self.restore_from is not None:
            parts.snapshots.pin(self.restore_from)
        if before is not None:
            parts.snapshots.unpin(before)
        parts.blocks.unpin(parts.leases.shorten(grant, self.keep, self.restore_from))
        del holding.table[self.keep :]
        holding.published = self.keep


def plan_prepare(
    parts: CacheParts,
    available: Mapping[str, int],
    grant: GrantId,
    window: KeyWindow,
    endpoint_tokens: int,
    total_tokens: int,
) -> PreparePlan | NeedKeys | Missing | Never:
    """Decide `StageCache.prepare`."""
    shape, blocks = parts.shape, parts.blocks
    _check_request(parts, grant, window, endpoint_tokens, total_tokens)
    total_blocks = -(-total_tokens // shape.block_tokens)
    if total_blocks > blocks.capacity:
        return Never("kv", total_blocks, blocks.capacity)
    if shape.recurrent and not parts.states.capacity:
        return Never("state", 1, 0)
    held = held_prefix(blocks, window, endpoint_tokens // shape.block_tokens)
    if held is None:
        return NeedKeys()
    endpoints = offered_endpoints(shape, parts.snapshots, held)
    chain = held[: endpoints[0] // shape.block_tokens] if endpoints else []
    restore_from = chain[-1] if chain and shape.recurrent else None
    suffix_blocks = total_blocks - len(chain)
    states = int(shape.recurrent)
    snapshots = int(restore_from is not None and not parts.snapshots.references(restore_from))
    missing = _first_missing(
        available,
        {
            "kv": blocks.tail_with_references(chain, 0) + suffix_blocks,
            "state": states,
            "snapshot": snapshots,
            PINS: parts.leases.unpinned_tail(chain),
        },
    )
    if missing is not None:
        return missing
    spare_slot = int(shape.recurrent and available["snapshot"] > snapshots)
    escrow: dict[Pool, int] = {"kv": suffix_blocks, "state": states, "snapshot": spare_slot}
    answer = Prepared(len(chain) * shape.block_tokens, endpoints if shape.recurrent else ())
    return PreparePlan(answer, total_blocks, chain, restore_from, escrow)


def plan_lower(
    parts: CacheParts, available: Mapping[str, int], grant: GrantId, endpoint_tokens: int
) -> LowerPlan | Missing:
    """Decide `StageCache.lower` for a grant that is not committed."""
    shape, snapshots = parts.shape, parts.snapshots
    lease = parts.leases.get(grant)
    now_tokens = len(lease.blocks) * shape.block_tokens
    if not 0 <= endpoint_tokens <= now_tokens or endpoint_tokens % shape.alignment_tokens:
        raise InvalidInputError(
            f"grant {grant} cannot step down from {now_tokens} to {endpoint_tokens} tokens: "
            f"give a multiple of {shape.alignment_tokens} in [0, {now_tokens}]"
        )
    keep = endpoint_tokens // shape.block_tokens
    restore_from = lease.blocks[keep - 1] if keep and shape.recurrent else None
    more_snapshots = 0
    if restore_from is not None:
        if snapshots.slot_at(restore_from) is None:
            return Missing("snapshot", available["snapshot"], available["snapshot"])
        if not snapshots.references(restore_from):
            more_snapshots += 1
    if lease.restore_from is not None and snapshots.references(lease.restore_from) == 1:
        more_snapshots -= 1
    # Its own chance to keep a snapshot later is worth less than the prefix now.
    give_up_slot = more_snapshots > available["snapshot"] and parts.escrow.held(grant, "snapshot") > 0
    more_blocks = len(lease.blocks) - keep
    missing = _first_missing(
        available,
        {
            "snapshot": 0 if give_up_slot else more_snapshots,
            "kv": more_blocks - parts.blocks.tail_with_references(lease.blocks[keep:], 1),
        },
    )
    if missing is not None:
        return missing
    endpoints = offered_endpoints(shape, snapshots, lease.blocks[:keep]) if shape.recurrent else ()
    return LowerPlan(Prepared(endpoint_tokens, endpoints), keep, restore_from, more_blocks, give_up_slot)


def _check_request(
    parts: CacheParts, grant: GrantId, window: KeyWindow, endpoint_tokens: int, total_tokens: int
) -> None:
    """Raises `InvalidInputError` for a request outside the contract."""
    wanted_blocks = endpoint_tokens // parts.shape.block_tokens
    if grant in parts.holdings:
        raise InvalidInputError(f"grant {grant} is held already: release it first; an id is never used again")
    if not 0 <= endpoint_tokens < total_tokens:
        raise InvalidInputError(
            f"grant {grant} wants to reuse {endpoint_tokens} of {total_tokens} tokens: leave at least one to compute"
        )
    window_end = window.first_block + key_count(window.keys)
    if not 0 <= window.first_block <= wanted_blocks <= window_end:
        raise InvalidInputError(
            f"grant {grant} wants {wanted_blocks} blocks, its keys are those of {window.first_block} to "
            f"{window_end}: send keys that begin before the endpoint and reach it"
        )
    if (window.key_before is None) != (window.first_block == 0):
        raise InvalidInputError(
            f"grant {grant} sends keys from block {window.first_block} on: send the key before it, if there is one"
        )


def _first_missing(available: Mapping[str, int], needed: Mapping[str, int]) -> Missing | None:
    for pool, units in needed.items():
        if units > available[pool]:
            return Missing(pool, units, available[pool])
    return None
