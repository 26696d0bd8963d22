"""Prometheus metrics: a registry for each process, served over HTTP without touching the event loop."""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from wavepp.infra.errors import StartupError

PREFIX: Final = "wavepp"
LOOP_LAG_PERIOD_S: Final = 0.25
_LAG_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

Read = Callable[[], float]
"""Looks at a number when it is scraped. Called from the metrics thread, so it may read only."""


class Metrics:
    """The metrics of one process, each named `wavepp_<name>_<unit>` (a counter's name ends in `_total` too).

    A name that is the unit, or ends in it, is not followed by it again. Beside these stand the client library's own
    `process_*` and `python_*`, under their usual names.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._server: tuple[WSGIServer, threading.Thread] | None = None

    def counter(self, name: str, unit: str, text: str, read: Read | Mapping[str, Read], label: str = "") -> None:
        """A number that only grows, kept by its owner: `wavepp_<name>_<unit>_total`.

        With a `label`, `read` has one function for each of the label's values.
        """
        self.registry.register(_ReadCounter(name, unit, text, {"": read} if callable(read) else read, label))

    def gauge(self, name: str, unit: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """A number that goes up and down: `wavepp_<name>_<unit>`."""
        return Gauge(name, text, labels, namespace=PREFIX, unit=unit, registry=self.registry)

    def histogram(
        self, name: str, unit: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]
    ) -> Histogram:
        """A distribution: `wavepp_<name>_<unit>`, with upper bounds `buckets` in that unit."""
        return Histogram(name, text, labels, namespace=PREFIX, unit=unit, registry=self.registry, buckets=buckets)

    def serve(self, host: str, port: int) -> int:
        """Serve `/metrics` from a daemon thread; returns the port. 0 asks for any free one, a negative port for none.

        Raises StartupError when the port cannot be had.
        """
        if port < 0:
            return port
        if self._server is not None:
            raise StartupError("metrics are being served already")
        try:
            server = _MetricsServer(host, port)
        except OSError as error:
            raise StartupError(f"cannot serve metrics on {host}:{port}: {error.strerror or error}") from error
        server.set_app(make_wsgi_app(self.registry))
        self._server = server, threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        self._server[1].start()
        return server.server_port

    def close(self) -> None:
        """Stop serving and free the port; blocks for at most half a second. Does nothing when not served."""
        server, self._server = self._server, None
        if server is not None:
            server[0].shutdown()
            server[0].server_close()
            server[1].join()


class _MetricsServer(socketserver.ThreadingMixIn, WSGIServer):
    """What `prometheus_client.start_http_server` starts, but that it does not ask name servers for its own name: while
    they cannot be reached, as in a container without a network, that takes 10 s.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__((host, port), _SilentHandler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass


class _ReadCounter(Collector):
    """What `Metrics.counter` registers."""

    def __init__(self, name: str, unit: str, text: str, reads: Mapping[str, Read], label: str) -> None:
        self._name = f"{PREFIX}_{name}"
        self._unit = unit
        self._text = text
        self._reads = reads
        self._labels = [label] if label else []

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels, unit=self._unit)
        for value, read in self._reads.items():
            family.add_metric([value] if self._labels else [], read())
        yield family


async def watch_loop_lag(metrics: Metrics, period_s: float = LOOP_LAG_PERIOD_S) -> None:
    """Measure for ever how late the event loop runs a timer; a task for the process' TaskOwner.

    `wavepp_event_loop_lag_seconds` is the distribution, `wavepp_event_loop_lag_last_seconds` the newest value.
    """
    distribution = metrics.histogram(
        "event_loop_lag", "seconds", "How late the event loop ran a timer.", buckets=_LAG_BUCKETS_S
    )
    last = metrics.gauge("event_loop_lag_last", "seconds", "How late the event loop ran the last timer.")
    while True:
        due = time.monotonic() + period_s
        await asyncio.sleep(period_s)
        lag_s = max(0.0, time.monotonic() - due)
        distribution.observe(lag_s)
        last.set(lag_s)
