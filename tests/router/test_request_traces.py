"""The traces of requests, and their spans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from wavepp.core.directory.reuse_endpoint import ReuseExplanation
from wavepp.core.ids import RequestId
from wavepp.core.limits import REQUEST_ID_BYTES_MAX
from wavepp.core.router.requests import FinishReason, RequestOutcome, Times
from wavepp.core.waves.types import ChosenToken
from wavepp.infra.metrics import Metrics
from wavepp.infra.telemetry import Telemetry, TracingOptions, setup_telemetry
from wavepp.router import tracing as tracing_module
from wavepp.router.dispatch_driver import DispatchDriver
from wavepp.router.leadership import Leadership
from wavepp.router.metrics import export_metrics
from wavepp.router.tracing import Tracing

DRIVER = cast(DispatchDriver, SimpleNamespace(wall_ns=lambda ms: int(ms * 1e6)))
OUTCOME = RequestOutcome(
    request=RequestId("a"),
    tokens=(ChosenToken(1, 0.0),),
    finish_reason=FinishReason.LENGTH,
    prompt_tokens=8,
    cached_tokens=0,
    computed_tokens=8,
    reuse=ReuseExplanation(8, 0, 0, 0, 0, None),
    waits=0,
    waited_for=(None, None),
    waves=1,
    attempts=1,
    times=Times(1.0, 2.0, 3.0, 4.0, 5.0),
)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(spans: InMemorySpanExporter) -> Telemetry:
    return setup_telemetry("router", TracingOptions(), exporters=[spans])


async def test_what_waits_when_the_router_stops_is_written(spans: InMemorySpanExporter, telemetry: Telemetry) -> None:
    tracing = Tracing(telemetry)
    for _ in range(2):
        tracing.begin("", "a").finished(OUTCOME, (), DRIVER)
    tracing.write_rest()
    telemetry.shutdown()
    names = [span.name for span in spans.get_finished_spans()]
    assert sorted(names) == sorted(["queue", "admission", "result", "prefill"] * 2)


async def test_an_endless_request_id_is_cut(spans: InMemorySpanExporter, telemetry: Telemetry) -> None:
    tracing = Tracing(telemetry)
    tracing.begin("", "x" * 1_000_000).failed(ValueError())
    telemetry.shutdown()
    (span,) = spans.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["wavepp.request_id"] == "x" * REQUEST_ID_BYTES_MAX


async def test_traces_that_nobody_wrote_in_time_end_and_are_counted(
    spans: InMemorySpanExporter, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_module, "FINISHED_MAX", 1)
    tracing, metrics = Tracing(telemetry), Metrics()
    export_metrics(metrics, cast(Leadership, SimpleNamespace(driver=None, leading=True)), tracing)
    for _ in range(3):
        tracing.begin("", "a").finished(OUTCOME, (), DRIVER)
    assert metrics.registry.get_sample_value("wavepp_dropped_traces_total") == 2
    telemetry.shutdown()
    assert [span.name for span in spans.get_finished_spans()] == ["prefill", "prefill"]
