"""Writes the ledger's records to etcd: in batches, one transaction at a time, guarded by both leaderships.

What should be written is kept by record name, the newest wins. So an etcd that is slow or unavailable makes the batches
larger, not the backlog longer, and a deletion is tried until it succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgpack

from wavepp.core.directory.events import RecordWritten, SetRecord
from wavepp.core.ids import GrantId, PipelineEpoch
from wavepp.infra.backoff import Backoff
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdAmbiguousError, EtcdError, EtcdLeaseNotFoundError, EtcdUnavailableError
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.types import DeleteOp, Fence, KeyValue, PutOp, created_at

_log = logging.getLogger(__name__)

RECORDS_PER_TXN: Final = 60
"""Below etcd's default of 128 operations a transaction."""

_READ_BACK_TRIES: Final = 4
"""Within about half a second where connections are refused."""


class NotLeadingError(EtcdError):
    """A write was refused because one of the two leaders is no more."""


def encode_record(record: SetRecord) -> bytes:
    """A record as it stands in etcd."""
    packed: bytes = msgpack.packb([record.epoch, [list(entry) for entry in record.grants]])
    return packed


def decode_record(value: bytes) -> tuple[PipelineEpoch, tuple[GrantId, ...]]:
    """Epoch and grants of a record. Raises ValueError when it is none."""
    try:
        epoch, entries = msgpack.unpackb(value)
        return PipelineEpoch(int(epoch)), tuple(GrantId(int(entry[0])) for entry in entries)
    except (msgpack.UnpackException, TypeError, IndexError) as error:
        raise ValueError(f"not a record of the ledger: {error}") from error


class LedgerWriter:
    """One writer for one pipeline, as long as this directory and that router lead.

    `written` hears the outcome of each round's first write, `failing` why nothing can be written, empty when it can
    again. `observe` hears how long a transaction took, in seconds.
    `deletions` are those that the writer before has left.
    """

    def __init__(
        self,
        client: EtcdClient,
        keys: PipelineKeys,
        fences: Sequence[Fence],
        router_lease: int,
        *,
        written: Callable[[RecordWritten], None],
        observe: Callable[[float], None],
        failing: Callable[[str], None],
        deletions: Sequence[SetRecord] = (),
    ) -> None:
        self._client = client
        self._keys = keys
        self._fences = fences
        self._router_lease = router_lease
        self._written = written
        self._observe = observe
        self._tell_failing = failing
        self._pending: dict[str, SetRecord] = {r.name: r for r in deletions}
        self._writing: list[SetRecord] = []
        self._changed = asyncio.Event()
        self._failing = False

    @property
    def deletions(self) -> tuple[SetRecord, ...]:
        """Records that are to be deleted and may still be in etcd."""
        return tuple(r for r in (*self._writing, *self._pending.values()) if not r.grants)

    def set(self, record: SetRecord) -> None:
        """Make etcd hold this."""
        self._pending[record.name] = record
        self._changed.set()

    async def run(self) -> None:
        """Write for ever; a task of the process."""
        backoff = Backoff()
        while True:
            if not self._pending:
                self._changed.clear()
                await self._changed.wait()
            batch = [self._pending.pop(name) for name in list(self._pending)[:RECORDS_PER_TXN]]
            self._writing = batch
            try:
                await self._write(batch)
            except EtcdError as error:
                if not self._failing:
                    _log.warning("ledger not written: %s", error)
                self._failing = True
                self._tell_failing(f"the ledger is not written: {error}")
                self._give_up(batch, error)
                await asyncio.sleep(backoff.next_s())
            else:
                if self._failing:
                    self._failing = False
                    self._tell_failing("")
                backoff.reset()
            self._writing = []

    async def _write(self, batch: list[SetRecord]) -> None:
        ops: list[PutOp | DeleteOp] = [self._op(record) for record in batch]
        began = time.perf_counter()
        try:
            result = await self._client.txn([created_at(f.key, f.create_revision) for f in self._fences], ops)
            self._observe(time.perf_counter() - began)
            if not result.succeeded:
                raise NotLeadingError("the directory or the router does not lead any more")
        except EtcdAmbiguousError:
            # Applied or not: one transaction, so any record of it tells.
            if not await self._applied(batch):
                raise
        for record in batch:
            if record.round is not None:
                self._written(RecordWritten(record.round, True))

    def _op(self, record: SetRecord) -> PutOp | DeleteOp:
        key = self._keys.grant(record.name)
        if not record.grants:
            return DeleteOp(key)
        return PutOp(key, encode_record(record), self._router_lease)

    async def _applied(self, batch: list[SetRecord]) -> bool:
        for record in batch:
            if record.grants:
                held = await self._read_back(self._keys.grant(record.name))
                return held is not None and held.value == encode_record(record)
        return False

    async def _read_back(self, key: str) -> KeyValue | None:
        """What broke the write's connection may break the first reads too, and these change nothing: ask again."""
        backoff = Backoff()
        for _ in range(_READ_BACK_TRIES - 1):
            try:
                return await self._client.get(key)
            except EtcdUnavailableError:
                await asyncio.sleep(backoff.next_s())
        return await self._client.get(key)

    def _give_up(self, batch: list[SetRecord], error: EtcdError) -> None:
        """Rounds hear that they failed; what is left is tried again, unless it can never succeed."""
        hopeless = isinstance(error, NotLeadingError | EtcdLeaseNotFoundError)
        for record in batch:
            if record.round is not None:
                self._written(RecordWritten(record.round, False, str(error)))
            elif not hopeless:
                self._pending.setdefault(record.name, record)
