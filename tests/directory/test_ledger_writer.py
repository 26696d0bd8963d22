"""The ledger in etcd: batched, guarded by both leaderships, honest about writes whose outcome is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from etcd_support import WAIT_S, LossyProxy, delete, until
from wavepp.core.directory.events import RecordWritten, SetRecord
from wavepp.core.ids import GrantId, PipelineEpoch, RoundId
from wavepp.directory.ledger_writer import LedgerWriter, decode_record
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.keys import PipelineKeys
from wavepp.infra.etcd.types import Fence

EPOCH = PipelineEpoch(3)


class Bench:
    """A writer, what it reported, and the keys that fence it."""

    def __init__(self, client: EtcdClient, keys: PipelineKeys, fences: list[Fence]) -> None:
        self.keys = keys
        self.outcomes: asyncio.Queue[RecordWritten] = asyncio.Queue()
        self.times: list[float] = []
        self.failing: list[str] = []
        self.writer = LedgerWriter(
            client,
            keys,
            fences,
            0,
            written=self.outcomes.put_nowait,
            observe=self.times.append,
            failing=self.failing.append,
        )

    async def outcome(self) -> RecordWritten:
        async with asyncio.timeout(WAIT_S):
            return await self.outcomes.get()


def record(round_id: int, *grants: int, first: bool = True) -> SetRecord:
    entries = tuple((GrantId(g), 64, 128) for g in grants)
    return SetRecord(f"r{round_id:04d}", EPOCH, entries, RoundId(round_id) if first else None)


async def leaders(client: EtcdClient, keys: PipelineKeys) -> list[Fence]:
    fences = []
    for key in (keys.directory, keys.router):
        revision = await client.put(key, b"leader")
        fences.append(Fence(key, revision))
    return fences


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> PipelineKeys:
    return PipelineKeys(request.node.name, "p0")


@pytest.fixture
async def bench(etcd: EtcdClient, keys: PipelineKeys) -> AsyncIterator[Bench]:
    made = Bench(etcd, keys, await leaders(etcd, keys))
    task = asyncio.create_task(made.writer.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_rounds_record_is_written_and_its_outcome_told(bench: Bench, etcd: EtcdClient) -> None:
    bench.writer.set(record(1, 7, 8))
    assert await bench.outcome() == RecordWritten(RoundId(1), True)
    held = await etcd.get(bench.keys.grant("r0001"))
    assert held is not None
    assert decode_record(held.value) == (EPOCH, (7, 8))
    assert len(bench.times) == 1


async def test_what_waits_goes_in_one_transaction(bench: Bench) -> None:
    for i in range(20):
        bench.writer.set(record(i, i))
    written = {(await bench.outcome()).round for _ in range(20)}
    assert written == set(range(20))
    assert len(bench.times) <= 2, "the first may have gone alone"


async def test_an_empty_record_is_deleted(bench: Bench, etcd: EtcdClient) -> None:
    bench.writer.set(record(1, 7))
    await bench.outcome()
    bench.writer.set(record(1, first=False))
    bench.writer.set(record(2, 9))
    await bench.outcome()
    names = [item.key for item in (await etcd.get_prefix(bench.keys.grants)).items]
    assert names == [bench.keys.grant("r0002")]


async def test_a_deposed_directory_writes_nothing(bench: Bench, etcd: EtcdClient) -> None:
    await delete(etcd, bench.keys.directory)
    await etcd.put(bench.keys.directory, b"another")
    bench.writer.set(record(1, 7))
    outcome = await bench.outcome()
    assert not outcome.ok
    assert "lead" in outcome.reason
    assert not (await etcd.get_prefix(bench.keys.grants)).items


async def test_a_record_of_a_dead_routers_is_refused(bench: Bench, etcd: EtcdClient) -> None:
    await delete(etcd, bench.keys.router)
    bench.writer.set(record(1, 7))
    assert not (await bench.outcome()).ok


@pytest.mark.parametrize("breaks_again", [False, True])
async def test_a_write_whose_answer_was_lost_is_read_back_even_if_the_next_connection_breaks_too(
    etcd: EtcdClient, etcd_proxy: LossyProxy, keys: PipelineKeys, *, breaks_again: bool
) -> None:
    fences = await leaders(etcd, keys)
    async with EtcdClient([etcd_proxy.endpoint], timeout_s=5.0) as client:
        bench = Bench(client, keys, fences)
        await client.get(keys.directory)
        etcd_proxy.swallow_answers = True
        task = asyncio.create_task(bench.writer.run())
        bench.writer.set(record(1, 7))

        async def applied() -> bool:
            return await etcd.get(keys.grant("r0001")) is not None

        async def refused() -> bool:
            return etcd_proxy.refused > 0

        await until(applied)
        etcd_proxy.refuse = breaks_again
        etcd_proxy.cut()
        if breaks_again:
            await until(refused)
            etcd_proxy.refuse = False
        outcome = await bench.outcome()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert outcome.ok, f"it had been applied, so the grants stand: {outcome.reason}"


async def test_a_deletion_is_tried_until_it_succeeds(
    etcd: EtcdClient, etcd_proxy: LossyProxy, keys: PipelineKeys
) -> None:
    fences = await leaders(etcd, keys)
    async with EtcdClient([etcd_proxy.endpoint], timeout_s=0.5) as client:
        bench = Bench(client, keys, fences)
        task = asyncio.create_task(bench.writer.run())
        bench.writer.set(record(1, 7))
        assert (await bench.outcome()).ok
        etcd_proxy.refuse = True
        etcd_proxy.cut()
        bench.writer.set(record(1, first=False))
        bench.writer.set(record(2, 8))
        assert not (await bench.outcome()).ok, "etcd cannot be reached"
        etcd_proxy.refuse = False

        async def gone() -> bool:
            return await etcd.get(keys.grant("r0001")) is None

        await until(gone)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
