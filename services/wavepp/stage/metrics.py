"""A stage's numbers for Prometheus, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from wavepp.infra.metrics import Metrics
from wavepp.stage.worker import StageWorker


def export_metrics(metrics: Metrics, worker: StageWorker) -> None:
    """Register metrics that look at the worker at scrape time (from the metrics thread: plain reads of counters)."""
    pools = metrics.gauge("pool", "blocks", "Entries of a pool by state.", ["pool", "state"])
    for name, usage in worker.sequencer.cache.usage().items():
        if not usage.capacity:
            continue
        for state in ("capacity", "free", "cached", "pinned", "owned", "reserved"):
            pools.labels(name, state).set_function(_pool_reader(worker, name, state))
    waves = metrics.gauge("waves_queued", "waves", "Waves on this stage that are not done.")
    waves.set_function(lambda: worker.sequencer.waves_queued)
    metrics.counter("done", "waves", "Waves done.", lambda: worker.sequencer.waves_done)
    executor, links = worker.executor, worker.neighbours
    metrics.counter("executor_busy", "seconds", "Time that steps have taken.", lambda: executor.busy_ns / 1e9)
    metrics.counter("computed", "tokens", "Tokens of the steps that this stage has run.", lambda: executor.tokens)
    frames = {"sent": lambda: links.counters.frames_sent, "received": lambda: links.counters.frames_received}
    metrics.counter("link", "frames", "Waves that went over links to other stages.", frames, "direction")
    nbytes = {"sent": lambda: links.counters.bytes_sent, "received": lambda: links.counters.bytes_received}
    metrics.counter("link", "bytes", "Size of these waves, headers and tensors.", nbytes, "direction")
    text = "Waves that had to wait until the next stage took one that it had."
    metrics.counter("link_credit", "waits", text, lambda: links.counters.credit_waits)
    leases = metrics.gauge("leases", "leases", "Grants that hold something here.")
    leases.set_function(lambda: len(worker.sequencer.grants))
    epoch = metrics.gauge("pipeline_epoch", "number", "The pipeline epoch that this stage holds.")
    epoch.set_function(lambda: worker.sequencer.epoch)


def _pool_reader(worker: StageWorker, pool: str, state: str) -> Callable[[], float]:
    def read() -> float:
        return float(getattr(worker.sequencer.cache.usage()[pool], state))

    return read
