"""A ledger writer ends with its admission stream; what it was to delete goes to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from wavepp.core.directory.events import RecordWritten, SetRecord
from wavepp.core.ids import GrantId, PipelineEpoch, RoundId
from wavepp.directory.ledger_writer import LedgerWriter
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.types import Compare, DeleteOp, PutOp, TxnResult

KEYS = PipelineKeys("cluster", "p0")


class SlowEtcd:
    """Takes transactions and never answers."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[list[PutOp | DeleteOp]] = asyncio.Queue()

    async def txn(self, guards: Sequence[Compare], ops: list[PutOp | DeleteOp]) -> TxnResult:
        self.taken.put_nowait(ops)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


def new_writer(etcd: SlowEtcd, outcomes: list[RecordWritten], deletions: Sequence[SetRecord] = ()) -> LedgerWriter:
    return LedgerWriter(
        cast(EtcdClient, etcd),
        KEYS,
        [],
        0,
        written=outcomes.append,
        observe=lambda seconds: None,
        failing=lambda reason: None,
        deletions=deletions,
    )


async def test_what_the_writer_before_was_to_delete_is_deleted_by_the_next() -> None:
    etcd, outcomes = SlowEtcd(), list[RecordWritten]()
    first = new_writer(etcd, outcomes)
    first.set(SetRecord("in-flight", PipelineEpoch(1), ()))
    task = asyncio.create_task(first.run())
    async with asyncio.timeout(5):
        await etcd.taken.get()
    first.set(SetRecord("waiting", PipelineEpoch(1), ()))
    first.set(SetRecord("round", PipelineEpoch(1), ((GrantId(1), 0, 4),), RoundId(1)))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    second = new_writer(etcd, outcomes, first.deletions)
    task = asyncio.create_task(second.run())
    async with asyncio.timeout(5):
        ops = await etcd.taken.get()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert ops == [DeleteOp(KEYS.grant("in-flight")), DeleteOp(KEYS.grant("waiting"))]
    assert outcomes == [], "nobody hears of rounds of the stream before"
