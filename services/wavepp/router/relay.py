"""Clients' calls on their way to the router that leads, when they came to another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final

import grpc

from wavepp.infra.leader import Leader
from wavepp.infra.rpc import open_channel
from wavepp.infra.rpc_errors import retry_after_ms
from wavepp.router.errors import NOT_LEADING, MovedError
from wavepp.router.leadership import Leadership
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

FORWARDED: Final = "wavepp-forwarded"
"""Metadata of a call that another router has sent on: it goes no further, so that none goes in circles."""
FORWARDED_METADATA: Final = ((FORWARDED, "1"),)

_NOT_FORWARDED: Final = ("grpc-", ":", "content-type", "te", "user-agent", "traceparent", FORWARDED)
"""What belongs to the client's own connection, or is replaced."""


class Relay:
    """Sends calls on over one connection, to whichever other router leads."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._address = ""
        self._channel: grpc.aio.Channel | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def events(
        self, leader: Leader, request: prefill_pb2.PrefillRequest, context: Any, traceparent: str, timeout_s: float
    ) -> AsyncGenerator[prefill_pb2.PrefillEvent, None]:
        """What the leader streams for the request. Raises MovedError when it leads no more, or is gone: ask again
        whoever leads then. Any other failure is the leader's own word, as AioRpcError.
        """
        stub = prefill_pb2_grpc.PrefillServiceStub(self._channel_to(leader.address))
        metadata = _forwarded(context, traceparent)
        call = stub.PrefillStream(request, timeout=timeout_s, metadata=metadata)
        turned = asyncio.create_task(self._leadership.turned(), name="relay-turned")
        turned.add_done_callback(lambda _: call.cancel())
        try:
            async for event in call:
                yield event
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not turned.done():
                raise
            raise MovedError(f"router {leader.address} does not lead any more") from None
        except grpc.aio.AioRpcError as error:
            if _leads_no_more(error):
                raise MovedError(f"router {leader.address}: {error.code().name}: {error.details()}") from error
            raise
        finally:
            turned.cancel()
            call.cancel()

    def admin(self, leader: Leader) -> prefill_pb2_grpc.AdminServiceAsyncStub:
        """For an operator's question to the leader."""
        stub: prefill_pb2_grpc.AdminServiceAsyncStub = prefill_pb2_grpc.AdminServiceStub(
            self._channel_to(leader.address)
        )
        return stub

    async def close(self) -> None:
        """Close the connection."""
        self._drop_channel()
        await asyncio.gather(*self._closing)

    def _channel_to(self, address: str) -> grpc.aio.Channel:
        if self._channel is None or self._address != address:
            self._drop_channel()
            self._address, self._channel = address, open_channel(address)
        return self._channel

    def _drop_channel(self) -> None:
        if self._channel is not None:
            # What still runs on it ends: that router leads no more.
            closing = asyncio.create_task(self._channel.close(), name="relay-close")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._channel = None


def is_forwarded(context: Any) -> bool:
    """Whether another router has sent this call on."""
    return any(key == FORWARDED for key, _ in context.invocation_metadata() or ())


def _forwarded(context: Any, traceparent: str) -> list[tuple[str, str | bytes]]:
    given: Iterable[tuple[str, str | bytes]] = context.invocation_metadata() or ()
    kept = [(key, value) for key, value in given if not key.startswith(_NOT_FORWARDED)]
    own = next((value for key, value in given if key == "traceparent"), "")
    if traceparent or own:
        kept.append(("traceparent", traceparent or own))
    return [*kept, *FORWARDED_METADATA]


def _leads_no_more(error: grpc.aio.AioRpcError) -> bool:
    if error.code() in (NOT_LEADING, grpc.StatusCode.CANCELLED):
        return True
    # With a delay for the next try it is what the leader has to say; without one, nobody has said anything.
    return error.code() is grpc.StatusCode.UNAVAILABLE and retry_after_ms(error) is None
