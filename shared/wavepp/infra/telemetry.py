"""Tracing: an OpenTelemetry tracer that is passed by hand, and contexts that come from messages only.

No global provider is set and no span is ever made current, so a span's parent is what the caller names, or nothing: the
spans of one request can not end up below another's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, NoOpTracer, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from wavepp.infra.errors import StartupError

TRACEPARENT_CHARS_MAX: Final = 128
SHUTDOWN_TIMEOUT_S: Final = 5.0
_OTLP_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_OTLP_TIMEOUT_S: Final = 5
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_TRACEPARENT: Final = "traceparent"


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """`sample_ratio` applies to traces that begin here; a caller's own decision is always followed.

    `file`: also (or only) write each span as a line of JSON there. `attributes`: of the process, in every span.
    """

    sample_ratio: float = 1.0
    file: Path | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


class Telemetry:
    """The process' tracer. `enabled` is False when nothing would receive spans; the tracer is then a no-op."""

    def __init__(self, tracer: Tracer, provider: TracerProvider | None = None, file: TextIO | None = None) -> None:
        self.tracer = tracer
        self._provider = provider
        self._file = file

    @property
    def enabled(self) -> bool:
        """True when spans go somewhere."""
        return self._provider is not None

    def shutdown(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> bool:
        """Export what is left and stop. Blocks, but not beyond `timeout_s`; False when that was not enough."""
        provider, self._provider = self._provider, None
        if provider is None:
            return True
        # The library's own time limits are per exporter and up to 30 s.
        worker = threading.Thread(target=provider.shutdown, name="telemetry-shutdown", daemon=True)
        worker.start()
        worker.join(timeout_s)
        if worker.is_alive():
            return False
        if self._file is not None:
            self._file.close()
        return True


def setup_telemetry(service: str, options: TracingOptions, *, exporters: Sequence[SpanExporter] = ()) -> Telemetry:
    """The tracer of this process, for the service called `service`.

    Spans go to an OTLP collector when the standard OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT) is set, to
    `options.file`, and to `exporters`. With none of these tracing is off and costs nothing. Raises StartupError when
    the file cannot be opened.
    """
    sinks = list(exporters)
    file: TextIO | None = None
    # The one place where the OpenTelemetry library's own variables count: it reads the rest of them itself.
    if any(os.environ.get(name) for name in _OTLP_ENDPOINTS):
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        sinks.append(OTLPSpanExporter(timeout=_OTLP_TIMEOUT_S))
    if options.file is not None:
        file = _open(options.file)
        sinks.append(ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\n"))
    if not sinks:
        return Telemetry(NoOpTracer())
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(options.sample_ratio)),
        resource=Resource.create({"service.name": service, **options.attributes}),
        shutdown_on_exit=False,
    )
    for sink in sinks:
        provider.add_span_processor(BatchSpanProcessor(sink))
    return Telemetry(provider.get_tracer("wavepp"), provider, file)


def context_from_traceparent(traceparent: str | None) -> Context | None:
    """The context that a W3C `traceparent` names; None when it is absent, malformed or too long."""
    if not traceparent or len(traceparent) > TRACEPARENT_CHARS_MAX:
        return None
    context = _PROPAGATOR.extract({_TRACEPARENT: traceparent}, context=Context())
    return context if trace.get_current_span(context).get_span_context().is_valid else None


def traceparent_of(span: Span) -> str | None:
    """The `traceparent` to send along so that spans elsewhere become children of `span`; None for a no-op span."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier.get(_TRACEPARENT)


def start_span(
    tracer: Tracer,
    name: str,
    parent: Context | None,
    *,
    start_ns: int | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    links: Sequence[Context] = (),
    kind: SpanKind = SpanKind.INTERNAL,
) -> Span:
    """A span below `parent`, or the root of a new trace when that is None. The caller ends it, in a `finally`.

    `start_ns`: nanoseconds since the Unix epoch, now when None. `links`: contexts of other traces that belong to it.
    """
    return tracer.start_span(
        name,
        # An empty context, not None: None would mean "whatever span happens to be current".
        context=parent if parent is not None else Context(),
        kind=kind,
        attributes=attributes,
        links=[Link(trace.get_current_span(context).get_span_context()) for context in links],
        start_time=start_ns,
    )


def record_span(
    tracer: Tracer,
    name: str,
    parent: Context | None,
    start_ns: int,
    end_ns: int,
    *,
    attributes: Mapping[str, AttributeValue] | None = None,
    links: Sequence[Context] = (),
    error: str | None = None,
) -> None:
    """Write a span of what is over. Times are nanoseconds since the Unix epoch; `error` marks it as failed."""
    span = start_span(tracer, name, parent, start_ns=start_ns, attributes=attributes, links=links)
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(end_time=max(start_ns, end_ns))


def context_of(span: Span) -> Context:
    """The context to give as `parent` to the children of `span`."""
    return trace.set_span_in_context(span, Context())


def _open(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise StartupError(f"cannot write traces to {path}: {error.strerror or error}") from error
