"""The calls to a running mesh, with errors that people can read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from wavepp.core.errors import InvalidInputError, WaveppError
from wavepp.infra.addresses import brackets_hint
from wavepp.infra.rpc import CHANNEL_OPTIONS
from wavepp.infra.rpc_errors import PUSHBACK_KEY
from wavepp.v1 import prefill_pb2, prefill_pb2_grpc

ADMIN_TIMEOUT_S: Final = 10.0


class CallError(WaveppError):
    """A call that failed. `code` is gRPC's name of the status."""

    def __init__(self, code: str, details: str, retry_after_ms: int | None = None) -> None:
        again = f" (try again in {retry_after_ms} ms)" if retry_after_ms is not None else ""
        super().__init__(f"{code}: {details}{again}")
        self.code = code
        self.details = details
        self.retry_after_ms = retry_after_ms


@dataclass(frozen=True, slots=True)
class Answer:
    """first_token_s: from sending the request until its first token arrived here. total_s: until the end."""

    response: prefill_pb2.PrefillResponse
    first_token_s: float
    total_s: float


class MeshClient:
    """A mesh at host:port. Thread-safe. Every method raises CallError."""

    def __init__(self, address: str) -> None:
        """Raises InvalidInputError for what cannot be an address."""
        if hint := brackets_hint(address):
            raise InvalidInputError(f"{address!r} is not host:port{hint}")
        self.address = address
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._prefill = prefill_pb2_grpc.PrefillServiceStub(self._channel)
        self._admin = prefill_pb2_grpc.AdminServiceStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._lock = threading.Lock()
        self._running: set[Any] = set()
        self._cancelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._channel.close()

    def health(self, service: str, timeout_s: float = ADMIN_TIMEOUT_S) -> str:
        """What the health service says of `service` ("" is the whole), by gRPC's name of it."""
        try:
            answer = self._health.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._call_error(error) from error
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

    def model_info(self, timeout_s: float = ADMIN_TIMEOUT_S) -> prefill_pb2.GetModelInfoResponse:
        """What is served."""
        try:
            return self._prefill.GetModelInfo(prefill_pb2.GetModelInfoRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._call_error(error) from error

    def status(self, timeout_s: float = ADMIN_TIMEOUT_S) -> prefill_pb2.GetStatusResponse:
        """What every process holds and does."""
        try:
            return self._admin.GetStatus(prefill_pb2.GetStatusRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._call_error(error) from error

    def timeline(self, waves_max: int = 0, timeout_s: float = ADMIN_TIMEOUT_S) -> prefill_pb2.GetTimelineResponse:
        """The last waves, oldest first; 0 = all that are kept."""
        try:
            return self._admin.GetTimeline(prefill_pb2.GetTimelineRequest(waves_max=waves_max), timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._call_error(error) from error

    def prefill(
        self,
        request: prefill_pb2.PrefillRequest,
        timeout_s: float,
        on_token: Callable[[prefill_pb2.PrefillToken], None] | None = None,
    ) -> Answer:
        """Send one request and wait for its end; `on_token` hears of each token as it comes."""
        began = time.monotonic()
        first_token_s = 0.0
        call: Any = self._prefill.PrefillStream(request, timeout=timeout_s)
        self._started(call)
        try:
            for event in call:
                now = time.monotonic() - began
                if event.WhichOneof("event") == "done":
                    return Answer(event.done, first_token_s or now, now)
                first_token_s = first_token_s or now
                if on_token is not None:
                    on_token(event.token)
        except grpc.RpcError as error:
            failed = self._call_error(error)
            if failed.details == "Deadline Exceeded":
                failed = CallError(failed.code, f"no answer within {timeout_s:g} s, the deadline")
            raise failed from error
        finally:
            with self._lock:
                self._running.discard(call)
        raise CallError("INTERNAL", "the stream ended without an answer")

    def cancel_all(self) -> None:
        """End the prefill calls that run, and those that would come."""
        with self._lock:
            self._cancelled = True
            running = tuple(self._running)
        for call in running:
            call.cancel()

    def _started(self, call: Any) -> None:
        with self._lock:
            self._running.add(call)
            cancelled = self._cancelled
        if cancelled:
            call.cancel()

    def _call_error(self, error: grpc.RpcError) -> CallError:
        if not isinstance(error, grpc.Call):
            return CallError("UNKNOWN", str(error))
        code, details = error.code().name, error.details() or "no reason given"
        if code == "UNAVAILABLE" and "connect" in details.lower():
            details = f"nothing answers at {self.address}; is `wavepp up` running? ({_last_clause(details)})"
        metadata = dict(error.trailing_metadata() or ())
        pushback = str(metadata.get(PUSHBACK_KEY, ""))
        return CallError(code, details, int(pushback) if pushback.isdigit() else None)


def _last_clause(details: str) -> str:
    return details.rsplit(": ", 1)[-1].strip()
