"""Tracing: parents come from messages only, times may lie in the past, and nothing costs when it is off."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from wavepp.infra.errors import StartupError
from wavepp.infra.telemetry import (
    Telemetry,
    TracingOptions,
    context_from_traceparent,
    context_of,
    record_span,
    setup_telemetry,
    start_span,
    traceparent_of,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-1] + "0"


@pytest.fixture(autouse=True)
def _no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def traced(spans: InMemorySpanExporter, ratio: float = 1.0) -> Telemetry:
    return setup_telemetry("router", TracingOptions(ratio, attributes={"stage": "2"}), exporters=[spans])


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "",
        "x",
        PARENT[:-3],
        PARENT.upper(),
        PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
        PARENT.replace("b7ad6b7169203331", "0" * 16),
        "ff" + PARENT[2:],
        PARENT + "-extra",
        PARENT + "x" * 10_000,
    ],
)
def test_malformed_traceparent_is_no_context(bad: str | None) -> None:
    assert context_from_traceparent(bad) is None


def test_span_continues_the_callers_trace_and_passes_it_on(spans: InMemorySpanExporter) -> None:
    telemetry = traced(spans)
    span = start_span(telemetry.tracer, "request", context_from_traceparent(PARENT))
    sent = traceparent_of(span)
    assert sent is not None
    assert sent[:36] == PARENT[:36]
    assert sent[36:52] != PARENT[36:52]
    start_span(telemetry.tracer, "child", context_of(span)).end()
    span.end()
    assert telemetry.shutdown()
    child, request = spans.get_finished_spans()
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT[36:52]
    assert child.parent is not None
    assert child.parent.span_id == span.get_span_context().span_id
    assert request.resource.attributes["service.name"] == "router"
    assert request.resource.attributes["stage"] == "2"


def test_span_without_a_parent_ignores_whatever_span_is_current(spans: InMemorySpanExporter) -> None:
    telemetry = traced(spans)
    ambient = start_span(telemetry.tracer, "ambient", None)
    with trace.use_span(ambient):
        start_span(telemetry.tracer, "own", None).end()
    telemetry.shutdown()
    (own,) = spans.get_finished_spans()
    assert own.parent is None
    assert own.context is not None
    assert own.context.trace_id != ambient.get_span_context().trace_id


def test_span_of_the_past_has_its_own_times_links_and_error(spans: InMemorySpanExporter) -> None:
    telemetry = traced(spans)
    link = context_from_traceparent(PARENT)
    assert link is not None
    record_span(telemetry.tracer, "step", None, 1_000, 2_000, attributes={"wave": 7}, links=[link], error="cut off")
    telemetry.shutdown()
    (step,) = spans.get_finished_spans()
    assert (step.start_time, step.end_time) == (1_000, 2_000)
    assert step.attributes is not None
    assert step.attributes["wave"] == 7
    assert [f"{found.context.span_id:016x}" for found in step.links] == [PARENT[36:52]]
    assert not step.status.is_ok
    assert step.status.description == "cut off"


@pytest.mark.parametrize(("ratio", "kept"), [(0.0, ["caller-keeps"]), (1.0, ["caller-keeps", "root"])])
def test_callers_sampling_decision_is_followed(spans: InMemorySpanExporter, ratio: float, kept: list[str]) -> None:
    telemetry = traced(spans, ratio)
    start_span(telemetry.tracer, "caller-keeps", context_from_traceparent(PARENT)).end()
    start_span(telemetry.tracer, "caller-drops", context_from_traceparent(UNSAMPLED)).end()
    start_span(telemetry.tracer, "root", None).end()
    telemetry.shutdown()
    assert [span.name for span in spans.get_finished_spans()] == kept


def test_tracing_is_off_by_default() -> None:
    telemetry = setup_telemetry("router", TracingOptions())
    assert not telemetry.enabled
    span = start_span(telemetry.tracer, "request", None)
    assert not span.is_recording()
    assert traceparent_of(span) is None
    assert telemetry.shutdown()


def test_callers_context_is_passed_on_even_when_tracing_is_off() -> None:
    span = start_span(setup_telemetry("router", TracingOptions()).tracer, "x", context_from_traceparent(PARENT))
    assert traceparent_of(span) == PARENT


def test_file_gets_a_json_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "traces.jsonl"
    telemetry = setup_telemetry("stage", TracingOptions(file=path))
    for name in "ab":
        start_span(telemetry.tracer, name, None).end()
    assert telemetry.shutdown()
    assert [json.loads(line)["name"] for line in path.read_text().splitlines()] == ["a", "b"]


def test_file_that_cannot_be_opened_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="cannot write traces"):
        setup_telemetry("stage", TracingOptions(file=tmp_path / "file" / "traces.jsonl"))


def test_collector_named_by_the_standard_variable_turns_tracing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    telemetry = setup_telemetry("router", TracingOptions())
    assert telemetry.enabled
    assert telemetry.shutdown()


def test_shutdown_does_not_wait_beyond_its_limit_for_a_stuck_exporter() -> None:
    release = threading.Event()

    class Stuck(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            release.wait(20)
            return SpanExportResult.SUCCESS

    telemetry = setup_telemetry("router", TracingOptions(), exporters=[Stuck()])
    start_span(telemetry.tracer, "x", None).end()
    try:
        assert telemetry.shutdown(timeout_s=0.1) is False
    finally:
        release.set()
