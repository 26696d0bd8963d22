"""EtcdClient against a real etcd: transactions, fences, counters, and what a failure lets the caller conclude."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import aclosing

import pytest

from etcd_support import LossyProxy, delete, eventually, frozen
from wavepp.infra.etcd import client as etcd_module
from wavepp.infra.etcd.client import EtcdClient
from wavepp.infra.etcd.errors import (
    EtcdAmbiguousError,
    EtcdDataError,
    EtcdLeaseNotFoundError,
    EtcdNotSentError,
    EtcdRequestError,
    EtcdUnavailableError,
    FencedError,
)
from wavepp.infra.etcd.server import EtcdServer
from wavepp.infra.etcd.types import (
    Compare,
    DeleteOp,
    Fence,
    GetOp,
    PutOp,
    created_at,
    has_lease,
    modified_at,
)
from wavepp.infra.etcd.watch import events_after


@pytest.fixture
def dead_endpoint() -> str:
    """host:port where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def test_put_get_and_delete_keep_value_and_revisions(etcd: EtcdClient, etcd_prefix: str) -> None:
    key = etcd_prefix + "a"
    assert await etcd.get(key) is None
    created = await etcd.put(key, b"\x00one")
    changed = await etcd.put(key, b"two")
    item = await etcd.get(key)
    assert item is not None
    assert (item.key, item.value, item.version, item.lease) == (key, b"two", 2, 0)
    assert (item.create_revision, item.mod_revision) == (created, changed)
    await delete(etcd, key)
    assert await etcd.get(key) is None


async def test_a_prefix_reads_only_what_begins_with_it(etcd: EtcdClient, etcd_prefix: str) -> None:
    for name in ("p/1", "p/2", "p0", "o"):
        await etcd.put(etcd_prefix + name, name.encode())
    snapshot = await etcd.get_prefix(etcd_prefix + "p/")
    assert [item.value for item in snapshot.items] == [b"p/1", b"p/2"]
    assert snapshot.revision >= max(item.mod_revision for item in snapshot.items)


async def test_more_keys_than_the_caller_expects_are_refused(etcd: EtcdClient, etcd_prefix: str) -> None:
    for name in "abc":
        await etcd.put(etcd_prefix + name, b"")
    with pytest.raises(EtcdRequestError, match=r"3 keys .* limit is 2"):
        await etcd.get_prefix(etcd_prefix, items_max=2)


async def test_empty_prefix_is_refused(etcd: EtcdClient) -> None:
    with pytest.raises(ValueError, match="every key"):
        await etcd.get_prefix("")


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("target", ["create", "mod", "lease"])
async def test_transaction_runs_the_branch_that_its_compare_says(
    etcd: EtcdClient, etcd_prefix: str, target: str, holds: bool
) -> None:
    key = etcd_prefix + "a"
    created = await etcd.put(key, b"1")
    changed = await etcd.put(key, b"2")
    off = 0 if holds else 1
    compare: Compare = {
        "create": created_at(key, created + off),
        "mod": modified_at(key, changed + off),
        "lease": has_lease(key, off),
    }[target]
    result = await etcd.txn([compare], [PutOp(key, b"yes"), GetOp(key)], [DeleteOp(key)])
    assert result.succeeded is holds
    item = await etcd.get(key)
    if holds:
        assert item is not None
        assert result.results == ((), (item,))
        assert (item.value, item.mod_revision) == (b"yes", result.revision)
    else:
        assert item is None


async def test_transaction_over_etcds_limit_is_refused_before_it_is_sent(etcd: EtcdClient, etcd_prefix: str) -> None:
    with pytest.raises(EtcdRequestError, match="at most 128"):
        await etcd.txn([], [PutOp(f"{etcd_prefix}{i}", b"") for i in range(129)])


async def test_fenced_writes_need_every_fence(etcd: EtcdClient, etcd_prefix: str) -> None:
    first, second, key = (etcd_prefix + name for name in ("leader1", "leader2", "data"))
    fences = [Fence(first, await etcd.put(first, b"me")), Fence(second, await etcd.put(second, b"me"))]
    assert await etcd.raise_counter(key, fences) == 1
    await delete(etcd, second)
    with pytest.raises(FencedError) as gone:
        await etcd.raise_counter(key, fences)
    assert (gone.value.key, gone.value.actual) == (second, 0)
    newer = await etcd.put(second, b"other")
    with pytest.raises(FencedError) as replaced:
        await etcd.fenced_delete(key, fences)
    assert replaced.value.actual == newer
    item = await etcd.get(key)
    assert item is not None
    assert item.value == b"1"
    await etcd.fenced_delete(key, [fences[0], Fence(second, newer)])
    assert await etcd.get(key) is None


async def test_counter_gives_each_value_to_one_caller(etcd: EtcdClient, etcd_prefix: str) -> None:
    leader = etcd_prefix + "leader"
    fences = [Fence(leader, await etcd.put(leader, b"me"))]
    raised = await asyncio.gather(*(etcd.raise_counter(etcd_prefix + "n", fences) for _ in range(4)))
    assert sorted(raised) == [1, 2, 3, 4]
    await delete(etcd, leader)
    with pytest.raises(FencedError):
        await etcd.raise_counter(etcd_prefix + "n", fences)
    assert await etcd.raise_counter(etcd_prefix + "n", []) == 5


@pytest.mark.parametrize("value", [b"x", b"", b"-1", b"9" * 19])
async def test_counter_that_holds_no_number_is_an_error(etcd: EtcdClient, etcd_prefix: str, value: bytes) -> None:
    await etcd.put(etcd_prefix + "n", value)
    with pytest.raises(EtcdDataError, match="decimal"):
        await etcd.raise_counter(etcd_prefix + "n", [])


async def test_counter_goes_on_after_a_try_whose_answer_was_lost(
    etcd: EtcdClient, etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = etcd.txn
    lose = iter([True])

    async def txn(*args: object, **kwargs: object) -> object:
        result = await real(*args, **kwargs)  # type: ignore[arg-type]
        if next(lose, False):
            raise EtcdAmbiguousError("answer lost")
        return result

    monkeypatch.setattr(etcd, "txn", txn)
    assert await etcd.raise_counter(etcd_prefix + "n", []) == 2
    item = await etcd.get(etcd_prefix + "n")
    assert item is not None
    assert item.value == b"2"


async def test_counter_gives_up_after_a_bounded_number_of_tries(
    etcd: EtcdClient, etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = etcd.txn

    async def overtaken(*args: object, **kwargs: object) -> object:
        await etcd.put(etcd_prefix + "n", b"7")
        return await real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(etcd, "txn", overtaken)
    with pytest.raises(EtcdUnavailableError, match=f"{etcd_module.COUNTER_TRIES} times"):
        await etcd.raise_counter(etcd_prefix + "n", [])


async def test_put_on_a_lease_that_is_gone_says_so(etcd: EtcdClient, etcd_prefix: str) -> None:
    lease, _ = await etcd.lease_grant(60)
    await etcd.lease_revoke(lease)
    with pytest.raises(EtcdLeaseNotFoundError):
        await etcd.put(etcd_prefix + "a", b"", lease)
    assert await etcd.lease_renew(lease) == 0


async def test_endpoint_where_nothing_listens_is_unavailable_not_ambiguous(dead_endpoint: str) -> None:
    async with EtcdClient([dead_endpoint]) as client:
        with pytest.raises(EtcdNotSentError, match="refused"):
            await client.put("a", b"")


async def test_name_that_does_not_resolve_is_unavailable_not_ambiguous() -> None:
    async with EtcdClient(["no-such-host.invalid:2379"]) as client:
        with pytest.raises(EtcdNotSentError):
            await client.put("a", b"")


async def test_write_goes_to_the_next_endpoint_when_one_refuses_connections(
    etcd_endpoint: str, etcd_prefix: str, dead_endpoint: str
) -> None:
    _, port = etcd_endpoint.split(":")
    async with EtcdClient([dead_endpoint, f"localhost:{port}"]) as client:
        await client.put(etcd_prefix + "a", b"1")
        item = await client.get(etcd_prefix + "a")
    assert item is not None
    assert item.version == 1


async def test_frozen_etcd_ends_calls_with_typed_errors_within_the_limit(own_etcd: EtcdServer) -> None:
    limit_s = 0.4
    async with EtcdClient([own_etcd.endpoint], timeout_s=limit_s) as client:
        fenced = [created_at("leader", await client.put("leader", b"me"))]
        with frozen(own_etcd.pid):
            began = time.monotonic()
            with pytest.raises(EtcdUnavailableError):
                await client.get("a")
            with pytest.raises(EtcdAmbiguousError, match="read it back"):
                await client.txn(fenced, [PutOp("a", b"1")])
            with pytest.raises(EtcdUnavailableError):
                await anext(client.watch_stream("a", b"", 1))
            assert time.monotonic() - began < 3 * limit_s + 0.5
        # The write may come through late: what counts is what is read back.
        item = await client.get("a", timeout_s=5)
        assert item is None or item.value == b"1"


async def test_write_cut_off_after_it_was_applied_is_ambiguous_and_can_be_read_back(
    etcd: EtcdClient, etcd_proxy: LossyProxy, etcd_prefix: str
) -> None:
    key = etcd_prefix + "a"
    revision = await etcd.put(etcd_prefix + "leader", b"me")
    async with EtcdClient([etcd_proxy.endpoint]) as client:
        await client.get(key)
        etcd_proxy.swallow_answers = True
        writing = asyncio.ensure_future(client.txn([created_at(etcd_prefix + "leader", revision)], [PutOp(key, b"1")]))
        async with asyncio.timeout(5), aclosing(events_after(etcd, key, None, revision)) as events:
            await anext(events)  # applied
        etcd_proxy.cut()
        with pytest.raises(EtcdAmbiguousError):
            await writing
        item = await eventually(lambda: client.get(key))
        assert item is not None
        assert item.value == b"1"
