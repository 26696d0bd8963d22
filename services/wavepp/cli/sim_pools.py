"""`wavepp sim trace` and `wavepp sim retention`: the whole mesh in virtual time, with caches that are too small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavepp.cli.sim import DEFAULT_PROFILE, JobsOption, ProfileOption, progress_bar
from wavepp.cli.terminal import errors_as_lines, stdout
from wavepp.core.errors import InvalidInputError
from wavepp.core.policy_factory import POLICY_NAMES, PolicyName

if TYPE_CHECKING:
    from rich.table import Table

    from wavepp.sim.retention import RetentionRuns
    from wavepp.sim.trace_replay import ReplayResult

PoliciesOption = Annotated[str, typer.Option(help="Wave policies, like mpu,cost.")]
StagesOption = Annotated[int, typer.Option(min=0, max=64, help="Pipeline depth; 0 = the profile's.")]
RunningOption = Annotated[int, typer.Option(min=1, max=4096, help="Requests that may hold a grant.")]


def trace(
    file: Annotated[Path, typer.Argument(help="Requests in Mooncake's format, JSON lines, perhaps in gzip.")],
    profile: ProfileOption = DEFAULT_PROFILE,
    policies: PoliciesOption = ",".join(POLICY_NAMES),
    speed: Annotated[float, typer.Option(min=0.01, max=1000.0, help="How many times as fast requests come.")] = 1.0,
    requests: Annotated[int, typer.Option(min=0, help="Only so many, from the start; 0 = all.")] = 0,
    stages: StagesOption = 0,
    pool_tokens: Annotated[int, typer.Option(min=0, help="What each stage's cache holds; 0 = the profile's.")] = 0,
    running_max: RunningOption = 256,
    jobs: JobsOption = 0,
) -> None:
    """Replay a trace of requests: real admission, caches, eviction and waiting, on stages that only take time."""
    from wavepp.sim.parallel import run_all
    from wavepp.sim.profile import load_profile
    from wavepp.sim.timed_mesh import TimedSetup
    from wavepp.sim.trace import TRACE_BLOCK_TOKENS, read_trace, timed_asks
    from wavepp.sim.trace_replay import replay

    with errors_as_lines("sim trace"):
        names, found = _policies(policies), load_profile(profile)
        arrivals = list(timed_asks(islice(read_trace(file), requests or None)))
        setups = [TimedSetup(found, name, TRACE_BLOCK_TOKENS, stages, pool_tokens, running_max) for name in names]
        with progress_bar("simulating") as progress:
            results = run_all(replay, [(arrivals, setup, speed) for setup in setups], jobs, progress)
        console = stdout()
        tokens = pool_tokens or found.pool_tokens
        console.print(
            f"simulated, profile {found.name}, {len(arrivals)} requests at {speed:g}x, pools of {tokens:,} tokens",
            soft_wrap=True,
        )
        console.print(_table(list(zip(names, results, strict=True))))


def retention(
    profile: ProfileOption = DEFAULT_PROFILE,
    policies: PoliciesOption = ",".join(POLICY_NAMES),
    rates: Annotated[str, typer.Option(help="Requests a second, like 0.5,1.0; Poisson arrivals.")] = "0.5,0.75,1.0",
    documents: Annotated[int, typer.Option(min=1, max=100_000, help="Long prefixes.")] = 64,
    prefix: Annotated[int, typer.Option(min=512, max=4_000_000, help="Tokens of each.")] = 131_072,
    question: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens that each request adds.")] = 4_096,
    skew: Annotated[float, typer.Option(min=0.0, max=10.0, help="The i-th document has weight 1 / i^skew.")] = 1.0,
    share: Annotated[float, typer.Option(min=0.01, max=10.0, help="Part of all prefixes that a pool holds.")] = 0.6,
    requests: Annotated[int, typer.Option(min=2, max=1_000_000)] = 1_000,
    stages: StagesOption = 0,
    running_max: RunningOption = 256,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each row; they draw the documents.")] = 5,
    jobs: JobsOption = 0,
) -> None:
    """Ask for long documents again and again: how often is a prefix still there (90 % of it or more)?"""
    from wavepp.sim.profile import load_profile
    from wavepp.sim.retention import Retention, retain_all
    from wavepp.sim.timed_mesh import TimedSetup
    from wavepp.sim.trace import TRACE_BLOCK_TOKENS

    with errors_as_lines("sim retention"):
        names, listed, found = _policies(policies), _rates(rates), load_profile(profile)
        load = Retention(documents, prefix, question, skew)
        tokens = int(share * load.tokens)
        setups = [TimedSetup(found, name, TRACE_BLOCK_TOKENS, stages, tokens, running_max) for name in names]
        with progress_bar("simulating") as progress:
            runs = retain_all(load, setups, listed, requests, seeds, jobs, progress)
        console = stdout()
        console.print(
            f"simulated, profile {found.name}; {load.documents} documents of {load.prefix_tokens:,} tokens, "
            f"weights 1 / i^{load.skew:g}, pools of {tokens:,} tokens; {requests} requests, {seeds} seeds",
            soft_wrap=True,
        )
        console.print(_retention_table(runs))
        again = [one.again for one in runs[0].results]
        console.print(
            f"good hit: 90 % of the prefix reused, of {min(again)} to {max(again)} requests for a document that was "
            f"asked for before; LRU: one exact LRU cache of the same size, in order of arrival",
            soft_wrap=True,
        )


def _retention_table(runs: Sequence[RetentionRuns]) -> Table:
    from rich.table import Table

    table = Table(title="means over the seeds, +- is highest - lowest; times in s; wait: from arrival to grant")
    for heading in ("requests/s", "policy", "good hits", "LRU", "of LRU's", "utilisation", "p50", "p95", "p99"):
        table.add_column(heading, justify="right")
    for heading in ("tokens/s", "reuse", "wait p50", "wait p99", "queue max", "failed"):
        table.add_column(heading, justify="right")
    before = runs[0].rate_s
    for one in runs:
        if one.rate_s != before:
            table.add_section()
        before = one.rate_s
        table.add_row(f"{one.rate_s:g}", one.setup.policy, *_retention_cells(one))
    return table


def _retention_cells(runs: RetentionRuns) -> list[str]:
    def seconds(value: Callable[[ReplayResult], float]) -> str:
        return f"{runs.mean(lambda one: value(one.replay)) / 1e3:.2f}"

    return [
        f"{runs.mean(lambda one: one.rate):.3f}",
        f"{runs.mean(lambda one: one.oracle_rate):.3f}",
        f"{runs.mean(lambda one: one.of_oracle):.3f} +-{runs.spread(lambda one: one.of_oracle):.3f}",
        f"{runs.mean(lambda one: one.replay.summary.utilisation):.3f}",
        f"{seconds(lambda one: one.summary.p50_ms)} +-{runs.spread(lambda one: one.replay.summary.p50_ms) / 1e3:.2f}",
        f"{seconds(lambda one: one.summary.p95_ms)} +-{runs.spread(lambda one: one.replay.summary.p95_ms) / 1e3:.2f}",
        seconds(lambda one: one.summary.p99_ms),
        f"{runs.mean(lambda one: one.replay.summary.input_tokens_s):,.0f}",
        f"{runs.mean(lambda one: one.replay.reuse):.3f}",
        seconds(lambda one: one.waiting.p50_ms),
        seconds(lambda one: one.waiting.p99_ms),
        str(max(one.replay.waiting.queued_max for one in runs.results)),
        str(sum(one.replay.failed for one in runs.results)),
    ]


def _table(rows: Sequence[tuple[str, ReplayResult]]) -> Table:
    from rich.table import Table

    table = Table(title="times in s; wait: from arrival to grant; realised: reuse against one LRU cache of that size")
    for heading in ("", "utilisation", "p50", "p95", "p99", "tokens/s", "reuse", "realised", "wait p50", "wait p99"):
        table.add_column(heading, justify="right")
    table.add_column("queue max", justify="right")
    table.add_column("failed", justify="right")
    for name, result in rows:
        summary, waiting = result.summary, result.waiting
        times = (summary.p50_ms, summary.p95_ms, summary.p99_ms)
        table.add_row(
            name,
            f"{summary.utilisation:.3f}",
            *(f"{ms / 1e3:.2f}" for ms in times),
            f"{summary.input_tokens_s:,.0f}",
            f"{result.reuse:.3f}",
            f"{result.realised:.3f}",
            f"{waiting.p50_ms / 1e3:.2f}",
            f"{waiting.p99_ms / 1e3:.2f}",
            str(waiting.queued_max),
            str(result.failed),
        )
    return table


def _policies(text: str) -> list[PolicyName]:
    wanted = text.split(",")
    chosen = [name for name in POLICY_NAMES if name in wanted]
    if len(chosen) != len(wanted):
        raise InvalidInputError(f"--policies is {text!r}; give some of {','.join(POLICY_NAMES)}, each once")
    return chosen


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0.0 < rate < 1e6 for rate in rates):
        raise InvalidInputError(f"--rates is {text!r}; it must be numbers above 0, like 0.5,1.0")
    return rates
