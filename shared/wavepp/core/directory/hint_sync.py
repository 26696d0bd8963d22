"""Keeps the hint index in step with the stages' caches: a cursor (incarnation, number) per stage.

Changes are numbered within an incarnation. A gap or a new incarnation means that what is known of the stage is worth
nothing: the stage counts as holding everything (a hint only proposes, and unknown is not absent) until it has sent a
dump. A dump and the changes come on one ordered stream, so changes before the dump's end are part of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavepp.core.directory.events import CacheChanged, CacheDumped
from wavepp.core.directory.hints import HintIndex
from wavepp.core.ids import StageIndex
from wavepp.core.keys import key_at
from wavepp.core.limits import KEY_BYTES


@dataclass(slots=True)
class _Cursor:
    incarnation: str = ""
    next_change: int = 0
    in_sync: bool = False
    dump_asked: bool = False
    dump_begun: bool = False


class HintSync:
    """Applies changes and dumps in order; says when a dump must be asked for."""

    def __init__(self, hints: HintIndex, stages: int) -> None:
        self._hints = hints
        self._cursors = [_Cursor() for _ in range(stages)]
        for stage in range(stages):
            hints.set_unknown(StageIndex(stage))

    def in_sync(self, stage: StageIndex) -> bool:
        """Whether everything that `stage` holds is known."""
        return self._cursors[stage].in_sync

    def connected(self, stage: StageIndex, incarnation: str, next_change: int) -> bool:
        """The stage's stream is up and its next change has this number. True: ask for a dump."""
        cursor = self._cursors[stage]
        if cursor.incarnation == incarnation and cursor.next_change == next_change and cursor.in_sync:
            return False
        cursor.incarnation, cursor.dump_asked = incarnation, False
        return self._lose(stage)

    def disconnected(self, stage: StageIndex) -> None:
        """The stream broke. What is known stays known: the cursor tells at the next connect whether it still holds."""
        self._cursors[stage].dump_asked = False

    def changed(self, event: CacheChanged) -> bool:
        """Apply changes. True: a gap, ask for a dump."""
        cursor = self._cursors[event.stage]
        if not cursor.in_sync:
            return False
        if event.incarnation != cursor.incarnation or event.gap or event.first > cursor.next_change:
            return self._lose(event.stage)
        fresh = event.changes[cursor.next_change - event.first :]
        self._hints.apply(event.stage, fresh)
        cursor.next_change += len(fresh)
        return False

    def dumped(self, event: CacheDumped) -> None:
        """Take in one segment of a dump."""
        cursor = self._cursors[event.stage]
        if event.incarnation != cursor.incarnation or not cursor.dump_asked:
            return
        if not cursor.dump_begun:
            cursor.dump_begun = True
            self._hints.clear(event.stage)
        self._hints.load_dump(event.stage, event.keys, event.snapshot_keys)
        if event.last:
            cursor.next_change, cursor.in_sync = event.next_change, True
            cursor.dump_asked = cursor.dump_begun = False
            self._hints.set_known(event.stage)

    def offered(self, stage: StageIndex, keys: bytes, held: int, hinted: int, *, snapshots_only: bool) -> None:
        """Where more blocks were hinted than the stage holds, forget it: or later requests pay the same detour."""
        if held < hinted:
            self._hints.clear_above(
                stage, keys[held * KEY_BYTES : hinted * KEY_BYTES], 0, snapshots_only=snapshots_only
            )

    def computed(self, keys: bytes, alignment_blocks: int) -> None:
        """Every stage has these blocks, and the snapshot that is taken at their last aligned place."""
        last = len(keys) // KEY_BYTES // alignment_blocks * alignment_blocks
        self._hints.mark_held(keys, key_at(keys, last - 1) if last else b"")

    def _lose(self, stage: StageIndex) -> bool:
        cursor = self._cursors[stage]
        cursor.in_sync = cursor.dump_begun = False
        self._hints.set_unknown(stage)
        ask, cursor.dump_asked = not cursor.dump_asked, True
        return ask
