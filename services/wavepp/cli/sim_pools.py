"""`wavepp sim trace` and `wavepp sim retention`: the whole mesh in virtual time, with caches that are too small."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavepp.cli.sim import DEFAULT_PROFILE, ProfileOption, progress_bar
from wavepp.cli.terminal import errors_as_lines, stdout
from wavepp.core.errors import InvalidInputError
from wavepp.core.policy_factory import POLICY_NAMES, PolicyName

if TYPE_CHECKING:
    from rich.table import Table

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
) -> None:
    """Replay a trace of requests: real admission, caches, eviction and waiting, on stages that only take time."""
    from wavepp.sim.profile import load_profile
    from wavepp.sim.timed_mesh import TimedSetup
    from wavepp.sim.trace import TRACE_BLOCK_TOKENS, read_trace, timed_asks
    from wavepp.sim.trace_replay import replay

    with errors_as_lines("sim trace"):
        names, found = _policies(policies), load_profile(profile)
        arrivals = list(timed_asks(islice(read_trace(file), requests or None)))
        rows = []
        with progress_bar("simulating") as progress:
            for done, policy in enumerate(names):
                setup = TimedSetup(found, policy, TRACE_BLOCK_TOKENS, stages, pool_tokens, running_max)
                rows.append((policy, replay(arrivals, setup, speed)))
                progress(done + 1, len(names))
        console = stdout()
        tokens = pool_tokens or found.pool_tokens
        console.print(
            f"simulated, profile {found.name}, {len(arrivals)} requests at {speed:g}x, pools of {tokens:,} tokens",
            soft_wrap=True,
        )
        console.print(_table(rows))


def retention(
    profile: ProfileOption = DEFAULT_PROFILE,
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(POLICY_NAMES)}.")] = "cost",
    rates: Annotated[str, typer.Option(help="Requests a second, like 0.5,1.0; Poisson arrivals.")] = "0.5,0.75,1.0",
    documents: Annotated[int, typer.Option(min=1, max=100_000, help="Long prefixes.")] = 64,
    prefix: Annotated[int, typer.Option(min=512, max=4_000_000, help="Tokens of each.")] = 131_072,
    question: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens that each request adds.")] = 4_096,
    skew: Annotated[float, typer.Option(min=0.0, max=10.0, help="The i-th document has weight 1 / i^skew.")] = 1.0,
    share: Annotated[float, typer.Option(min=0.01, max=10.0, help="Part of all prefixes that a pool holds.")] = 0.6,
    requests: Annotated[int, typer.Option(min=2, max=1_000_000)] = 1_000,
    stages: StagesOption = 0,
    running_max: RunningOption = 256,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and documents.")] = 1,
) -> None:
    """Ask for long documents again and again: how often is a prefix still there (90 % of it or more)?"""
    from wavepp.sim.profile import load_profile
    from wavepp.sim.retention import Retention, retain
    from wavepp.sim.timed_mesh import TimedSetup
    from wavepp.sim.trace import TRACE_BLOCK_TOKENS

    with errors_as_lines("sim retention"):
        (name,), found = _policies(policy, 1), load_profile(profile)
        load = Retention(documents, prefix, question, skew)
        tokens = int(share * load.tokens)
        setup = TimedSetup(found, name, TRACE_BLOCK_TOKENS, stages, tokens, running_max)
        rows, lines = [], []
        listed = _rates(rates)
        with progress_bar("simulating") as progress:
            for done, rate in enumerate(listed):
                result = retain(load, setup, rate, requests, seed)
                rows.append((f"{rate:g} / s", result.replay))
                lines.append(
                    f"{rate:g} / s: good hits {result.rate:.3f}, LRU oracle {result.oracle_rate:.3f}, "
                    f"of {result.again} requests for a document that was asked for before"
                )
                progress(done + 1, len(listed))
        console = stdout()
        console.print(
            f"simulated, profile {found.name}, {name}; {load.documents} documents of {load.prefix_tokens:,} tokens, "
            f"weights 1 / i^{load.skew:g}, pools of {tokens:,} tokens, {requests} requests",
            soft_wrap=True,
        )
        console.print(_table(rows))
        for line in lines:
            console.print(line, soft_wrap=True)


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


def _policies(text: str, at_most: int = len(POLICY_NAMES)) -> list[PolicyName]:
    wanted = text.split(",")
    chosen = [name for name in POLICY_NAMES if name in wanted]
    if len(chosen) != len(wanted) or len(chosen) > at_most:
        raise InvalidInputError(
            f"policy {text!r}: give {'one' if at_most == 1 else 'some'} of {','.join(POLICY_NAMES)}"
        )
    return chosen


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0.0 < rate < 1e6 for rate in rates):
        raise InvalidInputError(f"--rates is {text!r}; it must be numbers above 0, like 0.5,1.0")
    return rates
