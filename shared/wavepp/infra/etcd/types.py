"""The values that go in and out of `EtcdClient`: keys with their revisions, compares, operations, fences."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from etcd3aio import prefix_range_end

from wavepp.infra.etcd.messages import CompareMessage, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp

TXN_OPS_MAX = 128
"""etcd's own default limit of operations (and of compares) in one transaction."""


def encode_key(key: str) -> bytes:
    """The bytes of a key. A foreign key that is no UTF-8 survives the round trip."""
    return key.encode("utf-8", "surrogateescape")


def decode_key(key: bytes) -> str:
    """Inverse of `encode_key`."""
    return key.decode("utf-8", "surrogateescape")


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys that begin with `prefix` (which may not be empty)."""
    if not prefix:
        raise ValueError("an empty prefix would select every key in etcd; give at least one character")
    return bytes(prefix_range_end(encode_key(prefix)))


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as etcd holds it. `lease` is 0 when none is attached."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int

    @classmethod
    def from_proto(cls, pb: Any) -> KeyValue:
        """From etcd's `mvccpb.KeyValue`."""
        return cls(decode_key(pb.key), pb.value, pb.create_revision, pb.mod_revision, pb.version, pb.lease)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys under a prefix at one revision, in key order."""

    items: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Fence:
    """The caller's proof that it still leads: `key` must exist with this create revision."""

    key: str
    create_revision: int


class CompareTarget(StrEnum):
    """What of a key a transaction compares."""

    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    LEASE = "lease"


_TARGETS = {
    CompareTarget.CREATE_REVISION: CompareMessage.CREATE,
    CompareTarget.MOD_REVISION: CompareMessage.MOD,
    CompareTarget.LEASE: CompareMessage.LEASE,
}


@dataclass(frozen=True, slots=True)
class Compare:
    """`target` of `key` equals `to`. A key that does not exist has revisions, version and lease 0."""

    key: str
    target: CompareTarget
    to: int

    def to_proto(self) -> Any:
        """As etcd's `Compare`."""
        compare = CompareMessage(key=encode_key(self.key), target=_TARGETS[self.target], result=CompareMessage.EQUAL)
        setattr(compare, self.target.value, self.to)
        return compare


def created_at(key: str, revision: int) -> Compare:
    """`key` was created at `revision` (0: it does not exist)."""
    return Compare(key, CompareTarget.CREATE_REVISION, revision)


def modified_at(key: str, revision: int) -> Compare:
    """`key` was last written at `revision` (0: it does not exist)."""
    return Compare(key, CompareTarget.MOD_REVISION, revision)


def has_lease(key: str, lease: int) -> Compare:
    """`key` hangs on `lease`."""
    return Compare(key, CompareTarget.LEASE, lease)


@dataclass(frozen=True, slots=True)
class PutOp:
    """Write `value` at `key`, hung on `lease` unless that is 0."""

    key: str
    value: bytes
    lease: int = 0

    def to_proto(self) -> Any:
        """As etcd's `RequestOp`."""
        return RequestOp(request_put=PutRequest(key=encode_key(self.key), value=self.value, lease=self.lease))


@dataclass(frozen=True, slots=True)
class GetOp:
    """Read `key`, or with `prefix` all keys that begin with it."""

    key: str
    prefix: bool = False

    def to_proto(self) -> Any:
        """As etcd's `RequestOp`."""
        end = prefix_end(self.key) if self.prefix else b""
        return RequestOp(request_range=RangeRequest(key=encode_key(self.key), range_end=end))


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """Delete `key`, or with `prefix` all keys that begin with it."""

    key: str
    prefix: bool = False

    def to_proto(self) -> Any:
        """As etcd's `RequestOp`."""
        end = prefix_end(self.key) if self.prefix else b""
        return RequestOp(request_delete_range=DeleteRangeRequest(key=encode_key(self.key), range_end=end))


Op = PutOp | GetOp | DeleteOp


@dataclass(frozen=True, slots=True)
class TxnResult:
    """Which branch ran, at which revision, and what its operations gave, in their order.

    An entry of `results` is the tuple of keys read (GetOp), or () for the other operations.
    """

    succeeded: bool
    revision: int
    results: tuple[tuple[KeyValue, ...], ...]

    @classmethod
    def from_proto(cls, pb: Any) -> TxnResult:
        """From etcd's `TxnResponse`."""
        results = tuple(
            tuple(KeyValue.from_proto(kv) for kv in r.response_range.kvs) if r.HasField("response_range") else ()
            for r in pb.responses
        )
        return cls(bool(pb.succeeded), int(pb.header.revision), results)
