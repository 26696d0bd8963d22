"""`wavepp sim trace` and `wavepp sim retention`: the whole mesh in virtual time, with caches that are too small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from wavepp.cli.sim.sim import DEFAULT_PROFILE, JobsOption, ProfileOption, progress_bar
from wavepp.cli.terminal import errors_as_lines, stdout
from wavepp.core.errors import InvalidInputError
from wavepp.core.waves.policy_factory import POLICY_NAMES, PolicyName

if TYPE_CHECKING:
    from rich.table import Table

    from wavepp.sim.retention import RetentionResult
    from wavepp.sim.seeds import Seeds
    from wavepp.sim.trace_replay import ReplayResult

_Result = TypeVar("_Result")

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
    spread_s: Annotated[
        float,
        typer.Option(
            min=0.0, max=3600.0, help="Requests come up to so much of the trace's time after their stamps, at random."
        ),
    ] = 0.0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each policy, which differ by --spread-s.")] = 1,
    jobs: JobsOption = 0,
) -> None:
    """Replay a trace of requests: real admission, caches, eviction and waiting, on stages that only take time."""
    from wavepp.sim.profile import load_profile
    from wavepp.sim.timed_mesh import TimedSetup
    from wavepp.sim.trace import TRACE_BLOCK_TOKENS, read_trace, timed_asks
    from wavepp.sim.trace_replay import replay_all

    with errors_as_lines("sim trace"):
        names, found = _policies(policies), load_profile(profile)
        if seeds > 1 and not spread_s:
            raise InvalidInputError(
                f"--seeds {seeds} goes with --spread-s above 0: without it nothing is drawn, so all runs are the same"
            )
        setups = [TimedSetup(found, name, TRACE_BLOCK_TOKENS, stages, pool_tokens, running_max) for name in names]
        arrivals = list(timed_asks(islice(read_trace(file), requests or None)))
        with progress_bar("simulating") as progress:
            results = replay_all(arrivals, setups, speed, 1e3 * spread_s, seeds, jobs, progress)
        console = stdout()
        tokens = pool_tokens or found.pool_tokens
        spread = f", each up to {spread_s:g} s after its stamp, {seeds} seeds" if spread_s else ""
        console.print(
            f"simulated, profile {found.name}, {len(arrivals)} requests at {speed:g}x{spread}, "
            f"pools of {tokens:,} tokens",
            soft_wrap=True,
        )
        console.print(found.derived, soft_wrap=True)
        table = _table(("policy",))
        for name, runs in zip(names, results, strict=True):
            table.add_row(name, *_replay_cells(runs))
        console.print(table)
        console.print(
            "realised: reuse against one exact LRU cache of the same size, in order of arrival", soft_wrap=True
        )


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
            points = retain_all(load, setups, listed, requests, seeds, jobs, progress)
        console = stdout()
        console.print(
            f"simulated, profile {found.name}; {load.documents} documents of {load.prefix_tokens:,} tokens, "
            f"weights 1 / i^{load.skew:g}, pools of {tokens:,} tokens; {requests} requests, {seeds} seeds",
            soft_wrap=True,
        )
        console.print(found.derived, soft_wrap=True)
        table = _table(("per s", "policy", "good hits", "LRU", "of LRU's"))
        for point in points:
            if point.setup is setups[0]:
                table.add_section()
            replays = point.runs.each(lambda one: one.replay)
            table.add_row(f"{point.rate_s:g}", point.setup.policy, *_hit_cells(point.runs), *_replay_cells(replays))
        console.print(table)
        again = [one.again for one in points[0].runs.results]
        repeats = " to ".join(map(str, sorted({min(again), max(again)})))
        console.print(
            f"good hit: 90 % of the prefix reused, of {repeats} requests for a document that was "
            f"asked for before; LRU, realised: against one exact LRU cache of the same size, in order of arrival",
            soft_wrap=True,
        )


def _table(first: Sequence[str]) -> Table:
    """To be filled with what is said `first`, and `_replay_cells`."""
    from rich.table import Table

    table = Table(title="times in s; wait: from arrival to grant; queued: at most; +-: highest - lowest of the seeds")
    last = ("tokens/s", "reuse", "realised", "wait p99", "queued", "failed")
    for heading in (*first, "utilisation", "p50", "p95", "p99", *last):
        table.add_column(heading, justify="right")
    return table


def _replay_cells(runs: Seeds[ReplayResult]) -> list[str]:
    summaries, waits = runs.each(lambda one: one.summary), runs.each(lambda one: one.waiting)
    return [
        f"{summaries.mean(lambda one: one.utilisation):.3f}",
        _spread(summaries, lambda one: one.p50_ms / 1e3, 2),
        _spread(summaries, lambda one: one.p95_ms / 1e3, 2),
        f"{summaries.mean(lambda one: one.p99_ms) / 1e3:.2f}",
        f"{summaries.mean(lambda one: one.input_tokens_s):,.0f}",
        f"{runs.mean(lambda one: one.reuse):.3f}",
        f"{runs.mean(lambda one: one.realised):.3f}",
        f"{waits.mean(lambda one: one.p99_ms) / 1e3:.2f}",
        str(max(one.queued_max for one in waits.results)),
        str(sum(one.failed for one in runs.results)),
    ]


def _hit_cells(runs: Seeds[RetentionResult]) -> list[str]:
    return [
        f"{runs.mean(lambda one: one.rate):.3f}",
        f"{runs.mean(lambda one: one.oracle_rate):.3f}",
        _spread(runs, lambda one: one.of_oracle, 3),
    ]


def _spread(runs: Seeds[_Result], value: Callable[[_Result], float], digits: int) -> str:
    """The mean, and how far apart the seeds are where there are several."""
    mean = f"{runs.mean(value):.{digits}f}"
    return f"{mean} +-{runs.spread(value):.{digits}f}" if len(runs.results) > 1 else mean


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
