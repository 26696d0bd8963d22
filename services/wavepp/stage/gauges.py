"""A stage's numbers for Prometheus, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from wavepp.infra.metrics import Metrics
from wavepp.stage.worker import StageWorker


def export_gauges(metrics: Metrics, worker: StageWorker) -> None:
    """Register gauges that look at the worker at scrape time (from the metrics thread: plain reads of counters)."""
    pools = metrics.gauge("pool", "blocks", "Entries of a pool by state.", ["pool", "state"])
    for name, usage in worker.sequencer.cache.usage().items():
        if not usage.capacity:
            continue
        for state in ("capacity", "free", "cached", "pinned", "owned", "reserved"):
            pools.labels(name, state).set_function(_pool_reader(worker, name, state))
    waves = metrics.gauge("waves_queued", "waves", "Waves on this stage that are not done.")
    waves.set_function(lambda: worker.sequencer.waves_queued)
    done = metrics.gauge("waves_done", "waves", "Waves done since the start.")
    done.set_function(lambda: worker.sequencer.waves_done)
    busy = metrics.gauge("executor_busy", "seconds", "Time that the executor has run jobs.")
    busy.set_function(lambda: worker.executor.busy_ns / 1e9)
    leases = metrics.gauge("leases", "leases", "Grants that hold something here.")
    leases.set_function(lambda: len(worker.sequencer.grants))
    epoch = metrics.gauge("pipeline_epoch", "number", "The pipeline epoch that this stage holds.")
    epoch.set_function(lambda: worker.sequencer.epoch)


def _pool_reader(worker: StageWorker, pool: str, state: str) -> Callable[[], float]:
    def read() -> float:
        return float(getattr(worker.sequencer.cache.usage()[pool], state))

    return read
