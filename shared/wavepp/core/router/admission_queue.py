"""The router's queue: who waits, who is being asked for, and when to ask again.

Order is by priority, then arrival. Nothing overtakes: when the head was refused, it is asked for again as soon as the
stage that lacked room says that it has enough, and those behind it wait with it.

A request that a stage did not answer for rests for a while, keeps nobody waiting, and is then asked for alone.

A suspect (see `RequestRecord.suspect`) is taken alone, by the same order: those behind it wait until it is past what a
stage died of. When one has taken a stage down with it, whoever waits then goes before the next suspect, so that neither
can keep the other waiting for ever.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, TypeAlias

from wavepp.core.cache.types import Room
from wavepp.core.directory.events import Wait, WaitFor
from wavepp.core.errors import WaveppError
from wavepp.core.limits import ROUND_ATTEMPTS_MAX, ROUND_KEYS_BYTES_MAX
from wavepp.core.router.requests import RequestRecord

RETRY_ATTEMPTS_MAX: Final = 8
"""Attempts in the first round after a refusal."""


_Lane: TypeAlias = list[tuple[tuple[int, int], RequestRecord]]
"""By rank."""


class QueueFullError(WaveppError):
    """The queue is at its limit; come back after `retry_after_ms`."""

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class AdmissionQueue:
    """Requests that have no grant, in order. Bounded in requests and in tokens."""

    def __init__(self, *, requests_max: int, tokens_max: int, retry_after_ms: int) -> None:
        self._requests_max = requests_max
        self._tokens_max = tokens_max
        self._retry_after_ms = retry_after_ms
        self._ranked: _Lane = []
        self._suspects: _Lane = []
        self._before_suspects = 0
        self._resting: list[tuple[float, RequestRecord]] = []
        self._tokens = 0
        self._room: dict[int, Room] = {}
        self._blocked: tuple[RequestRecord, Wait] | None = None
        self._batch_max = ROUND_ATTEMPTS_MAX

    def __len__(self) -> int:
        return len(self._ranked) + len(self._suspects) + len(self._resting)

    @property
    def tokens(self) -> int:
        """Prompt tokens that wait."""
        return self._tokens

    def check_room(self, prompt_tokens: int) -> None:
        """Raises QueueFullError when one more request of this length is too much."""
        if len(self) >= self._requests_max:
            raise QueueFullError(
                f"the queue holds {len(self)} requests, the limit; retry after {self._retry_after_ms} ms",
                self._retry_after_ms,
            )
        if len(self) and self._tokens + prompt_tokens > self._tokens_max:
            raise QueueFullError(
                f"the queue holds {self._tokens} prompt tokens and {prompt_tokens} more exceed the limit of "
                f"{self._tokens_max}; retry after {self._retry_after_ms} ms",
                self._retry_after_ms,
            )

    def push(self, record: RequestRecord) -> None:
        """Put in at its rank; one that comes back gets its old place."""
        lane = self._suspects if record.suspect else self._ranked
        bisect.insort(lane, (record.rank, record), key=lambda entry: entry[0])
        self._tokens += record.prompt_tokens

    def remove(self, record: RequestRecord) -> None:
        """Take out (cancelled while it waited)."""
        for lane in (self._ranked, self._suspects):
            at = bisect.bisect_left(lane, record.rank, key=lambda entry: entry[0])
            if at < len(lane) and lane[at][1] is record:
                del lane[at]
                self._tokens -= record.prompt_tokens
                if self._blocked is not None and self._blocked[0] is record:
                    self._blocked = None
        if any(resting is record for _, resting in self._resting):
            self._resting = [entry for entry in self._resting if entry[1] is not record]
            self._tokens -= record.prompt_tokens

    def rest(self, record: RequestRecord, until_ms: float) -> None:
        """It comes back to its place then."""
        self._resting.append((until_ms, record))
        self._tokens += record.prompt_tokens

    def wake(self, now_ms: float) -> None:
        """Those whose rest is over come back."""
        due = [record for until_ms, record in self._resting if until_ms <= now_ms]
        self._resting = [entry for entry in self._resting if entry[0] > now_ms]
        for record in due:
            self._tokens -= record.prompt_tokens
            self.push(record)

    @property
    def any_resting(self) -> bool:
        """Whether somebody must be woken."""
        return bool(self._resting)

    @property
    def suspect_next(self) -> bool:
        """Whether a suspect is first: it must be taken alone, and run alone."""
        if not self._suspects or not self._ranked:
            return bool(self._suspects)
        if any(record.order <= self._before_suspects for _, record in self._ranked):
            return False
        return self._suspects[0][0] < self._ranked[0][0]

    def let_others_first(self, order: int) -> None:
        """Whoever has arrived up to `order` goes before the next suspect."""
        self._before_suspects = order

    def take_suspect(self) -> list[RequestRecord]:
        """The suspect that is next; empty while it waits for room."""
        if not self.suspect_next or self._waits():
            return []
        self._blocked = None
        _, record = self._suspects.pop(0)
        self._tokens -= record.prompt_tokens
        return [record]

    def take(self, limit: int) -> list[RequestRecord]:
        """The next requests to ask for, in order; empty while the head waits for room, or is a suspect.

        After a refusal only a few are asked for, then twice as many each time: asking for a long queue whenever there
        is room for its head would cost every stage a look at all of it.
        """
        if not self._ranked or self.suspect_next or self._waits():
            return []
        self._blocked = None
        taken: list[RequestRecord] = []
        keys_bytes = 0
        for _, record in self._ranked[: min(limit, self._batch_max)]:
            keys_bytes += len(record.keys)
            if taken and (keys_bytes > ROUND_KEYS_BYTES_MAX or self._behind_a_suspect(record)):
                break
            if taken and (record.unanswered or taken[0].unanswered):
                break
            taken.append(record)
        self._batch_max = min(2 * self._batch_max, ROUND_ATTEMPTS_MAX)
        del self._ranked[: len(taken)]
        self._tokens -= sum(r.prompt_tokens for r in taken)
        return taken

    def refused(self, refusals: Iterable[tuple[RequestRecord, Wait]]) -> None:
        """These come back, in order; the first that lacked something is what the queue waits for."""
        for record, wait in refusals:
            self.push(record)
            if wait.what is WaitFor.ORDER:
                continue
            self._batch_max = RETRY_ATTEMPTS_MAX
            record.waits += 1
            record.waited_for = (wait.stage, wait.what)
            if self._blocked is None or record is self._head():
                self._blocked = (record, wait)

    def room(self, stage: int, room: Room) -> None:
        """A stage says what it has."""
        known = self._room.get(stage)
        if known is None or room.number >= known.number:
            self._room[stage] = room

    def unblock(self) -> None:
        """Ask again whatever was refused before (the directory is back, or the epoch moved)."""
        self._blocked = None

    def forget_rooms(self) -> None:
        """The stages may be new ones, whose rooms are numbered from the start."""
        self._room.clear()
        self._blocked = None

    @property
    def waiting_for(self) -> Wait | None:
        """What the head lacks, if it was refused."""
        return self._blocked[1] if self._waits() and self._blocked is not None else None

    def _head(self) -> RequestRecord | None:
        lane = self._suspects if self.suspect_next else self._ranked
        return lane[0][1] if lane else None

    def _behind_a_suspect(self, record: RequestRecord) -> bool:
        return bool(self._suspects) and record.rank > self._suspects[0][0] and record.order > self._before_suspects

    def _waits(self) -> bool:
        if self._blocked is None or self._head() is not self._blocked[0]:
            return False
        wait = self._blocked[1]
        if wait.what is WaitFor.DIRECTORY or wait.stage is None:
            return True
        room = self._room.get(wait.stage)
        if room is None or room.number <= wait.room_number:
            # No news since the refusal: what the stage had then was not enough.
            return True
        return room.available.get(wait.what, 0) < wait.available_needed
