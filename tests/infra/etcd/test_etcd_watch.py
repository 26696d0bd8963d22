"""snapshot_watch against a real etcd: nothing missed, nothing twice, whatever happens to etcd."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest
from etcd3aio.kv import KVService

from etcd_support import WAIT_S, LossyProxy, delete, eventually
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import EtcdUnavailableError
from wavepp.infra.etcd.server import EtcdServer
from wavepp.infra.etcd.types import DeleteOp, PutOp
from wavepp.infra.etcd.watch import Delete, Put, Reset, snapshot_watch

Watch = AsyncGenerator[Reset | Put | Delete, None]


async def following(watch: Watch) -> Reset | Put | Delete:
    return await asyncio.wait_for(anext(watch), WAIT_S)


def content(event: Reset | Put | Delete) -> object:
    match event:
        case Reset(items):
            return {item.key: item.value for item in items}
        case Put(item):
            return (item.key, item.value)
        case Delete(key):
            return key


async def compact(etcd: EtcdClient, revision: int) -> None:
    kv: KVService = etcd._members.current.kv
    await kv.compact(revision, physical=True, timeout=WAIT_S)


async def test_snapshot_then_each_change_in_order(etcd: EtcdClient, etcd_prefix: str) -> None:
    one, two = etcd_prefix + "1", etcd_prefix + "2"
    await etcd.put(one, b"old")
    async with aclosing(snapshot_watch(etcd, etcd_prefix)) as watch:
        assert content(await following(watch)) == {one: b"old"}
        await etcd.put(etcd_prefix[:-1] + "!", b"outside")
        await etcd.put(one, b"new")
        await etcd.txn([], [PutOp(two, b"x"), DeleteOp(one)])
        assert [content(await following(watch)) for _ in range(3)] == [(one, b"new"), (two, b"x"), one]


async def test_keys_that_go_with_their_lease_are_told_as_deleted(etcd: EtcdClient, etcd_prefix: str) -> None:
    lease, _ = await etcd.lease_grant(60)
    await etcd.put(etcd_prefix + "a", b"", lease)
    async with aclosing(snapshot_watch(etcd, etcd_prefix)) as watch:
        await following(watch)
        await etcd.lease_revoke(lease)
        assert content(await following(watch)) == etcd_prefix + "a"


async def test_restart_of_etcd_loses_no_event_and_repeats_none(own_etcd: EtcdServer) -> None:
    async with (
        EtcdClient([own_etcd.endpoint]) as watcher,
        EtcdClient([own_etcd.endpoint]) as writer,
        aclosing(snapshot_watch(watcher, "a/")) as watch,
    ):
        await following(watch)
        await writer.put("a/1", b"1")
        assert content(await following(watch)) == ("a/1", b"1")
        waiting = asyncio.ensure_future(following(watch))
        await asyncio.to_thread(own_etcd.stop)
        await asyncio.to_thread(own_etcd.start)
        await eventually(lambda: writer.put("a/2", b"2"))
        assert content(await waiting) == ("a/2", b"2")


async def test_changes_made_while_cut_off_come_after_the_reconnect(
    etcd: EtcdClient, etcd_proxy: LossyProxy, etcd_prefix: str
) -> None:
    async with (
        EtcdClient([etcd_proxy.endpoint], timeout_s=0.5) as client,
        aclosing(snapshot_watch(client, etcd_prefix)) as watch,
    ):
        await following(watch)
        waiting = asyncio.ensure_future(following(watch))
        await etcd.put(etcd_prefix + "0", b"")
        await waiting
        etcd_proxy.refuse = True
        etcd_proxy.cut()
        # More revisions than etcd sends in one response: a resume from the response's own revision would lose some.
        count = 1500
        for i in range(1, count + 1):
            await etcd.put(f"{etcd_prefix}{i}", b"")
        waiting = asyncio.ensure_future(following(watch))
        etcd_proxy.refuse = False
        keys = [content(await waiting)] + [content(await following(watch)) for _ in range(count // 2)]
        etcd_proxy.cut()
        keys += [content(await following(watch)) for _ in range(count - len(keys))]
        assert keys == [(f"{etcd_prefix}{i}", b"") for i in range(1, count + 1)]


async def test_compaction_of_what_was_missed_lists_again(own_etcd: EtcdServer) -> None:
    proxy = LossyProxy(own_etcd.endpoint)
    await proxy.start()
    async with (
        EtcdClient([own_etcd.endpoint]) as etcd,
        EtcdClient([proxy.endpoint], timeout_s=0.5) as client,
        aclosing(snapshot_watch(client, "a/")) as watch,
    ):
        await etcd.put("a/1", b"1")
        assert content(await following(watch)) == {"a/1": b"1"}
        waiting = asyncio.ensure_future(following(watch))
        proxy.refuse = True
        proxy.cut()
        await delete(etcd, "a/1")
        await compact(etcd, await etcd.put("a/2", b"2"))
        proxy.refuse = False
        event = await waiting
        assert isinstance(event, Reset)
        assert content(event) == {"a/2": b"2"}
        await etcd.put("a/3", b"3")
        assert content(await following(watch)) == ("a/3", b"3")
    await proxy.close()


async def test_etcd_that_lost_its_data_is_listed_again(own_etcd: EtcdServer, tmp_path: Path) -> None:
    async with (
        EtcdClient([own_etcd.endpoint]) as client,
        aclosing(snapshot_watch(client, "a/")) as watch,
    ):
        for i in range(5):
            await client.put(f"a/{i}", b"")
        await following(watch)
        waiting = asyncio.ensure_future(following(watch))
        await asyncio.to_thread(own_etcd.stop)
        shutil.rmtree(tmp_path / "data")
        await asyncio.to_thread(own_etcd.start)
        event = await waiting
        assert isinstance(event, Reset)
        assert event.items == ()


async def test_watch_waits_for_an_etcd_that_is_not_there_yet(own_etcd: EtcdServer) -> None:
    await asyncio.to_thread(own_etcd.stop)
    async with (
        EtcdClient([own_etcd.endpoint], timeout_s=0.5) as client,
        aclosing(snapshot_watch(client, "a/")) as watch,
    ):
        with pytest.raises(EtcdUnavailableError):
            await client.get("a/")
        waiting = asyncio.ensure_future(following(watch))
        await asyncio.to_thread(own_etcd.start)
        assert content(await waiting) == {}
