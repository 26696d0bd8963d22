"""Reuse hints: which stage holds which prefix key, as far as the directory knows.

A hint only proposes an endpoint; the stages decide. So the index may be wrong in both directions and must
never be trusted, but it answers in microseconds and without asking anybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wavepp.core.cache.types import ChangeKind
from wavepp.core.errors import InvalidInputError, InvariantError
from wavepp.core.ids import PrefixKey, StageIndex
from wavepp.core.limits import KEY_BYTES, STAGES_MAX

KEYS_MAX_DEFAULT = 8 * 1024 * 1024

_PROBE_GROWTH = 64
"""A probe's steps grow by this factor until a block is not held. Every lookup in an index that no CPU cache holds costs
about a microsecond: doubling the step took almost as many lookups again as the search that follows it."""


@dataclass(frozen=True, slots=True)
class ReuseHint:
    """What the index proposes, in tokens; endpoint <= after_snapshots <= longest_all <= longest_any.

    `longest_any_tokens`: the longest prefix that some stage is known to hold. `longest_all_tokens`: that all
    stages hold. `after_snapshots_tokens`: what is left of it when all recurrent stages need a snapshot at its
    end. `endpoint_tokens`: the proposal, a multiple of the alignment and at most the largest endpoint of the
    prompt. `limiting_stage`: the lowest stage without which the endpoint would be higher; None when none held
    it back.
    """

    endpoint_tokens: int
    longest_any_tokens: int
    longest_all_tokens: int
    after_snapshots_tokens: int
    limiting_stage: StageIndex | None


class HintIndex:
    """Key -> bit mask of the stages that hold it, and the same for recurrent snapshots.

    - A stage that is *unknown* (never heard of, or out of sync) counts as holding everything: unknown is not
      absent. Every stage starts unknown. It does not count for `longest_any_tokens`, which tells what is
      known.
    - A stage without recurrent layers counts as holding every snapshot.

    Memory: an entry lives while at least one stage's bit is set, about 110 bytes each (140 from 9 stages on).
    What stages report is bounded by what they hold, so by the sum of their pools. `mark_held` runs ahead of
    the stages and could leave bits behind that no change will clear (the block was evicted before the grant
    was reported done), so it adds no key beyond `keys_max`.

    Times (one core, a million keys): a probe some microseconds, with recurrent stages 0.1 us more for
    every boundary that it passes on the way back to a snapshot; `clear` is a sweep of the whole index,
    a few hundred milliseconds. That is accepted: it happens when a stage's incarnation changes or its changes
    have a gap.
    """

    def __init__(self, stages: int, recurrent_stages: int = 0, keys_max: int = KEYS_MAX_DEFAULT) -> None:
        """`recurrent_stages` is a bit mask of the stages that have recurrent layers."""
        if not 1 <= stages <= STAGES_MAX:
            raise InvalidInputError(f"{stages} stages; a pipeline has 1 to {STAGES_MAX}")
        self._all = (1 << stages) - 1
        if recurrent_stages & ~self._all:
            raise InvalidInputError(f"recurrent stages {recurrent_stages:#b} are not among {stages} stages")
        if keys_max < 0:
            raise InvalidInputError(f"keys_max is {keys_max}; it must not be negative")
        self._stages = stages
        self._recurrent = recurrent_stages
        self._keys_max = keys_max
        self._unknown = self._all
        self._blocks: dict[bytes, int] = {}
        self._snapshots: dict[bytes, int] = {}

    # ---- what is held --------------------------------------------------------------------------------------

    def apply(self, stage: StageIndex, changes: Iterable[tuple[ChangeKind, PrefixKey]]) -> None:
        """Take over a stage's changes, in its order. A repeat of the latest ones does no harm."""
        bit = self._bit(stage)
        for kind, key in changes:
            if kind == ChangeKind.PUBLISHED:
                self._blocks[key] = self._blocks.get(key, 0) | bit
            elif kind == ChangeKind.WITHDRAWN:
                _clear(self._blocks, key, bit)
            elif kind == ChangeKind.SNAPSHOT_PUBLISHED:
                self._snapshots[key] = self._snapshots.get(key, 0) | bit
            elif kind == ChangeKind.SNAPSHOT_WITHDRAWN:
                _clear(self._snapshots, key, bit)
            else:
                raise InvalidInputError(f"stage {stage}: change kind {kind!r} is unknown")

    def set_unknown(self, stage: StageIndex) -> None:
        """The stage is out of sync: it counts as holding everything until `set_known`. O(1)."""
        self._unknown |= self._bit(stage)

    def clear(self, stage: StageIndex) -> None:
        """Forget what the stage holds, before its dump is loaded. O(index)."""
        bit = self._bit(stage)
        self._blocks = {key: rest for key, mask in self._blocks.items() if (rest := mask & ~bit)}
        self._snapshots = {key: rest for key, mask in self._snapshots.items() if (rest := mask & ~bit)}

    def load_dump(self, stage: StageIndex, keys: bytes, snapshots: bytes = b"") -> None:
        """One segment of an unknown stage's dump, as packed keys. Newer changes come after its last segment."""
        bit = self._bit(stage)
        for masks, packed in ((self._blocks, keys), (self._snapshots, snapshots)):
            for at in range(0, _packed_bytes(packed), KEY_BYTES):
                key = packed[at : at + KEY_BYTES]
                masks[key] = masks.get(key, 0) | bit

    def set_known(self, stage: StageIndex) -> None:
        """The stage's dump is complete (or the stage is empty): from now on what is not listed is absent."""
        self._unknown &= ~self._bit(stage)

    def mark_held(self, keys: bytes, snapshots: bytes = b"") -> None:
        """A grant is done: all stages hold these packed keys, before their changes arrive.

        `snapshots` are the packed keys of the blocks at whose ends the recurrent stages kept a snapshot.
        """
        for masks, packed, stages in (
            (self._blocks, keys, self._all),
            (self._snapshots, snapshots, self._recurrent),
        ):
            if not stages:
                continue
            for at in range(0, _packed_bytes(packed), KEY_BYTES):
                key = packed[at : at + KEY_BYTES]
                if key in masks or len(masks) < self._keys_max:
                    masks[key] = masks.get(key, 0) | stages

    def clear_above(self, stage: StageIndex, keys: bytes, first_block: int, *, snapshots_only: bool = False) -> None:
        """The stage offered less than hinted: it does not hold `keys` (packed) from block `first_block` on.

        `snapshots_only`: it lacks the snapshots; its blocks may well be there.
        """
        if first_block < 0:
            raise InvalidInputError(f"first block {first_block}; it must not be negative")
        bit = self._bit(stage)
        for at in range(first_block * KEY_BYTES, _packed_bytes(keys), KEY_BYTES):
            key = keys[at : at + KEY_BYTES]
            if not snapshots_only:
                _clear(self._blocks, key, bit)
            _clear(self._snapshots, key, bit)

    # ---- questions -----------------------------------------------------------------------------------------

    def probe(self, keys: bytes, block_tokens: int, alignment_tokens: int, endpoint_max_tokens: int) -> ReuseHint:
        """The endpoint to ask the stages for. `keys` are the packed keys of the prompt's full blocks.

        `alignment_tokens` is a multiple of `block_tokens`; `endpoint_max_tokens` is less than the prompt's
        length.
        """
        if block_tokens < 1 or alignment_tokens < 1 or alignment_tokens % block_tokens or endpoint_max_tokens < 0:
            raise InvalidInputError(
                f"block {block_tokens}, alignment {alignment_tokens}, endpoint at most {endpoint_max_tokens}: "
                "the alignment is a positive multiple of the block, the endpoint not negative"
            )
        blocks = _packed_bytes(keys) // KEY_BYTES
        known = self._all & ~self._unknown
        held_all = self._held_prefix(keys, blocks, known, known, 0) if known else blocks
        # What all hold, any holds: the second search begins where the first one ended.
        held_any = self._held_prefix(keys, blocks, known, 1, held_all) if known else held_all
        start = min(held_all * block_tokens, endpoint_max_tokens) // alignment_tokens * alignment_tokens
        start_any = min(held_any * block_tokens, endpoint_max_tokens) // alignment_tokens * alignment_tokens
        wanted = self._recurrent & known
        endpoint = self._last_snapshot(keys, start, block_tokens, alignment_tokens, wanted) if wanted else start
        limiting = None
        if endpoint < start:
            limiting = _lowest(wanted & ~self._snapshots.get(_key(keys, start // block_tokens - 1), 0))
        elif start < start_any:
            limiting = _lowest(known & ~self._blocks.get(_key(keys, held_all), 0))
        return ReuseHint(
            endpoint_tokens=endpoint,
            longest_any_tokens=held_any * block_tokens,
            longest_all_tokens=held_all * block_tokens,
            after_snapshots_tokens=endpoint if wanted else held_all * block_tokens,
            limiting_stage=limiting,
        )

    def stages_holding(self, key: PrefixKey) -> int:
        """Bit mask of the stages that are known to hold the block."""
        return self._blocks.get(key, 0)

    def stages_with_snapshot(self, key: PrefixKey) -> int:
        """Bit mask of the stages that are known to hold a snapshot at the block's end."""
        return self._snapshots.get(key, 0)

    def sizes(self) -> tuple[int, int]:
        """How many block keys and how many snapshot keys the index has."""
        return len(self._blocks), len(self._snapshots)

    def validate(self) -> None:
        """Every entry names a stage, and only stages of this pipeline; raises `InvariantError`. O(index)."""
        for name, masks in (("block", self._blocks), ("snapshot", self._snapshots)):
            for key, mask in masks.items():
                if not mask or mask & ~self._all or len(key) != KEY_BYTES:
                    raise InvariantError(f"{name} key {key.hex()} has mask {mask:#b} of {self._stages} stages")

    # ---- inside --------------------------------------------------------------------------------------------

    def _bit(self, stage: StageIndex) -> int:
        if not 0 <= stage < self._stages:
            raise InvalidInputError(f"stage {stage} is not one of {self._stages}")
        return 1 << stage

    def _held_prefix(self, keys: bytes, blocks: int, among: int, least: int, held: int) -> int:
        """How many leading blocks are held, of which the first `held` are known to be. Held: the stages of `among`
        that hold the block are, as a mask, at least `least`; so with `least` = `among` all of them, with 1 any.

        A stage that holds a block holds all before it, so "held" is true up to a point and false after it:
        lengthen the step until one is not held, then halve. Where the index is wrong the answer is still the
        end of some held run.
        """
        get = self._blocks.get
        low, high, step = held, held + 1, 1  # blocks[:low] are held
        while high <= blocks:
            at = high * KEY_BYTES
            if get(keys[at - KEY_BYTES : at], 0) & among < least:
                break
            step *= _PROBE_GROWTH
            low, high = high, high + step
        else:
            high = blocks + 1  # nothing beyond the last block is held
        while high - low > 1:
            middle = (low + high) // 2
            at = middle * KEY_BYTES
            if get(keys[at - KEY_BYTES : at], 0) & among < least:
                high = middle
            else:
                low = middle
        return low

    def _last_snapshot(self, keys: bytes, start: int, block_tokens: int, alignment_tokens: int, wanted: int) -> int:
        """The highest aligned endpoint <= `start` (tokens) where all of `wanted` hold a snapshot, else 0."""
        if not self._snapshots:
            return 0
        get = self._snapshots.get
        step = alignment_tokens // block_tokens * KEY_BYTES
        for end in range(start // block_tokens * KEY_BYTES, 0, -step):
            if get(keys[end - KEY_BYTES : end], 0) & wanted == wanted:
                return end // KEY_BYTES * block_tokens
        return 0


def _clear(masks: dict[bytes, int], key: bytes, bit: int) -> None:
    rest = masks.get(key, 0) & ~bit
    if rest:
        masks[key] = rest
    else:
        masks.pop(key, None)


def _key(keys: bytes, block: int) -> bytes:
    return keys[block * KEY_BYTES : (block + 1) * KEY_BYTES]


def _packed_bytes(keys: bytes) -> int:
    if len(keys) % KEY_BYTES:
        raise InvalidInputError(f"{len(keys)} bytes are no whole number of {KEY_BYTES}-byte keys")
    return len(keys)


def _lowest(mask: int) -> StageIndex | None:
    return StageIndex((mask & -mask).bit_length() - 1) if mask else None
