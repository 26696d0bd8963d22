"""Metrics: their names, their endpoint, and the event loop's lag."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.request

import pytest

from wavepp.infra.errors import StartupError
from wavepp.infra.metrics import Metrics, watch_loop_lag


def fetch(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        return str(response.read().decode())


async def test_endpoint_serves_named_metrics_and_the_process_own() -> None:
    metrics = Metrics()
    metrics.counter("prefill", "tokens", "Tokens.", lambda: 5)
    metrics.gauge("queue", "requests", "Waiting.").set(2)
    metrics.histogram("step", "seconds", "Steps.", buckets=(0.1, 1.0)).observe(0.5)
    port = metrics.serve("127.0.0.1", 0)
    try:
        text = await asyncio.to_thread(fetch, port)
    finally:
        metrics.close()
    for line in (
        "# TYPE wavepp_prefill_tokens_total counter",
        "wavepp_prefill_tokens_total 5.0",
        "wavepp_queue_requests 2.0",
        'wavepp_step_seconds_bucket{le="1.0"} 1.0',
        "process_resident_memory_bytes ",
    ):
        assert line in text


def test_a_counter_says_what_its_owner_has_counted_by_then() -> None:
    counted = {"sent": 0, "received": 7}
    metrics = Metrics()
    reads = {"sent": lambda: counted["sent"], "received": lambda: counted["received"]}
    metrics.counter("link", "frames", "Frames.", reads, "direction")
    found = metrics.registry.get_sample_value
    assert found("wavepp_link_frames_total", {"direction": "sent"}) == 0
    counted["sent"] = 3
    assert found("wavepp_link_frames_total", {"direction": "sent"}) == 3
    assert found("wavepp_link_frames_total", {"direction": "received"}) == 7


def test_a_name_can_be_given_once() -> None:
    metrics = Metrics()
    metrics.counter("done", "waves", "Waves.", lambda: 0)
    with pytest.raises(ValueError, match="wavepp_done_waves_total"):
        metrics.counter("done", "waves", "Waves.", lambda: 0)


def test_endpoint_answers_while_the_event_loop_is_blocked() -> None:
    metrics = Metrics()
    port = metrics.serve("127.0.0.1", 0)

    async def blocked() -> str:
        return fetch(port)  # blocks the loop, on purpose

    try:
        assert "process_cpu_seconds_total" in asyncio.run(blocked())
    finally:
        metrics.close()


def test_port_in_use_is_a_startup_error_and_a_closed_one_is_free_again() -> None:
    first, second = Metrics(), Metrics()
    port = first.serve("127.0.0.1", 0)
    with pytest.raises(StartupError, match=rf"127.0.0.1:{port}: Address already in use"):
        second.serve("127.0.0.1", port)
    first.close()
    first.close()
    assert second.serve("127.0.0.1", port) == port
    second.close()


def test_no_name_server_is_asked_for_the_name_of_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_name: str = "") -> str:
        raise AssertionError("that takes as long as name servers take")

    monkeypatch.setattr(socket, "getfqdn", asked)
    monkeypatch.setattr(socket, "gethostbyaddr", asked)
    metrics = Metrics()
    assert metrics.serve("127.0.0.1", 0) > 0
    metrics.close()


def test_two_registries_do_not_know_each_other() -> None:
    for _ in range(2):
        Metrics().gauge("queue", "requests", "Waiting.")


async def test_lag_of_a_blocked_loop_is_seen() -> None:
    metrics = Metrics()
    task = asyncio.create_task(watch_loop_lag(metrics, period_s=0.01))
    count = "wavepp_event_loop_lag_seconds_count"
    async with asyncio.timeout(5):
        while not metrics.registry.get_sample_value(count):  # noqa: ASYNC110 - it offers no event
            await asyncio.sleep(0.005)
        time.sleep(0.12)  # noqa: ASYNC251 - the fault to be measured
        seen = metrics.registry.get_sample_value(count)
        while metrics.registry.get_sample_value(count) == seen:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    task.cancel()
    slow = metrics.registry.get_sample_value("wavepp_event_loop_lag_seconds_bucket", {"le": "0.05"})
    total = metrics.registry.get_sample_value(count)
    assert slow is not None
    assert total is not None
    assert total - slow >= 1
