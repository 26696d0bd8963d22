"""Prefill with a real model on two stages of one thread each, next to its bare runner and to plain transformers.

In two parts, each several times over. In *windows* one contender after the other does a workload, for rates, latencies
and utilisation. In *turns* the mesh and the pair of bare processes do theirs at once, each stopped every other moment:
the same step of a lone process can take twice as long a minute later where a machine is shared, and only turns tell a
difference of some percent from that.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from perf.bare import BareProcess, Kind, Work, run_together
from perf.clusters import add_model, cluster, model_info, model_path, parser, pids_of, timeline
from perf.load import Prompts, run_closed_loop
from perf.machine import LoadWatch, cpu_s
from perf.report import Cell, Goal, finish, table
from perf.stats import Step, percentile, utilisation
from perf.turns import Side, by_turns

from wavepp.cli.local.cluster import LocalCluster
from wavepp.core.waves.policy_factory import POLICY_NAMES

STAGES: Final = 2
UTILISATION_GOAL: Final = 0.90
BARE_GOAL: Final = 0.90
BUSY_FROM: Final = 4
"""From this concurrency on the pipeline can be full; the goals that need it apply there."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`prompts` of `tokens` tokens, the first `shared` of them the same and computed before. `alone`: of as many
    prompts are enough where they go one after another anyway."""

    name: str
    prompts: int
    tokens: int
    shared: int
    alone: int


WORKLOADS: Final = (
    Workload("cold 16 x 1,024", 16, 1024, 0, 6),
    Workload("cold 4 x 4,096", 4, 4096, 0, 2),
    Workload("16 x 4,096, 90 % shared", 16, 4096, 3686, 6),
)
QUICK: Final = (Workload("cold 4 x 256", 4, 256, 0, 2), Workload("4 x 512, 90 % shared", 4, 512, 460, 2))


@dataclass(slots=True)
class Series:
    """What one contender did on one workload, a value for each window."""

    workload: str
    contender: str
    concurrency: int
    tokens_per_s: list[float] = field(default_factory=list)
    first_token_p50_s: list[float] = field(default_factory=list)
    first_token_p95_s: list[float] = field(default_factory=list)
    utilisation: list[float] = field(default_factory=list)
    stage_cpu: list[float] = field(default_factory=list)
    cpu_per_1000_s: list[float] = field(default_factory=list)
    other_cores: list[float] = field(default_factory=list)
    of_plain: list[float] = field(default_factory=list)
    """Of the mesh: its tokens/s over those of plain transformers in the window that came next."""
    of_pair: list[float] = field(default_factory=list)
    """Of the mesh: its tokens/s over those of the bare pair, by turns."""

    def row(self) -> list[Cell]:
        """Medians over the windows."""

        def middle(values: list[float]) -> float | None:
            return statistics.median(values) if values else None

        return [
            self.workload,
            self.contender,
            self.concurrency,
            len(self.tokens_per_s),
            middle(self.tokens_per_s),
            f"{min(self.tokens_per_s):,.0f} to {max(self.tokens_per_s):,.0f}",
            middle(self.first_token_p50_s),
            middle(self.first_token_p95_s),
            middle(self.utilisation),
            middle(self.stage_cpu),
            middle(self.cpu_per_1000_s),
            middle(self.other_cores),
        ]


HEAD: Final = (
    *("workload", "what", "at once", "windows", "tokens/s", "range", "first token p50 s", "p95 s"),
    *("utilisation", "its CPU", "CPU s/1,000 tokens", "other cores"),
)
MESH: Final = "WavePP, 2 stages x 1 thread"
PAIR: Final = "bare runner, 2 processes x 1 thread"
SINGLE: Final = "bare runner, 1 process x 2 threads"
PLAIN: Final = "plain transformers, 2 threads"


class Contest:
    """The contenders, all started; `round` lets each do every workload once."""

    def __init__(self, mesh: LocalCluster, processes: dict[str, list[BareProcess]], prompts: Prompts) -> None:
        self._mesh = mesh
        self._processes = processes
        self._prompts = prompts
        self._series: dict[tuple[str, str, int], Series] = {}

    @property
    def series(self) -> list[Series]:
        """In the order in which they were first measured."""
        return list(self._series.values())

    def round(self, workloads: Sequence[Workload], concurrencies: Sequence[int]) -> None:
        """Every window once; plain transformers after each of the mesh."""
        for workload, concurrency in _cells(workloads, concurrencies):
            mesh = self._run_mesh(workload, concurrency)
            plain = self._run_bare(workload, PLAIN)
            mesh.of_plain.append(mesh.tokens_per_s[-1] / plain.tokens_per_s[-1])
        for workload in workloads:
            for contender in (PAIR, SINGLE):
                self._run_bare(workload, contender)

    def turns(self, workloads: Sequence[Workload], concurrencies: Sequence[int]) -> None:
        """The mesh and the bare pair by turns, in every cell with enough requests at once."""
        for workload, concurrency in _cells(workloads, concurrencies):
            if concurrency >= BUSY_FROM:
                self._of(workload, MESH, concurrency).of_pair.append(self._by_turns(workload, concurrency))

    def _of(self, workload: Workload, contender: str, concurrency: int) -> Series:
        key = (workload.name, contender, concurrency)
        return self._series.setdefault(key, Series(workload.name, contender, concurrency))

    def _run_mesh(self, workload: Workload, concurrency: int) -> Series:
        address, (prompts, _) = self._mesh.address, self._mesh_prompts(workload)
        pids = pids_of(self._mesh)
        series = self._of(workload, MESH, concurrency)
        watch, cpu_before = LoadWatch(), {name: cpu_s(pid) for name, pid in pids.items()}
        begin_ns = time.time_ns()
        answered = run_closed_loop(address, concurrency, iter(prompts))
        end_ns = time.time_ns()
        seconds = (end_ns - begin_ns) / 1e9
        used_s = {name: cpu_s(pid) - cpu_before[name] for name, pid in pids.items()}
        series.other_cores.append(watch.load().other_cores)
        series.cpu_per_1000_s.append(1000 * sum(used_s.values()) / (workload.prompts * workload.tokens))
        first_token_s = [a.latency_s for a in answered]
        series.tokens_per_s.append(workload.prompts * workload.tokens / seconds)
        series.first_token_p50_s.append(percentile(first_token_s, 0.5))
        series.first_token_p95_s.append(percentile(first_token_s, 0.95))
        busy = utilisation(_steps(address), begin_ns, end_ns)
        slower = max(busy, key=lambda stage: busy[stage])
        series.utilisation.append(busy[slower])
        series.stage_cpu.append(used_s[f"stage-{slower}"] / seconds)
        return series

    def _by_turns(self, workload: Workload, concurrency: int) -> float:
        """Tokens/s of the mesh over those of the pair, for the same number of prompts."""
        pair, address = self._processes[PAIR], self._mesh.address
        prompts, shared = self._mesh_prompts(workload)
        # What the pair is to have in its cache it computes before.
        run_together(pair, Work((shared + self._prompts.fresh(1),) * len(pair), 0))
        own = tuple(self._prompts.cached([shared], workload.tokens) for _ in prompts)
        pids = [pid for name, pid in pids_of(self._mesh).items() if name != "etcd"]
        mesh_s, pair_s = by_turns(
            [
                Side(lambda: run_closed_loop(address, concurrency, iter(prompts)), pids),
                Side(lambda: run_together(pair, Work(own, workload.shared, computed=True)), [p.pid for p in pair]),
            ]
        )
        return pair_s / mesh_s

    def _mesh_prompts(self, workload: Workload) -> tuple[list[bytes], bytes]:
        """Prompts for the mesh, and what they share, which it has in its cache now."""
        shared = self._prompts.fresh(workload.shared)
        if workload.shared:
            run_closed_loop(self._mesh.address, 1, iter([shared + self._prompts.fresh(1)]))
        return [self._prompts.cached([shared], workload.tokens) for _ in range(workload.prompts)], shared

    def _run_bare(self, workload: Workload, contender: str) -> Series:
        processes = self._processes[contender]
        shared = self._prompts.fresh(workload.shared)
        count = workload.alone * len(processes)
        prompts = tuple(self._prompts.cached([shared], workload.tokens) for _ in range(count))
        work = Work(prompts, workload.shared)
        series = self._of(workload, contender, len(processes))
        watch = LoadWatch()
        outcomes = run_together(processes, work)
        series.other_cores.append(watch.load().other_cores)
        series.cpu_per_1000_s.append(1000 * sum(o.cpu_s for o in outcomes) / (count * workload.tokens))
        first_token_s = [s for o in outcomes for s in o.seconds]
        series.tokens_per_s.append(sum(len(o.seconds) * workload.tokens / sum(o.seconds) for o in outcomes))
        series.first_token_p50_s.append(percentile(first_token_s, 0.5))
        series.first_token_p95_s.append(percentile(first_token_s, 0.95))
        return series


def _steps(address: str) -> Iterator[Step]:
    for wave in timeline(address).waves:
        for step in wave.steps:
            yield Step(step.stage, step.start_unix_ns, step.duration_ns)


def goals_of(series: Sequence[Series]) -> list[Goal]:
    """Of every cell of the mesh: medians over the rounds."""
    goals = []
    for cell in (s for s in series if s.contender == MESH):
        where = f"{cell.workload}, {cell.concurrency} at once"
        if cell.concurrency >= BUSY_FROM:
            busy = statistics.median(cell.utilisation)
            goals.append(Goal(f"utilisation, {where}", busy, UTILISATION_GOAL, "", at_least=True))
            pair = statistics.median(cell.of_pair)
            goals.append(Goal(f"of two bare processes, {where}", pair, BARE_GOAL, "x", at_least=True))
        plain = statistics.median(cell.of_plain)
        goals.append(Goal(f"of plain transformers, {where}", plain, 1.0, "x", at_least=True))
    return goals


def ratio_rows(series: Sequence[Series]) -> list[list[Cell]]:
    """Tokens/s of the mesh over those of the others, every round."""
    return [
        [cell.workload, cell.concurrency, contender, statistics.median(ratios), " ".join(f"{r:.2f}" for r in ratios)]
        for cell in series
        for contender, ratios in ((PLAIN + ", next window", cell.of_plain), (PAIR + ", by turns", cell.of_pair))
        if ratios
    ]


def _cells(workloads: Sequence[Workload], concurrencies: Sequence[int]) -> list[tuple[Workload, int]]:
    return [(w, c) for w in workloads for c in sorted({min(c, w.prompts) for c in concurrencies})]


def main() -> None:
    """Measure, print, write."""
    arguments = _arguments()
    workloads: tuple[Workload, ...] = QUICK if arguments.quick else WORKLOADS
    rounds = 1 if arguments.quick else arguments.rounds
    if arguments.times > 1:
        times = arguments.times
        workloads = tuple(replace(w, name=f"{times} times {w.name}", prompts=times * w.prompts) for w in workloads)
    model = model_path(arguments.model)
    watch = LoadWatch()
    with contextlib.ExitStack() as stack:
        processes = _processes(stack, model, arguments.wave_tokens_max, max(w.tokens for w in workloads))
        flags = ("--wave-tokens-max", str(arguments.wave_tokens_max), "--link", arguments.link, "--threads", "1")
        mesh = stack.enter_context(cluster(str(model), STAGES, stage=flags, router=("--policy", arguments.policy)))
        contest = Contest(mesh, processes, Prompts(model_info(mesh.address).vocab_size, arguments.seed))
        # Not counted: first uses of buffers and kernels.
        warm_up = Contest(mesh, processes, Prompts(model_info(mesh.address).vocab_size, arguments.seed + 1))
        warm_up.round(QUICK, [max(arguments.concurrency)])
        for number in range(rounds):
            contest.round(workloads, arguments.concurrency)
            contest.turns(workloads, arguments.concurrency)
            print(f"round {number + 1} of {rounds} done, {watch.load().seconds:.0f} s since the start", flush=True)
    rows = [s.row() for s in contest.series]
    print(
        f"M = {arguments.wave_tokens_max}; tokens/s counts all prompt tokens, cached ones too; medians of the windows"
    )
    print("utilisation: time in steps of the busier stage / window; its CPU: of that process, in cores")
    print("CPU s/1,000 tokens: of all processes that took part, also of the prompt tokens")
    print(table(HEAD, rows), "\n")
    print("tokens/s of WavePP over those of others:")
    print(table(("workload", "at once", "of", "median", "rounds"), ratio_rows(contest.series)), "\n")
    results = {"series": [{n: getattr(s, n) for n in Series.__slots__} for s in contest.series]}
    finish("prefill", vars(arguments), results, goals_of(contest.series), watch.load())


def _processes(
    stack: contextlib.ExitStack, model: Path, wave_tokens_max: int, prompt_tokens: int
) -> dict[str, list[BareProcess]]:
    def start(kind: Kind, threads: int) -> BareProcess:
        process = BareProcess(kind, model, threads, wave_tokens_max, prompt_tokens)
        stack.callback(process.close)
        return process

    started = {
        PAIR: [start("runner", 1), start("runner", 1)],
        SINGLE: [start("runner", 2)],
        PLAIN: [start("transformers", 2)],
    }
    for processes in started.values():
        for process in processes:
            process.wait_ready()
    return started


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    add_model(made)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--times", type=int, default=1, help="so many times as many prompts: filling counts for less")
    made.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    made.add_argument("--wave-tokens-max", type=int, default=512, help="M")
    made.add_argument("--policy", choices=POLICY_NAMES, default="cost")
    made.add_argument("--link", choices=("ucx", "socket"), default="ucx")
    return made.parse_args()


if __name__ == "__main__":
    main()
