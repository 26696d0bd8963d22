"""From errors to gRPC statuses: one table, applied around every handler of a server."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError

from wavepp.core.errors import InvalidInputError, PeerProtocolError, SupersededError, WaveppError
from wavepp.infra.etcd.errors import (
    EtcdAmbiguousError,
    EtcdError,
    EtcdReadOnlyError,
    EtcdUnavailableError,
    FencedError,
    SessionLostError,
)

_log = logging.getLogger(__name__)

DETAILS_CHARS_MAX: Final = 1024
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
"""Standard trailing metadata: a gRPC client with a retry policy waits that long before it tries again."""


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """What a client sees of an error. An attribute `retry_after_ms` of the error itself goes first."""

    code: grpc.StatusCode
    retry_after_ms: int | None = None


ErrorTable = Mapping[type[BaseException], ErrorStatus]
Check = Callable[[bytes], None]
_Decode = Callable[[Any], Any]

SUPERSEDED: Final = grpc.StatusCode.PERMISSION_DENIED
"""What a process hears that still acts as the leader it was. Nothing else here gives it."""

ERROR_STATUS: Final[ErrorTable] = {
    InvalidInputError: ErrorStatus(grpc.StatusCode.INVALID_ARGUMENT),
    PeerProtocolError: ErrorStatus(grpc.StatusCode.FAILED_PRECONDITION),
    SupersededError: ErrorStatus(SUPERSEDED),
    WaveppError: ErrorStatus(grpc.StatusCode.INTERNAL),
    EtcdError: ErrorStatus(grpc.StatusCode.INTERNAL),
    EtcdUnavailableError: ErrorStatus(grpc.StatusCode.UNAVAILABLE, 500),
    EtcdAmbiguousError: ErrorStatus(grpc.StatusCode.UNAVAILABLE, 500),
    EtcdReadOnlyError: ErrorStatus(grpc.StatusCode.UNAVAILABLE, 5000),
    FencedError: ErrorStatus(grpc.StatusCode.ABORTED),
    SessionLostError: ErrorStatus(grpc.StatusCode.UNAVAILABLE, 500),
    TimeoutError: ErrorStatus(grpc.StatusCode.DEADLINE_EXCEEDED),
    # Of something inside the handler, not of the call: without a status the client would wait for ever.
    asyncio.CancelledError: ErrorStatus(grpc.StatusCode.ABORTED),
}
"""For an error that is not listed its nearest listed base class counts; services add their own to their `RpcServer`."""

_UNLISTED: Final = ErrorStatus(grpc.StatusCode.INTERNAL)
_PASSED_ON: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
)


def status_of(error: BaseException, table: ErrorTable = ERROR_STATUS) -> ErrorStatus:
    """The status for `error`. A failed call's own status is passed on if it says "later", else INTERNAL."""
    if isinstance(error, grpc.aio.AioRpcError):
        return ErrorStatus(error.code()) if error.code() in _PASSED_ON else _UNLISTED
    status = next((table[base] for base in type(error).__mro__ if base in table), _UNLISTED)
    retry_after_ms = getattr(error, "retry_after_ms", None)
    return status if retry_after_ms is None else ErrorStatus(status.code, int(retry_after_ms))


def retry_after_ms(error: grpc.aio.AioRpcError) -> int | None:
    """Milliseconds that the server asked the client to wait before it tries again, if it did."""
    for key, value in error.trailing_metadata() or ():
        if key == PUSHBACK_KEY and str(value).isdigit():
            return int(value)
    return None


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends each call whose handler raised with the status that the table gives, and logs what is a fault of ours."""

    def __init__(self, errors: ErrorTable | None = None, check: Check | None = None) -> None:
        self._table: ErrorTable = {**ERROR_STATUS, **(errors or {})}
        self._check = check

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Wrap the handler that would serve the call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        build, inner = _kind(handler)
        method = handler_call_details.method
        decode, left_to_grpc = _decoder(handler, self._check)
        if inspect.isasyncgenfunction(inner):
            guarded: Any = self._guard_generator(inner, decode, method)
        elif inspect.iscoroutinefunction(inner):
            guarded = self._guard_coroutine(inner, decode, method)
        else:
            return handler
        return build(guarded, left_to_grpc, handler.response_serializer)

    def _guard_coroutine(
        self, inner: Callable[..., Awaitable[Any]], decode: _Decode, method: str
    ) -> Callable[..., Awaitable[Any]]:
        async def guarded(request: Any, context: Any) -> Any:
            try:
                return await inner(decode(request), context)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - each becomes a status
                await self._end(error, context, method)

        return guarded

    def _guard_generator(
        self, inner: Callable[..., AsyncGenerator[Any, None]], decode: _Decode, method: str
    ) -> Callable[..., AsyncGenerator[Any, None]]:
        async def guarded(request: Any, context: Any) -> AsyncGenerator[Any, None]:
            try:
                async with contextlib.aclosing(inner(decode(request), context)) as responses:
                    async for response in responses:
                        yield response
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - each becomes a status
                await self._end(error, context, method)

        return guarded

    async def _end(self, error: BaseException, context: Any, method: str) -> NoReturn:
        if isinstance(error, grpc.aio.AbortError):
            raise error  # the handler has chosen the status itself
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise error  # the call itself was cancelled: by the client, or because the server stops
        status = status_of(error, self._table)
        details = str(error)
        if isinstance(error, asyncio.CancelledError):
            details = "the work behind this call was cancelled"
        elif not isinstance(error, WaveppError | TimeoutError | grpc.aio.AioRpcError):
            details = f"internal error: {type(error).__name__}"
        if status.code is grpc.StatusCode.INTERNAL:
            _log.error("%s failed: %s", method, error, exc_info=error)
        wait_ms = status.retry_after_ms
        trailing = () if wait_ms is None else ((PUSHBACK_KEY, str(wait_ms)),)
        await context.abort(status.code, details[:DETAILS_CHARS_MAX], trailing)
        raise AssertionError("abort returned")


def _decoder(handler: Any, check: Check | None) -> tuple[_Decode, Any]:
    """What turns a call's request into a message, and what is left to gRPC.

    gRPC ends a call whose message it cannot decode with UNKNOWN and the words of a Python exception, so single
    messages are decoded here.
    """
    if handler.request_streaming or handler.request_deserializer is None:
        return (lambda request: request), handler.request_deserializer

    def decode(request: bytes) -> Any:
        if check is not None:
            check(request)
        try:
            return handler.request_deserializer(request)
        except DecodeError as error:
            raise InvalidInputError(f"the {len(request)} bytes of the request are malformed: {error}") from error

    return decode, None


def _kind(handler: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if handler.request_streaming:
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler, handler.stream_stream
        return grpc.stream_unary_rpc_method_handler, handler.stream_unary
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler, handler.unary_stream
    return grpc.unary_unary_rpc_method_handler, handler.unary_unary
