"""etcd, with a time limit on every call and typed errors that say what the caller may conclude."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, Self

import grpc

from wavepp.infra.etcd.channel import EtcdTls, Member, Members
from wavepp.infra.etcd.errors import (
    EtcdAmbiguousError,
    EtcdDataError,
    EtcdRequestError,
    EtcdUnavailableError,
    FencedError,
)
from wavepp.infra.etcd.messages import WatchCreateRequest
from wavepp.infra.etcd.types import (
    TXN_OPS_MAX,
    Compare,
    DeleteOp,
    Fence,
    GetOp,
    KeyValue,
    Op,
    PutOp,
    Snapshot,
    TxnResult,
    created_at,
    encode_key,
    modified_at,
    prefix_end,
)

TIMEOUT_DEFAULT_S: Final = 3.0
PREFIX_ITEMS_MAX: Final = 100_000
COUNTER_TRIES: Final = 8
COUNTER_DIGITS_MAX: Final = 18


class EtcdClient:
    """One connection per endpoint, one endpoint in use; a failed call moves to the next endpoint.

    A call is sent again by itself only when the first try certainly did not leave this process. Every method may raise
    EtcdUnavailableError or EtcdRequestError; those that write may also raise EtcdAmbiguousError. Build it inside the
    running event loop.
    """

    def __init__(
        self, endpoints: Sequence[str], *, timeout_s: float = TIMEOUT_DEFAULT_S, tls: EtcdTls | None = None
    ) -> None:
        if not endpoints:
            raise ValueError("etcd needs at least one endpoint, host:port")
        if timeout_s <= 0:
            raise ValueError(f"etcd time limit {timeout_s} s must be above 0")
        self.timeout_s = timeout_s
        self._members = Members(endpoints, tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls and watches that still run end with an error."""
        await self._members.close()

    # ---- reading

    async def get(self, key: str, *, timeout_s: float | None = None) -> KeyValue | None:
        """The newest value of `key` (linearizable), or None."""

        async def op(member: Member, limit_s: float) -> Any:
            return await member.kv.get(encode_key(key), timeout=limit_s)

        response = await self._call(f"get {key}", False, timeout_s, op)
        return KeyValue.from_proto(response.kvs[0]) if response.kvs else None

    async def get_prefix(
        self, prefix: str, *, items_max: int = PREFIX_ITEMS_MAX, timeout_s: float | None = None
    ) -> Snapshot:
        """All keys that begin with `prefix`, at one revision. More than `items_max` raises EtcdRequestError."""

        async def op(member: Member, limit_s: float) -> Any:
            end = prefix_end(prefix)
            return await member.kv.get(encode_key(prefix), range_end=end, limit=items_max, timeout=limit_s)

        response = await self._call(f"get prefix {prefix}", False, timeout_s, op)
        if response.more:
            raise EtcdRequestError(f"etcd holds {response.count} keys under {prefix}, the limit is {items_max}")
        return Snapshot(tuple(KeyValue.from_proto(kv) for kv in response.kvs), int(response.header.revision))

    # ---- writing

    async def put(self, key: str, value: bytes, lease: int = 0, *, timeout_s: float | None = None) -> int:
        """Write `value`; returns the revision of the write."""

        async def op(member: Member, limit_s: float) -> Any:
            return await member.kv.put(encode_key(key), value, lease=lease, timeout=limit_s)

        response = await self._call(f"put {key}", True, timeout_s, op)
        return int(response.header.revision)

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Op],
        otherwise: Sequence[Op] = (),
        *,
        timeout_s: float | None = None,
    ) -> TxnResult:
        """Run `then` if every compare holds, else `otherwise`, as one revision. At most 128 of each."""
        if max(len(compares), len(then), len(otherwise)) > TXN_OPS_MAX:
            raise EtcdRequestError(f"a transaction holds at most {TXN_OPS_MAX} compares and operations a branch")

        async def op(member: Member, limit_s: float) -> Any:
            return await member.kv.txn(
                [c.to_proto() for c in compares],
                [o.to_proto() for o in then],
                [o.to_proto() for o in otherwise],
                timeout=limit_s,
            )

        writes = any(not isinstance(o, GetOp) for o in (*then, *otherwise))
        what = f"txn on {', '.join(o.key for o in then) or 'nothing'}"
        return TxnResult.from_proto(await self._call(what, writes, timeout_s, op))

    async def fenced_delete(self, key: str, fences: Sequence[Fence], *, timeout_s: float | None = None) -> int:
        """Delete `key` if every fence holds; returns the revision. Raises FencedError, and then nothing was deleted."""
        compares = [created_at(f.key, f.create_revision) for f in fences]
        result = await self.txn(compares, [DeleteOp(key)], [GetOp(f.key) for f in fences], timeout_s=timeout_s)
        if not result.succeeded:
            check_fences(fences, result.results)
        return result.revision

    async def raise_counter(self, key: str, fences: Sequence[Fence], *, timeout_s: float | None = None) -> int:
        """Add one to the decimal integer at `key` (absent: 0), if every fence holds; returns the new value.

        The value returned was written by this call and given to nobody else. After an ambiguous try the counter is
        raised again, so values may be skipped. Tried at most 8 times. Raises FencedError, EtcdDataError, or the last
        error; after EtcdAmbiguousError the counter may be higher than before.
        """
        ambiguous: EtcdAmbiguousError | None = None
        current = await self.get(key, timeout_s=timeout_s)
        for _ in range(COUNTER_TRIES):
            value = _counter(current) + 1
            expected = modified_at(key, current.mod_revision if current else 0)
            try:
                result = await self.txn(
                    [*(created_at(f.key, f.create_revision) for f in fences), expected],
                    [PutOp(key, str(value).encode())],
                    [*(GetOp(f.key) for f in fences), GetOp(key)],
                    timeout_s=timeout_s,
                )
            except EtcdAmbiguousError as error:
                ambiguous = error
                current = await self.get(key, timeout_s=timeout_s)
                continue
            if result.succeeded:
                return value
            check_fences(fences, result.results)
            current = result.results[-1][0] if result.results[-1] else None
        raise ambiguous or EtcdUnavailableError(f"counter {key} was raised by others {COUNTER_TRIES} times in a row")

    # ---- leases and watches, used by etcd_session and etcd_watch

    async def lease_grant(self, ttl_s: int, *, timeout_s: float | None = None) -> tuple[int, int]:
        """A new etcd lease: (id, seconds granted, which may be more than asked for)."""

        async def op(member: Member, limit_s: float) -> Any:
            return await member.lease.grant(ttl_s, timeout=limit_s)

        response = await self._call("lease grant", True, timeout_s, op)
        return int(response.ID), int(response.TTL)

    async def lease_renew(self, lease: int, *, timeout_s: float | None = None) -> int:
        """Renew once; returns the seconds left, 0 when the lease is gone."""

        async def op(member: Member, limit_s: float) -> Any:
            return await member.renew(lease, limit_s)

        response = await self._call(f"renewal of lease {lease:x}", False, timeout_s, op)
        return max(0, int(response.TTL))

    async def lease_revoke(self, lease: int, *, timeout_s: float | None = None) -> None:
        """End the lease and delete its keys."""

        async def op(member: Member, limit_s: float) -> Any:
            return await member.lease.revoke(lease, timeout=limit_s)

        await self._call(f"revocation of lease {lease:x}", True, timeout_s, op)

    async def watch_stream(self, key: str, end: bytes, start_revision: int) -> AsyncGenerator[Any, None]:
        """etcd's own watch responses for [key, end) from `start_revision`, the one that says `created` first.

        Ends only by an error: EtcdUnavailableError when the stream breaks or is not created within the time limit.
        """
        member = self._members.current
        request = WatchCreateRequest(key=encode_key(key), range_end=end, start_revision=start_revision)
        try:
            async with contextlib.aclosing(member.watch(request, self.timeout_s)) as responses:
                async for response in responses:
                    yield response
        except (grpc.aio.AioRpcError, TimeoutError, EtcdUnavailableError) as cause:
            raise self._members.failed(member, cause, f"watch {key}") from cause

    # ---- inside

    async def _call(
        self, what: str, write: bool, timeout_s: float | None, op: Callable[[Member, float], Awaitable[Any]]
    ) -> Any:
        return await self._members.call(what, write, self.timeout_s if timeout_s is None else timeout_s, op)


def check_fences(fences: Sequence[Fence], held: Sequence[Sequence[KeyValue]]) -> None:
    """Raise FencedError for the first of `fences` that `held` (what was read at its key, in order) does not satisfy."""
    for fence, items in zip(fences, held, strict=False):
        actual = items[0].create_revision if items else 0
        if actual != fence.create_revision:
            raise FencedError(fence.key, fence.create_revision, actual)


def _counter(item: KeyValue | None) -> int:
    if item is None:
        return 0
    if not item.value.isdigit() or len(item.value) > COUNTER_DIGITS_MAX:
        raise EtcdDataError(f"counter {item.key} holds {item.value[:32]!r}, expected a decimal integer")
    return int(item.value)
