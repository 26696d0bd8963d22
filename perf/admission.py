"""Admission latency: from the prompt's keys until every stage has granted it, beside the time of an etcd transaction.

The model is emulated: a stage sleeps --step-ms for each request, so that neither computing nor a machine that is full
disturbs what is measured (with 0 the clients load it as far as it goes). Router, directory, stages and etcd, which
writes to disk, are real processes.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perf.clusters import BLOCK_TOKENS, VOCABULARY, cluster, emulated, parser
from perf.etcd_probe import EtcdProbe
from perf.load import Answered, Prompts, for_seconds, run_closed_loop
from perf.machine import Load, LoadWatch
from perf.report import Cell, Goal, finish, table
from perf.stats import Spread, spread

PROMPT_TOKENS: Final = 4096
SHARED_TOKENS: Final = 3712
"""90 % in whole blocks."""
PREFIXES: Final = 8
GOAL_MS: Final = 10.0
BLOCKS: Final = 4096
"""Room for the shared prefixes and for 64 requests; what is left of earlier suffixes is evicted."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell. Times in milliseconds; `waited` requests had no room at first and are in none of them."""

    stages: int
    clients: int
    per_second: float
    cached_share: float
    waited: int
    queue: Spread
    ask: Spread
    admission: Spread
    etcd: Spread
    load: Load

    def row(self) -> list[Cell]:
        """For the table."""
        a, e = self.admission, self.etcd
        return [
            f"{self.stages} (emulated)",
            self.clients,
            a.count,
            self.waited,
            round(self.per_second, 1),
            f"{100 * self.cached_share:.1f} %",
            self.queue.p50,
            self.queue.p99,
            self.ask.p50,
            self.ask.p99,
            a.p50,
            a.p99,
            e.p50,
            e.p99,
            f"{self.load.own_cores:.2f} + {self.load.other_cores:.2f}",
        ]

    def goal(self) -> Goal:
        """p99 at most the goal and what etcd took."""
        what = f"admission p99, {self.stages} emulated stages, {self.clients} clients"
        return Goal(what, self.admission.p99, GOAL_MS + self.etcd.p99, "ms")

    def json(self) -> dict[str, object]:
        """For the results file."""
        spreads = {name: getattr(self, name).json() for name in ("queue", "ask", "admission", "etcd")}
        counts = {name: getattr(self, name) for name in ("stages", "clients", "per_second", "cached_share", "waited")}
        return {**counts, **spreads, "load": self.load.json()}


HEAD: Final = (
    *("stages", "clients", "requests", "waited", "req/s", "cached", "queue p50", "p99", "asked p50", "p99"),
    *("admission p50", "p99", "etcd p50", "p99", "cores own + others"),
)


def measure(stages: int, clients: list[int], seconds: float, step_ms: float, seed: int) -> list[Measured]:
    """One cluster, one cell after the other."""
    measured = []
    prompts = Prompts(VOCABULARY, seed)
    token_us = 1e3 * step_ms / (PROMPT_TOKENS - SHARED_TOKENS)
    flags = ("--blocks", str(BLOCKS))
    with (
        tempfile.TemporaryDirectory() as home,
        cluster(emulated(Path(home), stages, token_us), stages, stage=flags) as started,
    ):
        prefixes = [prompts.fresh(SHARED_TOKENS) for _ in range(PREFIXES)]
        run_closed_loop(started.address, PREFIXES, iter([p + prompts.fresh(BLOCK_TOKENS) for p in prefixes]))
        for count in clients:
            watch = LoadWatch()
            with EtcdProbe(started.etcd_endpoints) as probe:
                answered = run_closed_loop(
                    started.address, count, for_seconds(lambda: prompts.cached(prefixes, PROMPT_TOKENS), seconds)
                )
                load = watch.load()
            measured.append(_cell(stages, count, answered, probe.times_ms, load))
    return measured


def _cell(stages: int, clients: int, answered: list[Answered], etcd_ms: list[float], load: Load) -> Measured:
    had_room = [a.response.timing for a in answered if not a.response.reuse.waits and a.response.attempts == 1]
    responses = [a.response for a in answered]
    return Measured(
        stages=stages,
        clients=clients,
        per_second=len(answered) / load.seconds,
        cached_share=sum(r.cached_tokens for r in responses) / sum(r.prompt_tokens for r in responses),
        waited=len(answered) - len(had_room),
        queue=spread([t.queue_ms for t in had_room]),
        ask=spread([t.admission_ms for t in had_room]),
        admission=spread([t.queue_ms + t.admission_ms for t in had_room]),
        etcd=spread(etcd_ms),
        load=load,
    )


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    stages, clients, seconds = arguments.stages, arguments.clients, arguments.seconds
    if arguments.quick:
        stages, clients, seconds = stages[:1], clients[:1], min(seconds, 2.0)
    watch = LoadWatch()
    measured = [
        cell for count in stages for cell in measure(count, clients, seconds, arguments.step_ms, arguments.seed)
    ]
    print(f"{PROMPT_TOKENS}-token prompts in closed loop; emulated stages, {arguments.step_ms:g} ms a request; in ms")
    print("queue: keys computed -> asked for; asked: -> granted; admission: both, of requests that had room")
    print(table(HEAD, [cell.row() for cell in measured]))
    goals = [cell.goal() for cell in measured]
    finish("admission", vars(arguments), {"cells": [c.json() for c in measured]}, goals, watch.load())


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--stages", type=int, nargs="+", default=[2, 8])
    made.add_argument("--clients", type=int, nargs="+", default=[16, 64])
    made.add_argument("--seconds", type=float, default=30.0, help="of each cell")
    made.add_argument("--step-ms", type=float, default=20.0, help="what a request takes on each emulated stage")
    return made.parse_args()


if __name__ == "__main__":
    main()
