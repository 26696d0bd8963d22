"""One trace for each request: from the caller's context through queue, admission and steps to the result.

Spans of what is over are written afterwards, from recorded times, in a thread: nothing on the request's path waits for
them. With tracing off everything here does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, TypeAlias

from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from wavepp.core.errors import WaveppError
from wavepp.core.ids import RequestId
from wavepp.core.limits import REQUEST_ID_BYTES_MAX
from wavepp.core.router.requests import RequestOutcome
from wavepp.infra.telemetry import (
    Telemetry,
    context_from_traceparent,
    context_of,
    record_span,
    start_span,
    traceparent_of,
)
from wavepp.router.dispatch_driver import DispatchDriver
from wavepp.router.timeline import WaveEntry

_log = logging.getLogger(__name__)

FINISHED_MAX: Final = 1024
"""Traces whose spans wait to be written; more are dropped, and counted."""

_Finished: TypeAlias = tuple[Span, RequestOutcome, tuple[WaveEntry, ...], DispatchDriver]


class Tracing:
    """Makes the traces of requests, and writes their spans in the background."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self.dropped = 0
        self._finished: asyncio.Queue[_Finished] = asyncio.Queue(FINISHED_MAX)

    def begin(self, traceparent: str, request_id: str) -> RequestTrace:
        """The trace of a request that has just arrived, below the caller's span if it named one."""
        if not self.telemetry.enabled:
            return RequestTrace(self, None)
        span = start_span(
            self.telemetry.tracer,
            "prefill",
            context_from_traceparent(traceparent),
            # Nobody has looked at its length yet.
            attributes={"wavepp.request_id": request_id[:REQUEST_ID_BYTES_MAX]} if request_id else None,
            kind=SpanKind.SERVER,
        )
        return RequestTrace(self, span)

    def finished(self, span: Span, outcome: RequestOutcome, waves: Iterable[WaveEntry], driver: DispatchDriver) -> None:
        """Have the spans of a finished request written."""
        try:
            self._finished.put_nowait((span, outcome, tuple(waves), driver))
        except asyncio.QueueFull:
            self.dropped += 1
            span.end()

    async def write(self) -> None:
        """Write spans for ever; a task of the process. A trace that cannot be written is dropped: requests go on."""
        while True:
            finished = await self._finished.get()
            try:
                await asyncio.to_thread(self._write, *finished)
            except Exception:  # noqa: BLE001 - whatever a trace stumbles over, requests go on
                self.dropped += 1
                _log.exception("a trace was not written")

    def write_rest(self) -> None:
        """Write what still waits, once `write` and the front door have ended. Blocks."""
        while not self._finished.empty():
            self._write(*self._finished.get_nowait())

    def _write(self, span: Span, outcome: RequestOutcome, waves: tuple[WaveEntry, ...], driver: DispatchDriver) -> None:
        tracer, parent, times = self.telemetry.tracer, context_of(span), outcome.times
        wall = driver.wall_ns
        request = outcome.request
        record_span(tracer, "queue", parent, wall(times.arrived), wall(times.asked))
        record_span(
            tracer,
            "admission",
            parent,
            wall(times.asked),
            wall(times.granted),
            attributes={
                "wavepp.endpoint_tokens": outcome.reuse.endpoint_tokens,
                "wavepp.waits": outcome.waits,
                "wavepp.attempts": outcome.attempts,
            },
        )
        for entry in waves:
            for _, start, length, decode in (c for c in entry.chunks if c[0] == request):
                for step in entry.steps:
                    record_span(
                        tracer,
                        "step",
                        parent,
                        step.start_ns,
                        step.start_ns + step.duration_ns,
                        attributes={
                            "wavepp.wave": entry.wave,
                            "wavepp.stage": step.stage,
                            "wavepp.chunk_start": start,
                            "wavepp.chunk_tokens": length,
                            "wavepp.wave_tokens": step.tokens,
                            "wavepp.decode": decode,
                        },
                    )
        record_span(
            tracer,
            "result",
            parent,
            wall(times.first_token),
            wall(times.done),
            attributes={
                "wavepp.completion_tokens": len(outcome.tokens),
                "wavepp.finish_reason": outcome.finish_reason,
            },
        )
        span.set_attributes(
            {
                "wavepp.prompt_tokens": outcome.prompt_tokens,
                "wavepp.cached_tokens": outcome.cached_tokens,
                "wavepp.computed_tokens": outcome.computed_tokens,
                "wavepp.waves": outcome.waves,
            }
        )
        span.end(end_time=wall(times.done))


class RequestTrace:
    """The trace of one request; ends exactly once, by `finished` or by `failed`."""

    def __init__(self, tracing: Tracing, span: Span | None) -> None:
        self._tracing = tracing
        self._span = span
        self._over = False

    @property
    def recording(self) -> bool:
        """Whether somebody will see it."""
        return self._span is not None and self._span.is_recording()

    @property
    def traceparent(self) -> str:
        """What goes along with the request; empty without a trace."""
        return (traceparent_of(self._span) or "") if self._span is not None else ""

    def identify(self, request: RequestId, prompt_tokens: int) -> None:
        """The request passed the door."""
        if self._span is not None:
            self._span.set_attributes({"wavepp.request_id": request, "wavepp.prompt_tokens": prompt_tokens})

    def finished(self, outcome: RequestOutcome, waves: Iterable[WaveEntry], driver: DispatchDriver) -> None:
        """The request has its tokens."""
        if self._span is not None and not self._over:
            self._over = True
            if self.recording:
                self._tracing.finished(self._span, outcome, waves, driver)
            else:
                self._span.end()

    def relayed(self, address: str) -> None:
        """Another router has answered, and has the rest of the trace."""
        if self._span is not None and not self._over:
            self._over = True
            self._span.set_attribute("wavepp.relayed_to", address)
            self._span.end()

    def failed(self, error: BaseException) -> None:
        """The request ended without its tokens."""
        if self._span is not None and not self._over:
            self._over = True
            words = str(error) if isinstance(error, WaveppError) else type(error).__name__
            self._span.set_status(Status(StatusCode.ERROR, words))
            self._span.end()
