"""gRPC servers and channels whose options agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Self, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from wavepp.core.limits import MESSAGE_BYTES_MAX
from wavepp.infra.addresses import join_host_port
from wavepp.infra.errors import StartupError
from wavepp.infra.ports import check_port
from wavepp.infra.rpc_errors import Check, ErrorInterceptor, ErrorTable

S = TypeVar("S")

KEEPALIVE_PERIOD_MS: Final = 20_000
"""Both sides ping an idle connection so often, also without a call on it."""
KEEPALIVE_TIMEOUT_MS: Final = 5_000
PING_INTERVAL_MIN_MS: Final = 10_000
"""A server tolerates pings this close together. Below the period, or it would end the connection (too_many_pings)."""

RPCS_MAX: Final = 4096
"""Calls that one server runs at a time; more are refused with RESOURCE_EXHAUSTED."""
STOP_GRACE_S: Final = 5.0

LIVENESS: Final = "liveness"
"""Name to ask the health service for: SERVING from start to stop, whatever the process thinks of its readiness."""

_COMMON_OPTIONS: Final = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_PERIOD_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # The ping has a time limit of its own, 60 s by default, and it is the one that ends a connection whose other
    # end has gone silent.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER_OPTIONS: Final = (
    *_COMMON_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
    # Without this two servers on one port start happily and share the calls between them.
    ("grpc.so_reuseport", 0),
)
CHANNEL_OPTIONS: Final = (
    *_COMMON_OPTIONS,
    # http_proxy and https_proxy are for what is outside of a mesh.
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # How long one attempt to connect may take (the default is 20 s).
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # A connection of its own for each channel: closing or losing one says nothing about another.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to a wavepp server at host:port. It connects when first used, and again by itself.

    Give every call a `timeout`. Build it inside the running event loop, and close it.
    """
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


class RpcServer:
    """A gRPC server with health and reflection. Not serving, to the health service, until `set_serving(True)`; alive,
    under the name LIVENESS, as soon as it answers.

    `errors` adds a service's own errors to the table that maps errors to statuses. `instance` is this process' own
    name for the health service: who asks under it is told nothing about another process at the same address. `check`
    sees each single request before it is decoded, and raises what is wrong with it.
    As `async with server` it is stopped at the end, whether or not it was started.
    """

    def __init__(
        self,
        *,
        errors: ErrorTable | None = None,
        rpcs_max: int = RPCS_MAX,
        instance: str | None = None,
        check: Check | None = None,
    ) -> None:
        self._server = grpc.aio.server(
            interceptors=[ErrorInterceptor(errors, check)], options=SERVER_OPTIONS, maximum_concurrent_rpcs=rpcs_max
        )
        self._names: list[str] = [health.SERVICE_NAME, reflection.SERVICE_NAME]
        self._unlisted = ("",) if instance is None else ("", instance)
        self._health = _HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    def add(self, register: Callable[[S, grpc.aio.Server], None], servicer: S, service: str) -> None:
        """Serve `servicer`. `register` is the generated `add_...Servicer_to_server`, `service` the full name."""
        register(servicer, self._server)
        self._names.append(service)

    async def start(self, host: str, port: int) -> int:
        """Listen and serve; returns the port (0 asks for any free one). Raises StartupError if it cannot be had."""
        # gRPC says only that binding failed, after lines of its own on stderr; the socket says why.
        await check_port(host, port)
        reflection.enable_server_reflection(self._names, self._server)
        address = join_host_port(host, port)
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise StartupError(f"cannot listen on {address}: {error}") from error
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_serving(False)
        await self._server.start()
        return bound

    async def set_serving(self, serving: bool) -> None:
        """What the health service answers, for the server as a whole and for each service. No effect while stopping."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in (*self._unlisted, *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Say NOT_SERVING, take no new calls, let the running ones end within `grace_s`, then cancel them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


class _HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]
    """The standard one, but that its watches end when the server stops: it would wait for them as for any call."""

    def __init__(self) -> None:
        super().__init__()
        self._stopping = asyncio.Event()

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - the generated name
        """What is asked for, and every change of it."""
        tasks = [asyncio.ensure_future(w) for w in (super().Watch(request, context), self._stopping.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def enter_graceful_shutdown(self) -> None:
        """Say NOT_SERVING, for good."""
        await super().enter_graceful_shutdown()
        self._stopping.set()
