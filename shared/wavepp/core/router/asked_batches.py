"""Batches of attempts that the directory decides about: one that the stages answer, one that waits for the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wavepp.core.directory.events import Attempt, Verdict
from wavepp.core.errors import InvariantError
from wavepp.core.ids import GrantId, PipelineEpoch, grant_id
from wavepp.core.router.events import Decided, SendAdmit
from wavepp.core.router.requests import RequestRecord, RequestState

BATCHES_MAX: Final = 2


class AskedBatches:
    """Who is asked for, under which grant ids. Those are numbered within an epoch, batches over all of them."""

    def __init__(self) -> None:
        self._epoch = PipelineEpoch(0)
        self._grants_made = 0
        self._members: dict[int, dict[GrantId, RequestRecord]] = {}
        self._unanswered: int | None = None
        self._last = 0

    def __len__(self) -> int:
        """Requests, those included that have ended meanwhile."""
        return sum(len(members) for members in self._members.values())

    @property
    def full(self) -> bool:
        """Whether nobody may be asked for now."""
        return self._unanswered is not None or len(self._members) >= BATCHES_MAX

    def new_epoch(self, epoch: PipelineEpoch) -> None:
        """Grants are made in this epoch from now on."""
        self._epoch, self._grants_made = epoch, 0

    def ask(self, records: Sequence[RequestRecord], now_ms: float) -> SendAdmit:
        """Ask for them, each under a new grant id."""
        members: dict[GrantId, RequestRecord] = {}
        attempts = []
        for record in records:
            self._grants_made += 1
            grant = grant_id(self._epoch, self._grants_made)
            record.begin_attempt(grant, now_ms, alone=len(records) == 1)
            members[grant] = record
            attempts.append(
                Attempt(grant, record.prefill_tokens, record.total_tokens, bytes(record.keys), record.new.context)
            )
        self._last += 1
        self._members[self._last] = members
        self._unanswered = self._last
        return SendAdmit(self._last, self._epoch, tuple(attempts))

    def decided(self, event: Decided) -> list[tuple[RequestRecord, GrantId, Verdict]]:
        """The verdicts that still concern somebody: nothing of a batch that is void, or of a request that ended."""
        members = self._members.get(event.batch)
        if members is None:
            return []
        if event.answered and self._unanswered == event.batch:
            self._unanswered = None
        found = []
        for grant, verdict in event.decisions:
            record = members.pop(grant, None)
            if record is not None and record.state is RequestState.ADMITTING:
                found.append((record, grant, verdict))
        if not members:
            del self._members[event.batch]
        return found

    def request_of(self, grant: GrantId) -> RequestRecord | None:
        """Who is asked for under this id."""
        return next((members[grant] for members in self._members.values() if grant in members), None)

    def void(self) -> list[RequestRecord]:
        """Nobody decides about them any more. Returns those that had not ended meanwhile."""
        asked = [record for members in self._members.values() for record in members.values()]
        self._members.clear()
        self._unanswered = None
        return [record for record in asked if record.state is RequestState.ADMITTING]

    def validate(self) -> None:
        """Raises InvariantError when a request is asked for under another id than it knows."""
        for members in self._members.values():
            for grant, record in members.items():
                if record.state is RequestState.ADMITTING and record.grant != grant:
                    raise InvariantError(f"{record.request} is asked for as {grant} and as {record.grant}")
