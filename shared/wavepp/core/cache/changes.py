"""What a stage's cache came to hold and lost, as a numbered list that the directory follows.

The number after the last change is the cursor: a dump says up to which cursor it is true, and a follower
that sees a number skipped knows that it must ask for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from wavepp.core.cache.types import CacheChange, CacheChanges, ChangeKind, DumpSegment
from wavepp.core.errors import InvalidInputError
from wavepp.core.ids import PrefixKey
from wavepp.core.limits import CACHE_CHANGES_MAX

UNDRAINED_CHANGES_MAX: Final = 65_536
"""More than this many waiting changes are dropped: a dump is then cheaper than the list."""


class ChangeLog:
    """The undrained changes; at most `UNDRAINED_CHANGES_MAX` of them."""

    __slots__ = ("_first_number", "_gap", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[CacheChange] = deque()
        self._first_number = 0
        self._gap = False

    @property
    def cursor(self) -> int:
        """The number that the next change will get."""
        return self._first_number + len(self._waiting)

    def add(self, kind: ChangeKind, key: PrefixKey) -> None:
        """Append one change; if there are too many, all that wait are dropped."""
        waiting = self._waiting
        waiting.append(CacheChange(kind, key))
        if len(waiting) > UNDRAINED_CHANGES_MAX:
            self._first_number += len(waiting)
            waiting.clear()
            self._gap = True

    def drain(self, at_most: int = CACHE_CHANGES_MAX) -> CacheChanges:
        """Take the oldest changes, at most `at_most` (>= 1), and whether some were dropped before them."""
        if at_most < 1:
            raise InvalidInputError(f"cannot drain {at_most} changes: ask for at least 1")
        waiting = self._waiting
        taken = tuple(waiting.popleft() for _ in range(min(at_most, len(waiting))))
        drained = CacheChanges(self._first_number, taken, self._gap)
        self._first_number += len(taken)
        self._gap = False
        return drained


def dump_segments(
    cursor: int,
    keys: Sequence[PrefixKey],
    snapshot_keys: Sequence[PrefixKey],
    segment_keys: int = CACHE_CHANGES_MAX,
) -> Iterator[DumpSegment]:
    """Cut what is held at `cursor` into segments of at most `segment_keys` keys; the sequences stay as they are."""
    total = len(keys) + len(snapshot_keys)
    for start in range(0, max(total, 1), segment_keys):
        end = start + segment_keys
        yield DumpSegment(
            cursor=cursor,
            keys=b"".join(keys[start:end]),
            snapshot_keys=b"".join(snapshot_keys[max(start - len(keys), 0) : max(end - len(keys), 0)]),
            last=end >= total,
        )
