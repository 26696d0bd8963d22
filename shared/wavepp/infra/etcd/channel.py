"""The connections to etcd's endpoints, and the one place that decides when a call may be sent again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
from etcd3aio import EtcdError as LibraryError
from etcd3aio.kv import KVService
from etcd3aio.lease import LeaseService

from wavepp.core.limits import MESSAGE_BYTES_MAX
from wavepp.infra.etcd.errors import EtcdError, EtcdNotSentError, EtcdRequestError, EtcdUnavailableError, classify
from wavepp.infra.etcd.messages import LeaseKeepAliveRequest, WatchRequest, open_stream

T = TypeVar("T")

OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # etcd tolerates a ping every 5 s, and none at all on a connection without a call.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # A mesh whose etcd was away for long is to serve within seconds of its return.
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # How long one attempt to connect may take; the default of 20 s hides a stopped server.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    # http_proxy and https_proxy are for what is outside of a mesh.
    ("grpc.enable_http_proxy", 0),
)
# A member that is cut off from its quorum ends such a stream instead of keeping it silent.
_STREAM_METADATA: Final = (("hasleader", "true"),)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM contents. Without `ca` the system's roots are used; `cert` and `key` come together (mutual TLS)."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None


class Member:
    """One endpoint: its channel and etcd's services on it. Nothing here retries."""

    def __init__(self, endpoint: str, tls: EtcdTls | None) -> None:
        target = f"dns:///{endpoint}"
        if tls is None:
            self.channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
            self.channel = grpc.aio.secure_channel(target, credentials, options=OPTIONS)
        self.endpoint = endpoint
        self.kv = KVService(self.channel, max_attempts=1)
        self.lease = LeaseService(self.channel, max_attempts=1)
        self._keep_alive = open_stream(self.channel, "Lease", "LeaseKeepAlive")
        self._watch = open_stream(self.channel, "Watch", "Watch")

    async def renew(self, lease: int, limit_s: float) -> Any:
        """One renewal on a stream of its own; returns etcd's answer."""
        call = self._keep_alive(metadata=_STREAM_METADATA, timeout=limit_s)
        try:
            async with asyncio.timeout(limit_s):
                await call.write(LeaseKeepAliveRequest(ID=lease))
                return _not_ended(await call.read())
        finally:
            call.cancel()

    async def watch(self, request: Any, limit_s: float) -> AsyncGenerator[Any, None]:
        """The answers to one watch. The first must come within `limit_s`; a silent stream after it is healthy."""
        call = self._watch(metadata=_STREAM_METADATA)
        try:
            async with asyncio.timeout(limit_s):
                await call.write(WatchRequest(create_request=request))
                response = _not_ended(await call.read())
            while True:
                yield response
                response = _not_ended(await call.read())
        finally:
            call.cancel()


class Members:
    """All endpoints, one of them in use. A failed call makes the next endpoint the one in use."""

    def __init__(self, endpoints: Sequence[str], tls: EtcdTls | None) -> None:
        self._members = [Member(endpoint, tls) for endpoint in endpoints]
        self._current = 0

    @property
    def current(self) -> Member:
        """The endpoint in use."""
        return self._members[self._current]

    async def call(self, what: str, write: bool, limit_s: float, op: Callable[[Member, float], Awaitable[T]]) -> T:
        """Run `op(member, seconds left)` and return what it gives, or raise a typed error.

        Tried on the next endpoint only when the request certainly did not leave this process, so a write is never
        applied twice; each endpoint once, all within `limit_s`.
        """
        ends = time.monotonic() + limit_s
        error: EtcdError = EtcdUnavailableError(f"no time left for etcd {what}")
        for _ in self._members:
            member = self.current
            left_s = ends - time.monotonic()
            if left_s <= 0:
                break
            try:
                return await op(member, left_s)
            except (LibraryError, grpc.aio.AioRpcError, TimeoutError, EtcdUnavailableError) as cause:
                error = self.failed(member, cause, what, write=write)
            if not isinstance(error, EtcdNotSentError):
                break
        raise error

    def failed(
        self,
        member: Member,
        cause: LibraryError | grpc.aio.AioRpcError | TimeoutError | EtcdUnavailableError,
        what: str,
        *,
        write: bool = False,
    ) -> EtcdError:
        """The typed error for `cause`; unless etcd refused the request itself, the next endpoint comes into use."""
        if isinstance(cause, EtcdUnavailableError):
            error: EtcdError = cause
        else:
            error = classify(cause, f"{what} at {member.endpoint}", write=write)
            error.__cause__ = cause
        # Several calls fail together when a member dies; only the first of them moves on.
        if not isinstance(error, EtcdRequestError) and self.current is member:
            self._current = (self._current + 1) % len(self._members)
        return error

    async def close(self) -> None:
        """Close every connection."""
        for member in self._members:
            await member.channel.close()


def _not_ended(response: Any) -> Any:
    if response is grpc.aio.EOF:
        raise EtcdUnavailableError("etcd closed the stream")
    return response
