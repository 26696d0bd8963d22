"""A router's numbers for Prometheus, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from wavepp.core.router.dispatcher import Dispatcher
from wavepp.infra.metrics import Metrics
from wavepp.router.leadership import Leadership
from wavepp.router.tracing import Tracing


def export_metrics(metrics: Metrics, leadership: Leadership, tracing: Tracing) -> None:
    """Register metrics that look at the dispatcher at scrape time (from the metrics thread: plain reads)."""

    def read(of: Callable[[Dispatcher], int]) -> Callable[[], float]:
        return lambda: float(of(leadership.driver.dispatcher)) if leadership.driver else 0.0

    requests = metrics.gauge("requests", "requests", "Requests in the router by state.", ["state"])
    requests.labels("queued").set_function(read(lambda d: d.queued))
    requests.labels("admitting").set_function(read(lambda d: d.admitting))
    requests.labels("running").set_function(read(lambda d: d.running))
    ended = {"done": read(lambda d: d.requests_done), "failed": read(lambda d: d.requests_failed)}
    metrics.counter("ended", "requests", "Requests ended, by outcome.", ended, "outcome")
    waiting = metrics.gauge("waiting", "requests", "Granted requests with prompt tokens that are in no wave yet.")
    waiting.set_function(read(lambda d: d.waiting_requests))
    tokens = metrics.gauge("waiting", "tokens", "Their prompt tokens that are in no wave yet.")
    tokens.set_function(read(lambda d: d.waiting_tokens))
    waves = metrics.gauge("waves_in_flight", "waves", "Waves issued and not done.")
    waves.set_function(read(lambda d: d.waves_in_flight))
    metrics.counter("done", "waves", "Waves done.", read(lambda d: d.waves_done))
    epoch = metrics.gauge("pipeline_epoch", "number", "The pipeline epoch that all stages hold.")
    epoch.set_function(read(lambda d: d.epoch))
    leading = metrics.gauge("leading", "bool", "1 while this router leads its pipeline.")
    leading.set_function(lambda: float(leadership.leading))
    text = "Traces that lack their inner spans: too many waited, or they could not be written."
    metrics.counter("dropped", "traces", text, lambda: tracing.dropped)
