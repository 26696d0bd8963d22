"""What tracing costs: throughput and router CPU with tracing off, sampled, and on for every request, interleaved.

There is no build without tracing to compare with, so what "off" costs is measured as the time of the calls that the
request's path makes then.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from opentelemetry.trace import NoOpTracer
from perf.clusters import BLOCK_TOKENS, HOME, cluster, model_info, parser, pids_of
from perf.load import Prompts, for_seconds, run_closed_loop
from perf.machine import LoadWatch, cpu_s
from perf.report import Cell, Goal, finish, table

from wavepp.cli.local.cluster import LocalCluster
from wavepp.core.ids import RequestId
from wavepp.infra.telemetry import Telemetry
from wavepp.router.tracing import Tracing

CLIENTS: Final = 16
PROMPT_TOKENS: Final = 1024
SAMPLED: Final = 0.1
OFF_GOAL_US: Final = 10.0
"""A hundredth of what a request costs the router; less cannot be told from noise."""


@dataclass(slots=True)
class Variant:
    """A cluster with one way of tracing, and its rounds."""

    name: str
    started: LocalCluster
    prompts: Prompts
    per_second: list[float] = field(default_factory=list)
    router_ms: list[float] = field(default_factory=list)

    def measure(self, seconds: float) -> None:
        """One round."""
        pid = pids_of(self.started)["router"]
        cpu_before, began = cpu_s(pid), time.monotonic()
        make = for_seconds(lambda: self.prompts.fresh(PROMPT_TOKENS), seconds)
        answered = run_closed_loop(self.started.address, CLIENTS, make)
        self.per_second.append(len(answered) / (time.monotonic() - began))
        self.router_ms.append(1e3 * (cpu_s(pid) - cpu_before) / len(answered))

    def row(self) -> list[Cell]:
        """Medians, and the range of the rounds."""
        rate, cpu = self.per_second, self.router_ms
        return [
            self.name,
            len(rate),
            statistics.median(rate),
            f"{min(rate):.0f} to {max(rate):.0f}",
            statistics.median(cpu),
            f"{min(cpu):.2f} to {max(cpu):.2f}",
        ]


def disabled_calls_us(times: int) -> float:
    """Microseconds that the calls on the path of one request take while tracing is off."""
    tracing = Tracing(Telemetry(NoOpTracer()))
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter_ns()
        for _ in range(times):
            trace = tracing.begin("", "request")
            _ = trace.traceparent
            trace.identify(RequestId("request"), PROMPT_TOKENS)
            _ = trace.recording
            trace.failed(RuntimeError())  # `finished` makes the same check, but needs an outcome
        best = min(best, (time.perf_counter_ns() - began) / 1e3 / times)
    return best


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    rounds, seconds = (1, 2.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    watch = LoadWatch()
    off_us = disabled_calls_us(2_000 if arguments.quick else 50_000)
    HOME.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        variants = [_variant(stack, *kind, arguments.seed) for kind in _kinds(HOME / f"perf-spans-{time.time_ns()}")]
        for _ in range(rounds):
            for variant in variants:
                variant.measure(seconds)
    print(f"{PROMPT_TOKENS}-token prompts, {CLIENTS} clients in closed loop, 2 emulated stages")
    head = ("tracing", "rounds", "req/s", "range", "router CPU ms/request", "range")
    rows = [variant.row() for variant in variants]
    print(table(head, rows))
    goals = [Goal("calls on a request's path with tracing off", off_us, OFF_GOAL_US, "us")]
    finish("tracing", vars(arguments), {"rows": rows, "disabled_us": off_us}, goals, watch.load())


def _kinds(spans: Path) -> list[tuple[str, tuple[str, ...]]]:
    def on(ratio: float) -> tuple[str, ...]:
        return ("--trace-file", f"{spans}-{ratio}.jsonl", "--trace-sample-ratio", str(ratio))

    return [("off", ()), (f"{100 * SAMPLED:.0f} % sampled", on(SAMPLED)), ("every request", on(1.0))]


def _variant(stack: contextlib.ExitStack, name: str, flags: tuple[str, ...], seed: int) -> Variant:
    if flags:
        stack.callback(Path(flags[1]).unlink, missing_ok=True)
    started = stack.enter_context(cluster("emulated", 2, stage=("--blocks", "2048"), router=flags))
    variant = Variant(name, started, Prompts(model_info(started.address).vocab_size, seed))
    run_closed_loop(started.address, CLIENTS, iter([variant.prompts.fresh(BLOCK_TOKENS) for _ in range(2 * CLIENTS)]))
    return variant


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=5, help="of each variant")
    made.add_argument("--seconds", type=float, default=8.0, help="of each round")
    return made.parse_args()


if __name__ == "__main__":
    main()
