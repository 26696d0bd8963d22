"""Which grants are alive, and under which record of etcd each is written down.

One record a round. It is written once when the round begins, rewritten or deleted when grants of it end; never two
writes of one record at a time, so the last one wins in etcd too. A deletion that comes while the first write is under
way waits for its outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wavepp.core.directory.events import SetRecord
from wavepp.core.ids import DirectoryEpoch, GrantId, PipelineEpoch, RoundId, epoch_of


@dataclass(slots=True)
class _Record:
    name: str
    epoch: PipelineEpoch
    entries: dict[GrantId, tuple[int, int]] = field(default_factory=dict)
    writing: bool = False
    dirty: bool = False


class Ledger:
    """The records of one pipeline, as they should be in etcd."""

    def __init__(self, directory_epoch: DirectoryEpoch) -> None:
        self._directory_epoch = directory_epoch
        self._records: dict[str, _Record] = {}
        self._record_of: dict[GrantId, str] = {}
        self._granted: set[GrantId] = set()

    @property
    def grants(self) -> frozenset[GrantId]:
        """Granted and not ended."""
        return frozenset(self._granted)

    def __len__(self) -> int:
        return len(self._granted)

    def __contains__(self, grant: GrantId) -> bool:
        return grant in self._granted

    def load(self, records: tuple[tuple[str, PipelineEpoch, tuple[GrantId, ...]], ...]) -> None:
        """Take over what an earlier directory wrote. Who is alive of it, the router says: see `adopt`."""
        for name, epoch, grants in records:
            self._records[name] = _Record(name, epoch, dict.fromkeys(grants, (0, 0)))
            for grant in grants:
                self._record_of[grant] = name
                self._granted.add(grant)

    def adopt(self, live: frozenset[GrantId]) -> None:
        """The router runs these; count them as granted, recorded or not (their record may have been lost)."""
        self._granted |= live

    def open(self, round_id: RoundId, epoch: PipelineEpoch, entries: tuple[tuple[GrantId, int, int], ...]) -> SetRecord:
        """A round begins: write its record."""
        name = self._name(round_id)
        record = _Record(name, epoch, {g: (endpoint, total) for g, endpoint, total in entries}, writing=True)
        self._records[name] = record
        for grant, _, _ in entries:
            self._record_of[grant] = name
        return SetRecord(name, epoch, entries, round_id)

    def granted(self, grants: tuple[GrantId, ...]) -> None:
        """These are decided: granted."""
        self._granted.update(grants)

    def written(self, round_id: RoundId) -> list[SetRecord]:
        """The first write of a round came to an end, whatever its outcome; returns what must be mended since."""
        record = self._records.get(self._name(round_id))
        if record is None:
            return []
        record.writing = False
        return [self._rewrite(record)] if record.dirty else []

    def writer_changed(self) -> list[SetRecord]:
        """Nobody will report how first writes ended that are under way; returns the records to delete."""
        orphans = [r for r in self._records.values() if r.writing]
        for record in orphans:
            record.writing = False
        return [self._rewrite(r) for r in orphans if not r.entries]

    def remove(self, grants: tuple[GrantId, ...]) -> list[SetRecord]:
        """These are no more; returns the records to mend."""
        touched: dict[str, _Record] = {}
        for grant in grants:
            self._granted.discard(grant)
            name = self._record_of.pop(grant, None)
            if name is None:
                continue
            record = self._records[name]
            record.entries.pop(grant, None)
            record.dirty = True
            touched[name] = record
        # A record whose grants end one by one is rewritten only when it is empty: what it names beyond the living is
        # harmless (a new directory keeps only what the router says is alive), and writes are not free.
        return [self._rewrite(r) for r in touched.values() if not r.writing and not r.entries]

    def fence(self, epoch: PipelineEpoch) -> list[SetRecord]:
        """Every grant of a lower epoch is gone; returns the records to delete."""
        self._granted = {g for g in self._granted if epoch_of(g) >= epoch}
        out = []
        for record in [r for r in self._records.values() if r.epoch < epoch]:
            for grant in record.entries:
                self._record_of.pop(grant, None)
            record.entries.clear()
            record.dirty = True
            if not record.writing:
                out.append(self._rewrite(record))
        return out

    def _rewrite(self, record: _Record) -> SetRecord:
        record.dirty = False
        if not record.entries:
            self._records.pop(record.name, None)
        entries = tuple((g, endpoint, total) for g, (endpoint, total) in record.entries.items())
        return SetRecord(record.name, record.epoch, entries)

    def _name(self, round_id: RoundId) -> str:
        return f"{self._directory_epoch:016x}-{round_id:016x}"
