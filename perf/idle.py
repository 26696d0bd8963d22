"""What processes cost while nobody asks for anything, and what asking them whether they are ready costs.

Two routers, two directories and the stages (emulated, or --model), each asked as the image's health check asks, and as
often. A process' own time includes that of answering.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from perf.clusters import cluster, emulated, parser, pids_of, status
from perf.machine import LoadWatch, cpu_s
from perf.report import Cell, Goal, finish, table
from perf.stats import percentile

from wavepp.cli.local.cluster import LocalCluster
from wavepp.cli.mesh import probe

ROOT: Final = Path(__file__).parents[1]
SETTLE_S: Final = 10.0
"""Connections, leases and imports of the start are over by then."""
GOAL_TOGETHER_PERCENT: Final = 2.0
GOAL_PROBE_MS: Final = 50.0
QUIET: Final = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]


@dataclass(slots=True)
class Idle:
    """One process over the window. `own_s`: its CPU time; `probes_s`: that of each probe, start to end."""

    name: str
    pid: int
    port: int
    own_s: float = 0.0
    probes_s: list[float] = field(default_factory=list)
    unready: int = 0

    def own_percent(self, window_s: float) -> float:
        """Of a core."""
        return 100 * self.own_s / window_s

    def together_percent(self, window_s: float) -> float:
        """The process and its probes, of a core."""
        return 100 * (self.own_s + sum(self.probes_s)) / window_s

    def row(self, window_s: float) -> list[Cell]:
        """For the table; etcd has no port and no probe of ours."""
        own = round(self.own_percent(window_s), 2)
        if not self.probes_s:
            return [self.name, own, None, None, None, own]
        return [
            self.name,
            own,
            round(1000 * percentile(self.probes_s, 0.5), 1),
            round(1000 * max(self.probes_s), 1),
            round(60 * len(self.probes_s) / window_s, 1),
            round(self.together_percent(window_s), 2),
        ]


HEAD: Final = ("process", "own CPU %", "probe CPU ms", "largest", "probes a minute", "together %")


def shipped_interval_s() -> float:
    """Between two probes of a container, as the Dockerfile says."""
    found = re.search(r"^HEALTHCHECK --interval=(\d+)s", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def ask(process: Idle) -> None:
    """One probe, as the image runs it."""
    command = [sys.executable, "-IS", str(probe.__file__), "127.0.0.1", str(process.port)]
    child = os.posix_spawn(command[0], command, os.environ, file_actions=QUIET)
    _, code, used = os.wait4(child, 0)
    process.probes_s.append(used.ru_utime + used.ru_stime)
    process.unready += code != 0


def processes_of(started: LocalCluster) -> list[Idle]:
    """All that run, etcd included."""
    ports = {
        p.name: p.arguments[p.arguments.index("--bind-port") + 1] for p in (*started.directories, *started.routers)
    }
    ports |= {f"stage-{s.stage}": s.address.rpartition(":")[2] for s in status(started.address).stages}
    return [Idle(name, pid, int(ports.get(name, 0))) for name, pid in pids_of(started).items()]


def measure(processes: list[Idle], seconds: float, interval_s: float) -> float:
    """Watch for about so long; returns how long it was. Probes are spread over the interval."""
    for process in processes:
        process.own_s = -cpu_s(process.pid)
    probed = [process for process in processes if process.port]
    began = time.monotonic()
    for count in range(round(seconds / interval_s) * len(probed)):
        due = began + count * interval_s / len(probed)
        time.sleep(max(0.0, due - time.monotonic()))
        ask(probed[count % len(probed)])
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    window_s = time.monotonic() - began
    for process in processes:
        process.own_s += cpu_s(process.pid)
    return window_s


def main() -> None:
    """The program."""
    arguments = _arguments()
    if arguments.quick:
        arguments.seconds = 6.0
    watch = LoadWatch()
    stage = ("--link", arguments.link) if arguments.link else ()
    each = arguments.each
    with tempfile.TemporaryDirectory() as home:
        model = str(arguments.model or emulated(Path(home), arguments.stages, 20.0))
        with cluster(model, arguments.stages, stage=stage, routers=each, directories=each) as started:
            processes = processes_of(started)
            time.sleep(0.0 if arguments.quick else SETTLE_S)
            window_s = measure(processes, arguments.seconds, shipped_interval_s())
    print(table(HEAD, [process.row(window_s) for process in processes]))
    ours = [process for process in processes if process.port]
    goals = [Goal(f"{p.name}, with its probe", p.together_percent(window_s), GOAL_TOGETHER_PERCENT, "%") for p in ours]
    probes_ms = [1000 * percentile(process.probes_s, 0.5) for process in ours]
    goals.append(Goal("probe, the worst median", max(probes_ms), GOAL_PROBE_MS, "ms"))
    goals.append(Goal("not ready", sum(process.unready for process in ours), 0, "answers"))
    results = {process.name: dict(zip(HEAD, process.row(window_s), strict=True)) for process in processes}
    finish("idle", vars(arguments), results, goals, watch.load())


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--seconds", type=float, default=60.0)
    made.add_argument("--stages", type=int, default=3)
    made.add_argument("--each", type=int, default=2, help="routers, and directories")
    made.add_argument("--link", choices=("ucx", "socket"))
    made.add_argument("--model", type=Path, help="checkpoint directory; emulated stages if absent")
    return made.parse_args()


if __name__ == "__main__":
    main()
